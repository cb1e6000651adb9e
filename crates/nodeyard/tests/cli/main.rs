//! The built binary as a black box: what a person or a script sees.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod api;
mod bed;
mod cloud;
mod config;
mod container;
mod daemon;
mod drain;
mod explain;
mod image;
mod nodepool;
mod programs;
mod qemu;
mod request;
mod store;
mod up;
