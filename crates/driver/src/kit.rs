//! The driver kit: whole lives of nodes and images, under every fault, for any driver.
//!
//! A small caller ([`life`]) keeps records in a store of its own, record first, then call, and drives a
//! driver through create, use and delete. Every call to the cloud and every write to the store is a
//! *point*. The kit counts the points of a quiet run and then runs again and again, with a fault at each of
//! them: the process dies just before or just after, the answer is lost, the caller cancels the operation and repeats
//! it, or the cloud refuses with an error of some class. The cloud and the store outlive the process; a new one takes
//! over.
//!
//! At the end of each run nothing may be left over, while all were up each node had exactly one machine,
//! and the sums of what they take were right. A [`Bed`] is what a driver's tests bring along: a
//! cloud, and a driver whose calls pass through [`Faults::call`].

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
