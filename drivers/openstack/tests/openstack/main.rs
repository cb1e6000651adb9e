//! The driver on a real OpenStack, and where the real one cannot be had (Cinder) or takes too long (every fault), on an
//! emulated one.
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
mod life;
mod real_kit;
mod trouble;
