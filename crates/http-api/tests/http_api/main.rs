//! The HTTP API as clients see it: a real server, on a real store, over TCP.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

mod access;
mod client;
mod events;
mod fake_launcher;
mod images;
mod leases;
mod lists;
mod misbehaving_clients;
mod openapi;
mod problems;
mod testbed;
mod tls;
mod zookeeper;
