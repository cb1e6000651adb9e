//! The contract that every backend keeps, and that everything above the store is written against.
//!
//! It is ZooKeeper's, reduced to what Nodeyard needs:
//!
//! * A record has data and children. Its [`Stat`] counts changes, and a write can demand the version
//!   it has seen.
//! * A sequential create appends ten digits: how many children the parent has ever had. Every create
//!   below the same parent counts, deletes do not turn the counter back.
//! * An ephemeral record belongs to a [`Session`] and vanishes with it. It cannot have children.
//! * Writes take effect one after the other; every reader sees them in that order. Operations begun
//!   on one handle take effect in the order in which they were begun.
//! * [`Tree::multi`] applies all of its operations or none.
//!
//! What differs from a plain ZooKeeper client: a handle outlives its session. When the server ends the
//! session, the handle starts a new one by itself; ephemeral records and locks are gone then,
//! watchers go on after a [`WatchEvent::Gap`]. An operation never moves into a later session than
//! the one it was begun in: it fails with [`Error::SessionExpired`], because whoever began it may have
//! believed to hold a lock. [`Tree::pinned`] extends that guard over a whole piece of work.
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

/// More than this does not fit into a record: ZooKeeper's default for a whole packet, less some room
/// for the path around the data.
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

/// Which version a write expects to replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Version {
    Any,
    Exactly(i32),
}

/// What the store knows about a record, with ZooKeeper's meaning of each number.
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

/// Result of a create: the path with the sequence number, if one was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    pub path: TreePath,
    pub stat: Stat,
}

/// Names of the children in ascending order, with the stat of their parent.
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
    /// Nothing is changed, but the whole multi fails unless the record has this version.
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
    /// The path only: ZooKeeper before 3.9 does not tell the stat of what a multi has created.
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

/// Where a handle stands with its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Session {
    /// No session yet, or the last one has ended and the next is not there yet.
    Connecting,
    Connected(SessionId),
    /// The connection is gone; the session may still live on the server. Ephemeral records and locks
    /// are ours until we hear otherwise, but we cannot know.
    Suspended(SessionId),
    /// Closed by its owner; this is final.
    Closed,
}

impl Session {
    /// The session that is believed to live, if any.
    pub fn id(self) -> Option<SessionId> {
        match self {
            Session::Connected(id) | Session::Suspended(id) => Some(id),
            Session::Connecting | Session::Closed => None,
        }
    }
}

/// A handle on the store. See the module's text for the contract.
#[async_trait]
pub trait Tree: fmt::Debug + Send + Sync + 'static {
    async fn create(&self, path: &TreePath, data: Bytes, mode: CreateMode) -> Result<Created>;

    async fn get(&self, path: &TreePath) -> Result<Record>;

    async fn stat(&self, path: &TreePath) -> Result<Option<Stat>>;

    async fn set(&self, path: &TreePath, data: Bytes, version: Version) -> Result<Stat>;

    async fn delete(&self, path: &TreePath, version: Version) -> Result<()>;

    async fn children(&self, path: &TreePath) -> Result<Listing>;

    /// The children with their records, in ascending order of names. Children that come or go
    /// meanwhile may or may not be in it.
    async fn list(&self, path: &TreePath) -> Result<Vec<(String, Record)>>;

    /// Applies all operations or none. A failure is [`Error::Multi`](crate::Error::Multi).
    async fn multi(&self, ops: Vec<Op>) -> Result<Vec<OpOutcome>>;

    /// Reports every change of this record and of everything below it, from now on and across
    /// reconnects. The record need not exist.
    async fn watch(&self, path: &TreePath) -> Result<Watcher>;

    /// The stat as it is now, and a promise to tell once when the record is next created, changed or
    /// deleted, or when the session or connection changes.
    async fn watch_once(&self, path: &TreePath) -> Result<(Option<Stat>, Once)>;

    /// After this returns, reads see every write that any client had finished before the call.
    async fn sync(&self) -> Result<()>;

    fn session(&self) -> watch::Receiver<Session>;

    /// Requests to a server that are not answered yet; none where there is no server.
    fn unanswered(&self) -> usize {
        0
    }

    /// A handle on the same connection whose operations fail with
    /// [`Error::SessionExpired`](crate::Error::SessionExpired) unless this session is the current one.
    fn pinned(&self, session: SessionId) -> Arc<dyn Tree>;

    /// Ends the session, so that its ephemeral records go at once, and then the handle.
    async fn close(&self);
}
