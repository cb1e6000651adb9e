//! Images on a real Glance, and on one that fails.
//!
//! Without a machine on which OpenStack can run they are skipped, loudly.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod bed;
mod delete;
mod faults;
mod filters;
mod upload;
