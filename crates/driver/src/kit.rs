//! The driver kit: creates and deletes nodes and images under every fault, with any driver.
//!
//! A small caller ([`life`]) keeps records in a store of its own, and calls a driver to create and delete. Every call to the
//! cloud and every write to the store is a *point*. The kit counts the points of a run without faults, and runs again with
//! a fault at each of them: the process dies before or after, the response is lost, the caller cancels the operation and
//! repeats it, or the cloud refuses with an error of some class. Cloud and store outlive the process, and a new one
//! continues.
//!
//! At the end of each run nothing may be left over, and while all nodes were up each had exactly one machine, and their
//! resources added up. The tests of a driver provide a [`Bed`]: a cloud, and a driver whose calls pass through
//! [`Faults::call`].

mod bed;
mod clock;
mod explore;
mod faults;
mod life;
mod orders;
mod records;

pub use bed::{Bed, Setup};
pub use clock::tokio_clock;
pub use explore::{Failure, Report, Suite, explore};
pub use faults::{Fault, Faults, Injected};
pub use life::{Recovery, Violation};
pub use orders::order;
