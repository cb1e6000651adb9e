//! The driver on a real OpenStack, and where that takes too long (every fault) or does not happen (volumes that stay), on
//! an emulated one.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

mod common;
mod emulated;
mod emulation;
mod faults;
mod floating;
mod life;
mod logins;
mod real_kit;
mod trouble;
