//! Leases on nodes, for requestors other than Zuul.
//!
//! ```text
//!     API, command line ──► Leases ──writes──►  store  ◄──watches──  LeaseKeeper
//!                                                 ▲
//!                                      launchers, ours or Python's
//! ```
//!
//! A lease makes an ordinary node request, which any launcher serves. When that is fulfilled, a [`LeaseKeeper`] takes the
//! nodes as Zuul would: it locks them, sets them to in-use and deletes the request. Persistent contenders hold the locks,
//! so the nodes do not look abandoned after a restart. A lease that is not renewed ends.
//!
//! Pure functions decide the next step (`decide`) on snapshots, and every write checks the versions that were read. So any
//! number of processes may work on the same leases, and another one continues after a crash.
//!
//! [`Leases`] is the interface for callers; HTTP and permissions are not part of it, a [`Lessee`] names the caller.

pub mod connection;
mod decide;
pub mod inventory;

mod buildsets;
mod cached;
mod context;
mod error;
mod execute;
mod ids;
mod keeper;
mod lease;
mod leases;
mod scope;
mod scopes;
mod spec;

pub use connection::NodeConnection;
pub use context::{ExplainFailure, LeaseDependencies, NoExplanations, lease_of_request};
pub use error::{Error, KeeperError, Result};
pub use ids::{LeaseId, ScopeId};
pub use keeper::{LeaseKeeper, Options};
pub use lease::{
    EndCause, Lease, LeaseEnding, LeasePhase, LeasePlacement, LeasedNode, LeasedNodeState,
};
pub use leases::{CreatedLease, HoldOptions, LeaseStatus, LeasedNodeStatus, Leases};
pub use scope::{LeaseScope, ScopeName};
pub use scopes::{ScopeStatus, ZuulBuildset};
pub use spec::{
    LeasePriority, LeaseSpec, Lessee, MAX_DURATION, MAX_LABELS, MAX_TEXT, ScopeAffinity,
};
