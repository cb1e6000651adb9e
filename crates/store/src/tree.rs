//! [`Tree`]: the interface of all store backends.
//!
//! Its semantics are a subset of ZooKeeper's:
//!
//! * A record has data and children. Its [`Stat`] counts changes, and a write can require a version.
//! * A sequential create appends ten digits: the number of children that were ever created below the parent.
//! * An ephemeral record belongs to a [`Session`] and is deleted with it. It cannot have children.
//! * Writes are linearized, and all readers observe them in that order. Operations on one handle take effect in the
//!   order in which they were started.
//! * [`Tree::multi`] applies all of its operations or none.
//!
//! Unlike in a plain ZooKeeper client, a handle outlives its session. When a session expires, the handle starts a new
//! one; ephemeral records and locks are lost, and watchers continue after a [`WatchEvent::Gap`]. An operation is never
//! executed in a later session than the one it was started in, because its caller may have held a lock; it fails with
//! [`Error::SessionExpired`]. [`Tree::pinned`] extends this to a sequence of operations.
//!
//! [`WatchEvent::Gap`]: crate::WatchEvent::Gap
//! [`Error::SessionExpired`]: crate::Error::SessionExpired

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

use crate::error::Result;
use crate::path::TreePath;
use crate::watch::{Once, Watcher};

/// The maximum size of a record's data: ZooKeeper's default limit of a packet, less space
/// for the path.
pub const MAX_DATA: usize = 1024 * 1024 - 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CreateMode {
    Persistent,
    PersistentSequential,
    Ephemeral,
    EphemeralSequential,
}

impl CreateMode {
    pub fn is_ephemeral(self) -> bool {
        matches!(self, Self::Ephemeral | Self::EphemeralSequential)
    }

    pub fn is_sequential(self) -> bool {
        matches!(self, Self::PersistentSequential | Self::EphemeralSequential)
    }
}

/// The version that a write requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    Any,
    Exactly(i32),
}

/// Metadata of a record, as in ZooKeeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Stat {
    /// Transaction that created the record.
    pub czxid: i64,
    /// Transaction that last changed its data.
    pub mzxid: i64,
    /// Transaction that last added or removed a child.
    pub pzxid: i64,
    /// Time of creation, milliseconds since 1970.
    pub ctime: i64,
    /// Time of the last change of data, milliseconds since 1970.
    pub mtime: i64,
    /// Changes of data.
    pub version: i32,
    /// Additions and removals of children.
    pub cversion: i32,
    /// Changes of access rights; Nodeyard makes none.
    pub aversion: i32,
    /// Session that owns an ephemeral record, 0 for others.
    pub ephemeral_owner: i64,
    pub data_length: i32,
    pub num_children: i32,
}

impl Stat {
    pub fn is_ephemeral(&self) -> bool {
        self.ephemeral_owner != 0
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub data: Bytes,
    pub stat: Stat,
}

/// The result of a create: the path, including the sequence number if sequential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    pub path: TreePath,
    pub stat: Stat,
}

/// The names of children in ascending order, and the stat of their parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub names: Vec<String>,
    pub stat: Stat,
}

/// One operation of a [`Tree::multi`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Create {
        path: TreePath,
        data: Bytes,
        mode: CreateMode,
    },
    Set {
        path: TreePath,
        data: Bytes,
        version: Version,
    },
    Delete {
        path: TreePath,
        version: Version,
    },
    /// Fails the multi unless the record has this version. Changes nothing.
    Check {
        path: TreePath,
        version: Version,
    },
}

impl Op {
    pub fn path(&self) -> &TreePath {
        match self {
            Op::Create { path, .. }
            | Op::Set { path, .. }
            | Op::Delete { path, .. }
            | Op::Check { path, .. } => path,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpOutcome {
    /// Without the stat, which ZooKeeper before 3.9 does not return for a create in a multi.
    Created(TreePath),
    Set(Stat),
    Deleted,
    Checked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub i64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The session state of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Session {
    /// No session: not connected yet, or the last one has expired.
    Connecting,
    Connected(SessionId),
    /// The connection is lost; the session may still exist on the server, with its ephemeral records and locks.
    Suspended(SessionId),
    /// Closed by its owner. Final.
    Closed,
}

impl Session {
    /// Returns the current session, if any.
    pub fn id(self) -> Option<SessionId> {
        match self {
            Session::Connected(id) | Session::Suspended(id) => Some(id),
            Session::Connecting | Session::Closed => None,
        }
    }
}

/// A handle on the store. See the [module documentation](self) for the contract.
#[async_trait]
pub trait Tree: fmt::Debug + Send + Sync + 'static {
    async fn create(&self, path: &TreePath, data: Bytes, mode: CreateMode) -> Result<Created>;

    async fn get(&self, path: &TreePath) -> Result<Record>;

    async fn stat(&self, path: &TreePath) -> Result<Option<Stat>>;

    async fn set(&self, path: &TreePath, data: Bytes, version: Version) -> Result<Stat>;

    async fn delete(&self, path: &TreePath, version: Version) -> Result<()>;

    async fn children(&self, path: &TreePath) -> Result<Listing>;

    /// Returns the children with their records, in ascending order of names. Children that are created or deleted
    /// concurrently may be missing.
    async fn list(&self, path: &TreePath) -> Result<Vec<(String, Record)>>;

    /// Applies all operations or none. A failure is [`Error::Multi`](crate::Error::Multi).
    async fn multi(&self, ops: Vec<Op>) -> Result<Vec<OpOutcome>>;

    /// Reports every change of this record and of everything below it, from now on and across
    /// reconnects. The record need not exist.
    async fn watch(&self, path: &TreePath) -> Result<Watcher>;

    /// Returns the current stat and a one-shot watch that fires when the record is next created, changed or
    /// deleted, or when the session or connection changes.
    async fn watch_once(&self, path: &TreePath) -> Result<(Option<Stat>, Once)>;

    /// Makes later reads see every write that any client had finished before the call.
    async fn sync(&self) -> Result<()>;

    fn session(&self) -> watch::Receiver<Session>;

    /// Returns the number of requests without response; 0 for backends without a server.
    fn unanswered(&self) -> usize {
        0
    }

    /// Returns a handle on the same connection whose operations fail with
    /// [`Error::SessionExpired`](crate::Error::SessionExpired) unless this session is the current one.
    fn pinned(&self, session: SessionId) -> Arc<dyn Tree>;

    /// Ends the session, which deletes its ephemeral records, and closes the handle.
    async fn close(&self);
}
