//! The driver on a cluster in memory: an emulation of ours, which shows that the steps are right and not how a cluster
//! behaves.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

#[path = "../shared/caller.rs"]
mod caller;
mod cluster;
mod common;
mod forward;
mod gateway;
mod kit;
mod life;
mod openshift;
mod patience;
mod share;
mod trouble;
mod watch;
