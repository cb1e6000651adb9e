//! Configurations: valid, invalid, malicious, and as Python Nodepool reads them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod corpus;
mod malformed;
mod nodepool;
mod reload;
mod shown;
mod support;
