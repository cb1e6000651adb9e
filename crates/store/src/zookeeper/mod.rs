//! The store on a ZooKeeper ensemble, version 3.6 or later.
//!
//! `docs/decisions/zookeeper-client.md` explains why this client exists. All [`ZooKeeper`] handles of a client share one
//! task ([`session`]) that owns the session, the connection ([`serve`]) and the watches ([`watches`]). Operations are
//! sent in the order in which they were started.
//!
//! When the connection is lost, reads are repeated on the next connection of the same session; writes fail with
//! [`Error::ConnectionLoss`](crate::Error::ConnectionLoss), since they may have been executed.

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
pub use tls::ZooKeeperTlsFiles;
pub use translate::ServerError;
