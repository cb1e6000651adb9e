//! What a launcher decides, and why.
//!
//! Everything here is a function of a picture of the store and of values that are passed in: no clock, no
//! random numbers, no input or output. The launcher feeds a [`World`] with what it sees, asks it for decisions,
//! and carries them out by the rules of [`protocol`].
//!
//! - [`assign`]: which pool serves which request, with what
//! - [`explain`]: why a request waits
//! - [`min_ready`], [`expiry`], [`orphans`], [`locks`], [`leaks`]: nodes to prepare, and what to clean up
//! - [`protocol`]: what may be written next, given a record that was read under its lock
//!
//! A `plan` never acts twice on one thing: what it decided counts from that moment on, and a decision that
//! could not be carried out is taken back with [`World::release`].

pub mod assign;
pub mod expiry;
pub mod explain;
pub mod leaks;
pub mod locks;
pub mod min_ready;
pub mod orphans;
pub mod protocol;
pub mod setup;
pub mod verdict;
mod world;

pub use setup::{
    LabelPolicy, LabelSetup, Policy, PoolKey, PoolSetup, ProviderSetup, Readiness, Supply, Zone,
};
pub use verdict::Verdict;
pub use world::World;
pub use world::queue::MIN_READY_REQUESTOR;
