//! Plans, through the interface of the crate.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

mod affinity;
mod assign;
mod awaited_images;
mod common;
mod drains;
mod explain;
mod images;
mod limits;
mod model_check;
mod properties;
mod ready_nodes;
mod refusals;
mod sweeps;
mod unreachable;
