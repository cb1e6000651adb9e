//! The store on a ZooKeeper ensemble, version 3.6 or later.
//!
//! A client of our own: why is told in `docs/decisions/zookeeper-client.md`. [`ZooKeeper`] is a handle; behind all
//! handles of one client there is one task ([`session`]) that owns the session, the connection ([`serve`])
//! and the watches ([`watches`]). Handles and task talk through one queue, so the order in which operations
//! are begun is the order in which they are sent.
//!
//! When the connection breaks, reads are asked again on the next connection of the same session; writes
//! fail with [`Error::ConnectionLoss`](crate::Error::ConnectionLoss), since they may have been done.

pub mod wire;

mod call;
mod dial;
mod handle;
mod options;
mod serve;
mod session;
mod tls;
mod translate;
mod watches;

pub use dial::DialError;
pub use handle::ZooKeeper;
pub use options::{Host, InvalidHost, Options};
pub use tls::{Tls, TlsError};
pub use translate::ServerError;
