//! The launcher with everything around it: the embedded store and ZooKeeper, static machines and a simulated
//! cloud, and a requestor that keeps Zuul's side of the contract.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

mod adopted;
mod awaited_images;
mod bed;
mod cloud;
mod contended;
mod drain;
mod fake;
mod kill;
mod leaks;
mod machines;
mod malformed;
mod mended;
mod metastatic;
mod orphans;
mod outage;
mod panics;
mod ready_nodes;
mod recovery;
mod session;
mod static_nodes;
mod tenants;
mod tenth;
mod uploads;
mod zuul;
