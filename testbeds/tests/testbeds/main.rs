//! The counterparts that other tests rely on.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod openstack;
mod sshd;
mod zuul_client;
