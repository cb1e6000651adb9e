//! Decisions of launchers and stewards, with their reasons.
//!
//! Everything here is a function of a snapshot of the store and of arguments: no clock, no random numbers, no input or
//! output. The launcher feeds a [`RequestScheduler`] with the changes it sees, asks it for decisions, and executes
//! them by the rules of [`protocol`].
//!
//! - [`assign`]: which pool serves which request, with which nodes
//! - [`explain`]: why a request waits
//! - [`min_ready`], [`expiry`], [`orphans`], [`leaks`]: nodes to prepare, and what to clean up
//! - [`protocol`]: which record may be written next, given one that was read under its lock
//! - [`canary`]: which upload of an image a launch uses
//! - [`images`]: when an image is built, uploaded and deleted; independent of the others
//!
//! # How a launcher uses it
//!
//! 1. Describe the providers and pools ([`RequestScheduler::set_provider`], [`RequestScheduler::set_own_pool`],
//!    [`RequestScheduler::set_tenant_limits`], [`RequestScheduler::set_drains`]), then put in every record of the
//!    store, with the hints of who is locked.
//! 2. Put in every change as it is seen. Own writes may be put in at once, or when they come back as a change;
//!    repeating a change has no effect.
//! 3. After changes, and when a pass asked for it ([`Pass::again_at`](assign::Pass::again_at)), run
//!    [`RequestScheduler::assign`] for each pool that [`RequestScheduler::take_stale`] returns, until it returns none.
//!    Decisions count at once: the room is promised, and the request is not offered to another pool.
//! 4. Execute the decisions. *Accept*: write `pending` (unless the request is held already), get a node for each step,
//!    fulfil. *Reserve*: write `pending` and keep the lock; a later decision is *accept* or *decline*. *Decline*:
//!    write it. Write [`Pass::paused`](assign::Pass::paused) to the pool's component when it changes. After drains and
//!    pools have changed, requeue what [`RequestScheduler::revoke_reservations`] returns.
//! 5. Between recording a node and launching it, when the own record has come back, check
//!    [`RequestScheduler::excess`].
//! 6. Report failures: [`RequestScheduler::release`] when a request cannot be locked, a launch failed permanently or
//!    the pool stops; [`RequestScheduler::record_quota_refusal`] when a launch met a quota, and then
//!    [`RequestScheduler::retry`]; [`RequestScheduler::record_accepted_launch`] when the cloud has accepted one;
//!    [`RequestScheduler::release_eviction`]. Requests that are fulfilled, failed or deleted need no report: their
//!    records suffice.
//! 7. After the passes, ask [`RequestScheduler::ready_nodes_wanted`] whether [`min_ready::plan`] has anything to
//!    request.
//! 8. Periodically, and at [`expiry::Expiry::again_at`], run the clean-up functions.

pub mod assign;
pub mod canary;
pub mod expiry;
pub mod explain;
pub mod images;
pub mod leaks;
pub mod min_ready;
pub mod orphans;
pub mod protocol;
mod scheduler;
pub mod setup;
mod span;
pub mod verdict;

pub use scheduler::RequestScheduler;
pub use scheduler::queue::MIN_READY_REQUESTOR;
pub use setup::{
    Drains, LabelPolicy, LabelReadiness, LabelSetup, Policy, PoolKey, PoolSetup, ProviderSetup,
    Supply, ZoneName,
};
pub use verdict::RequestVerdict;
