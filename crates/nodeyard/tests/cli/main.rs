//! The built binary as a black box: what a person or a script sees.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod bed;
mod config;
mod nodepool;
mod programs;
mod qemu;
mod store;
mod up;
