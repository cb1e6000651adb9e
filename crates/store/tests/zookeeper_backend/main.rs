//! The ZooKeeper backend against real servers: what is particular to it, and not what every backend does.
//!
//! Tests that only work with records share one server and have a chroot each; tests that hurt a server have
//! their own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

mod ensemble;
mod faults;
mod operations;
mod scripted;
mod support;
mod throughput;
mod tls;
mod watches;
