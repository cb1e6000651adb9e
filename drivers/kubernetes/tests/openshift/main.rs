//! The driver on OpenShift's own API server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

#[path = "../shared/bed.rs"]
mod bed;
#[path = "../shared/caller.rs"]
#[expect(dead_code, reason = "each suite uses a part of it")]
mod caller;
mod common;
mod kit;
mod pods;
mod projects;
#[path = "../shared/service.rs"]
mod service;
mod trouble;
