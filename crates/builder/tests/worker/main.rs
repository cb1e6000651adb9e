//! The worker on real job servers, with a simulated cloud.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    clippy::print_stdout
)]

mod bed;
mod contract;
mod dib;
mod hostile;
mod killed;
mod leftovers;
mod rules;
mod steps;
