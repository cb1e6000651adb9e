//! The simulated cloud, its server and its driver.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

mod common;
mod driver;
mod kit;
mod protocol;
