//! The ZooKeeper backend against real servers: what is particular to it, and not what every backend does.
//!
//! Tests that only work with records share one server and have a chroot each; tests that hurt a server have
//! their own.

mod ensemble;
mod faults;
mod operations;
mod scripted;
mod support;
mod throughput;
mod tls;
mod watches;
