//! The driver against a real Podman and a real Docker, and the kit against a runtime in memory.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

mod common;
mod emulated;
mod images;
mod kit;
mod limits;
mod login;
mod pulls;
mod trouble;
