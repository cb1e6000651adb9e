//! Being a requestor without Zuul: whoever wants machines gets them as a *lease*.
//!
//! ```text
//!     API, command line ──► Leases ──writes──►  store  ◄──follows──  Keeper
//!                                                 ▲
//!                                    launchers, ours or Python's
//! ```
//!
//! A lease asks with an ordinary node request, which any launcher serves. When that is fulfilled, a [`Keeper`] takes
//! the nodes as Zuul would: it locks them, marks them as in use and deletes the request. The locks are held by
//! contenders that outlive every session, so no restart takes the nodes for abandoned. A lease that is not renewed
//! ends by itself.
//!
//! What to do next with a lease is decided by pure functions ([`decide`]) on records that were read afresh, and
//! every write names the versions they had. So any number of processes may work on the same leases, and whoever is
//! killed in the middle leaves a state that the next one goes on from.
//!
//! [`Leases`] is the way in for everybody else. No HTTP here, and no rights: a [`Caller`] says who asks.

pub mod connection;
pub mod decide;
pub mod inventory;

mod act;
mod ask;
mod book;
mod buildsets;
mod error;
mod ids;
mod keeper;
mod lease;
mod leases;
mod scope;
mod scopes;
mod seen;

pub use ask::{Affinity, Ask, Caller, MAX_DURATION, MAX_LABELS, MAX_TEXT, Priority};
pub use book::{Explain, NoExplanations, Parts, lease_of};
pub use connection::Connection;
pub use error::{Error, KeeperError, Result};
pub use ids::{LeaseId, ScopeId};
pub use keeper::{Keeper, Options};
pub use lease::{Cause, End, Lease, Part, PartState, Phase, Placement};
pub use leases::{Asked, Hold, Leases, NodeStatus, Status};
pub use scope::{Scope, ScopeName};
pub use scopes::{Buildset, ScopeStatus};
