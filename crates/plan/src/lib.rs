//! What a launcher and a steward decide, and why.
//!
//! Everything here is a function of a picture of the store and of values that are passed in: no clock, no
//! random numbers, no input or output. The launcher feeds a [`World`] with what it sees, asks it for decisions,
//! and carries them out by the rules of [`protocol`].
//!
//! - [`assign`]: which pool serves which request, with what
//! - [`explain`]: why a request waits
//! - [`min_ready`], [`expiry`], [`orphans`], [`leaks`]: nodes to prepare, and what to clean up
//! - [`protocol`]: what may be written next, given a record that was read under its lock
//! - [`canary`]: which upload of an image a launch uses
//! - [`images`]: when an image is built, uploaded and deleted; apart from all the others
//!
//! # How a launcher uses it
//!
//! 1. Describe the providers and pools ([`World::set_provider`], [`World::set_own_pool`],
//!    [`World::set_tenant_limits`], [`World::set_drains`]), then put in every record of the store, with the hints of
//!    who is locked.
//! 2. Put in every change as it is seen. Own writes may be put in at once, or when they come back as a change; twice
//!    does no harm.
//! 3. After changes, and when a pass asked for it ([`Pass::again_at`](assign::Pass::again_at)), run
//!    [`World::assign`] for each pool that [`World::take_stale`] names, until it names none. What is decided
//!    counts from that moment: promised room is taken, and the request is not offered to another pool.
//! 4. Carry the decisions out. *Accept*: write `pending` (unless the request is held already), get a node for each
//!    step, fulfil. *Reserve*: write `pending` and keep the lock; the request comes again as *accept*,
//!    *decline*, or goes. *Decline*: write it. Write [`Pass::paused`](assign::Pass::paused) to the pool's component
//!    when it changes. After drains and pools have changed, put back what [`World::let_go`] names.
//! 5. Between recording a node and launching it, when the own record has come back, ask [`World::excess`].
//! 6. Say what did not work: [`World::release`] when a request's lock cannot be had, a launch failed for good or the
//!    pool stops; [`World::refuse`] when a launch met a quota, and then [`World::retry`];
//!    [`World::accept_launch`] when the cloud has accepted one; [`World::release_eviction`].
//!    A request that is fulfilled, failed or gone needs nothing: its record says so.
//! 7. After the passes, ask [`World::ready_nodes_wanted`] whether [`min_ready::plan`] has anything to request.
//! 8. Once in a while, or when told ([`expiry::Expiry::again_at`]), run the sweeps.

pub mod assign;
pub mod canary;
pub mod expiry;
pub mod explain;
pub mod images;
pub mod leaks;
pub mod min_ready;
pub mod orphans;
pub mod protocol;
pub mod setup;
mod span;
pub mod verdict;
mod world;

pub use setup::{
    Drains, LabelPolicy, LabelSetup, Policy, PoolKey, PoolSetup, ProviderSetup, Readiness, Supply,
    Zone,
};
pub use verdict::Verdict;
pub use world::World;
pub use world::queue::MIN_READY_REQUESTOR;
