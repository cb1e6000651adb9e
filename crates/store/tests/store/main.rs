//! Every backend of the store, and the registry on top of them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    clippy::print_stdout
)]

mod conformance;
mod embedded_kazoo;
mod embedded_kill;
mod embedded_socket;
mod embedded_tree;
mod registry;
mod zookeeper;
