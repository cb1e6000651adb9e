//! Starts the real counterparts for tests.
//!
//! Everything listens on loopback only, on ports of its own, with its files in a directory of its own, so any
//! number of tests can run side by side. What was started ends with the value that stands for it, and at the
//! latest with the process that started it. The programs come from Debian packages: `testbeds/install.sh`.

pub mod gearman;

mod certificates;
mod ensemble;
mod process;
mod proxy;
mod zookeeper;

pub use certificates::{Certificates, Identity};
pub use ensemble::Ensemble;
pub use proxy::Proxy;
pub use zookeeper::{ServerOptions, ZooKeeperServer};
