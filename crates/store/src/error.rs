//! Errors of store operations.

use std::path::PathBuf;

use crate::path::{InvalidPath, TreePath};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a store operation.
///
/// Only [`Error::ConnectionLoss`] leaves the outcome unknown: the write may have been
/// applied before the connection was lost. After any other error nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{path}: no such record")]
    NoNode { path: TreePath },
    #[error("{path}: the record exists already")]
    NodeExists { path: TreePath },
    #[error("{path}: version conflict, the record was changed concurrently")]
    BadVersion { path: TreePath },
    #[error("{path}: the record has children")]
    NotEmpty { path: TreePath },
    #[error("{path}: an ephemeral record cannot have children")]
    NoChildrenForEphemerals { path: TreePath },
    #[error(transparent)]
    InvalidPath(#[from] InvalidPath),
    #[error("{path}: {size} bytes exceed the limit of {limit} bytes")]
    TooLarge {
        path: TreePath,
        size: usize,
        limit: usize,
    },
    #[error("operation {index} of a multi failed; none was applied")]
    Multi {
        index: usize,
        #[source]
        source: Box<Error>,
    },
    #[error("{path}: the record is malformed")]
    Malformed {
        path: TreePath,
        #[source]
        source: nodeyard_model::RecordError,
    },
    #[error(
        "{path} is not a system id; delete the record if nothing in any cloud belongs to this installation"
    )]
    BadSystemId { path: TreePath },
    #[error("{path}: permission denied by the server's access control list")]
    NoAuth { path: TreePath },
    #[error(
        "connection lost while waiting for the response; the operation may or may not have been executed"
    )]
    ConnectionLoss,
    #[error("session expired")]
    SessionExpired,
    #[error("the store is closed")]
    Closed,
    #[error(
        "{} is open in another process; one process owns an embedded store, all others use the socket beside it",
        file.display()
    )]
    InUse { file: PathBuf },
    #[error("timed out waiting for the lock after {0:?}")]
    LockTimeout(std::time::Duration),
    #[error("{context}")]
    Backend {
        context: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    pub fn is_no_node(&self) -> bool {
        matches!(self, Error::NoNode { .. })
    }

    pub fn is_node_exists(&self) -> bool {
        matches!(self, Error::NodeExists { .. })
    }

    /// True for failures that pass by themselves once the connection is back.
    pub fn is_connection(&self) -> bool {
        matches!(self, Error::ConnectionLoss | Error::SessionExpired)
    }
}
