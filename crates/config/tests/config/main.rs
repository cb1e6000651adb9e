//! Configurations: good, bad, hostile, and as Python Nodepool reads them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod corpus;
mod hostile;
mod nodepool;
mod reload;
mod shown;
mod support;
