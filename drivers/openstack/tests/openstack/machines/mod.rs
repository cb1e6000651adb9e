//! The driver on a real OpenStack, and where that takes too long (every fault) or does not happen (volumes that stay), on
//! an emulated one.

mod common;
mod emulated;
mod emulation;
mod faults;
mod floating;
mod life;
mod logins;
mod real_kit;
mod trouble;
