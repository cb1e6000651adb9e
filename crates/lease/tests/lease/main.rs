//! Leases with everything around them: the embedded store and ZooKeeper, a launcher with simulated clouds, and
//! keepers that come and go.
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
