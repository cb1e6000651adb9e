//! The driver against a real Podman.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

mod common;
mod images;
mod kit;
mod limits;
mod login;
mod trouble;
