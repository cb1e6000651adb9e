//! Leases on the embedded store and on ZooKeeper, with a launcher, simulated clouds and several keepers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

mod bed;
mod cloud;
mod downtime;
mod kill;
mod life;
mod panics;
mod python;
mod scopes;
mod session;
mod together;
