//! Integration tests with our own server, gearmand, gear and the gearman tools.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    clippy::print_stdout
)]

mod faults;
mod interop;
mod limits;
mod suite;
mod support;
mod tls;
mod unix_socket;
