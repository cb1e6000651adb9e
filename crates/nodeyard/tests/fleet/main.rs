//! The built `nodepool-launcher` in the company it is made for: ZooKeeper with TLS, Zuul's own classes, a complete
//! Zuul, OpenStack, and the launcher of Python Nodepool.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

mod bed;
mod complete_zuul;
mod drain;
mod killed;
mod metastatic;
mod mixed;
mod nodepools_own_tests;
mod openstack;
mod yard;
mod zuul_client;
mod zuul_images;
mod zuul_pods;
