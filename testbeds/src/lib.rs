//! Starts the real counterparts for tests.
//!
//! Everything listens on loopback only, on ports of its own, with its files in a directory of its own, so any
//! number of tests can run side by side. What was started ends with the value that stands for it, and at the
//! latest with the process that started it; only [`OpenStack`] stays a while, since it starts slowly. The
//! programs come from Debian packages (`testbeds/install.sh`) and from Python's (`testbeds/python/install.sh`).

pub mod containers;
pub mod dib;
pub mod gearman;
pub mod nodepool_suite;
pub mod openstack;

mod certificates;
mod checkout;
mod cluster;
mod ensemble;
mod eventually;
mod executable;
mod nodepool;
mod process;
mod proxy;
mod python;
mod qemu;
mod sample;
mod seconds;
mod skipped;
mod small_disk;
mod sshd;
#[cfg(feature = "store")]
pub mod store;
pub mod web_server;
mod zookeeper;
pub mod zuul;
mod zuul_client;

pub use certificates::{Authority, Certificates, Identity};
pub use checkout::checkout;
pub use cluster::{Cluster, OpenShift};
pub use containers::ContainerRuntime;
pub use ensemble::Ensemble;
pub use eventually::{eventually, show_when_stuck, until};
pub use executable::executable;
pub use nodepool::{Launcher, LauncherOptions, connection};
pub use openstack::OpenStack;
pub use process::free_port;
pub use proxy::Proxy;
pub use python::{ansible, schemathesis};
pub use qemu::{qemu_debian, qemu_debian_with_cloud_init, qemu_guest};
pub use sample::sample;
pub use seconds::next_second;
pub use skipped::skipped;
pub use small_disk::SmallDisk;
pub use sshd::Sshd;
pub use web_server::WebServer;
pub use zookeeper::{ServerOptions, ZooKeeperServer};
pub use zuul::{Zuul, ZuulOptions};
pub use zuul_client::{ClientOptions, ZuulClient};
