//! When images are built, uploaded and deleted.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod availability;
mod import;
mod properties;
mod rules;
mod trials;
mod yard;
