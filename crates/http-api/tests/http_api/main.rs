//! The HTTP API as clients see it: a real server, on a real store, over TCP.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

mod access;
mod bed;
mod client;
mod events;
mod hand;
mod hostile;
mod images;
mod leases;
mod lists;
mod openapi;
mod problems;
mod tls;
mod zookeeper;
