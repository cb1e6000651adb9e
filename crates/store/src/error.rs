//! What an operation on the tree can answer instead of a result.

use std::path::PathBuf;

use crate::path::{InvalidPath, TreePath};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with an operation on the tree.
///
/// [`Error::ConnectionLoss`] is the only one that leaves the outcome open: the write may have been
/// applied before the connection broke. Every other error means that nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{path}: no such record")]
    NoNode { path: TreePath },
    #[error("{path}: the record exists already")]
    NodeExists { path: TreePath },
    #[error("{path}: the record was changed by someone else (version does not match)")]
    BadVersion { path: TreePath },
    #[error("{path}: the record still has children")]
    NotEmpty { path: TreePath },
    #[error("{path}: an ephemeral record cannot have children")]
    NoChildrenForEphemerals { path: TreePath },
    #[error(transparent)]
    InvalidPath(#[from] InvalidPath),
    #[error("{path}: {size} bytes are more than the {limit} a record may hold")]
    TooLarge {
        path: TreePath,
        size: usize,
        limit: usize,
    },
    #[error("operation {index} of a multi failed, so none was applied")]
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
    #[error("{path}: not permitted by the server's access rules")]
    NoAuth { path: TreePath },
    #[error(
        "the connection was lost before the answer came; the operation may or may not have happened"
    )]
    ConnectionLoss,
    #[error("the session this operation belongs to has ended")]
    SessionExpired,
    #[error("the store has been closed")]
    Closed,
    #[error(
        "{} is open in another process; one process owns an embedded store, all others use the socket beside it",
        file.display()
    )]
    InUse { file: PathBuf },
    #[error("the lock was not free within {0:?}")]
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
