//! The web pages and metrics of a launcher, seen from outside.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

mod builder;
mod http;
mod metrics;
mod misbehaving_clients;
mod python;
mod statsd;
mod testbed;
mod webapp;
