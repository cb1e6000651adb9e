//! The driver on a real cluster, and on one that behaves badly.
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
mod caller;
mod common;
mod console;
mod kit;
mod life;
mod names;
#[path = "../shared/service.rs"]
mod service;
mod share;
mod ssh;
mod streams;
mod trouble;
