//! The driver with real QEMU processes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

mod boot;
mod bridge;
mod common;
mod debian;
mod guest_faults;
mod host;
mod images;
mod killed;
mod kit;
mod life;
mod templates;
