//! Decides which record may be written next, given one that was read under its lock.
//!
//! Every function takes the record as it was read *after* the lock was acquired, None if it is deleted or empty,
//! and returns the record to write, or why nothing may be written. `tests/model_check.rs` explores these functions
//! exhaustively.
//!
//! # A request
//!
//! 1. Lock the request without waiting, read it, write [`request::take`].
//! 2. For each step of the acceptance: lock a free node and write [`node::allocate`]; or create
//!    [`node::planned`], lock it, write [`node::begin`], launch, write [`node::launched`].
//! 3. Unlock the nodes, write [`request::fulfil`], unlock the request.
//!
//! If the request was deleted by then, write [`node::free`] to its nodes instead. If a launch failed, free the others
//! and write [`request::decline`].
//!
//! # Clean-up
//!
//! - A pending request that can be locked: [`node::reset`] on each of its nodes, each under its own lock, then
//!   [`request::requeue`]. The request is written last, so that a crash in between leaves it pending.
//! - A node that can be locked: [`node::clean`] decides. `deleting` is written first, then the
//!   instance is removed, then `deleted` is written and the record removed with everything below it.
//! - A ready node whose request was deleted: read the request *after* locking the node, then [`node::free`].

pub mod node;
pub mod request;

use nodeyard_model::request::LabelMismatch;
use nodeyard_model::{Allocation, NodeState, RequestState};

/// Why nothing may be written. Unlock, and decide again when the record changes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteRefused {
    #[error("the record is gone")]
    Gone,
    #[error("the request is now {state}")]
    RequestIs { state: RequestState },
    #[error("this pool has declined the request")]
    Declined,
    #[error("the node is now {state}")]
    NodeIs { state: NodeState },
    #[error("the node has entered its state again")]
    Renewed,
    #[error("the node is allocated to {}", Holder(.to.as_ref()))]
    AllocatedTo { to: Option<Allocation> },
    #[error("the request cannot be fulfilled")]
    Mismatch(#[from] LabelMismatch),
}

struct Holder<'a>(Option<&'a Allocation>);

impl std::fmt::Display for Holder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(request) => write!(f, "request {request}"),
            None => f.write_str("no request"),
        }
    }
}
