//! Typed access to requests, nodes, images and components.
//!
//! The records are shared with Zuul and Python launchers, so a record is changed only under its lock, after reading it
//! again: locking returns the current record with the guard ([`Held`]), or [`Attempt::Gone`]. Writes take the guard and
//! fail if the lock was lost.
//!
//! Records without data are treated as missing. They are being created, or were recreated by a locker of a deleted
//! record.

mod components;
mod images;
mod nodes;
mod requests;
mod shapes;
mod system_id;
mod views;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join;
use nodeyard_model::Record as ModelRecord;

pub use components::{Components, Registration};
pub use images::Images;
pub use nodes::Nodes;
pub use requests::{Lifetime, Requests};
pub use shapes::{ImageId, ImageRecord, ImageShape, NodeShape, PoolShape, RequestShape};
pub use views::Views;

use crate::error::{Error, Result};
use crate::ext;
use crate::lock::{Lock, LockGuard, Locks};
use crate::path::TreePath;
use crate::tree::{CreateMode, Created, Record, Stat, Tree, Version};
use crate::view::{Shape, View};

/// Typed access to the records of a store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Registry {
    tree: Arc<dyn Tree>,
    locks: Locks,
}

/// A record and its stat.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored<T> {
    pub value: T,
    pub stat: Stat,
}

/// A locked record, as read under the lock.
#[derive(Debug)]
pub struct Held<T> {
    pub value: T,
    pub stat: Stat,
    pub guard: LockGuard,
}

/// The result of locking a record.
#[derive(Debug)]
pub enum Attempt<T> {
    Held(Box<Held<T>>),
    /// The lock is held by another contender.
    Busy,
    /// The record does not exist.
    Gone,
}

impl<T> Attempt<T> {
    pub fn held(self) -> Option<Held<T>> {
        match self {
            Attempt::Held(held) => Some(*held),
            Attempt::Busy | Attempt::Gone => None,
        }
    }
}

/// How long to wait for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    None,
    For(Duration),
}

impl Registry {
    /// Must be called inside a runtime.
    pub fn new(tree: Arc<dyn Tree>) -> Self {
        let locks = Locks::new(Arc::clone(&tree));
        Self { tree, locks }
    }

    pub fn tree(&self) -> &Arc<dyn Tree> {
        &self.tree
    }

    pub fn locks(&self) -> &Locks {
        &self.locks
    }

    pub fn requests(&self) -> Requests<'_> {
        Requests { registry: self }
    }

    pub fn nodes(&self) -> Nodes<'_> {
        Nodes { registry: self }
    }

    pub fn images(&self) -> Images<'_> {
        Images { registry: self }
    }

    pub fn components(&self) -> Components<'_> {
        Components { registry: self }
    }

    fn view<S: Shape>(&self, root: &str, shape: S) -> Result<View<S>> {
        Ok(View::open(Arc::clone(&self.tree), path(root)?, shape))
    }

    /// Creates a record, and its directory if missing.
    async fn create(
        &self,
        dir: &TreePath,
        path: &TreePath,
        data: Vec<u8>,
        mode: CreateMode,
    ) -> Result<Created> {
        create(&*self.tree, dir, path, data, mode).await
    }

    /// Returns `None` if the record does not exist or has no data.
    async fn get<T: ModelRecord>(&self, path: &TreePath) -> Result<Option<Stored<T>>> {
        read(&*self.tree, path).await
    }

    /// Lists the records in a directory whose names are ids. Skips and logs malformed ones.
    async fn list<I, T>(&self, dir: &TreePath) -> Result<Vec<(I, Stored<T>)>>
    where
        I: std::str::FromStr,
        T: ModelRecord,
    {
        let children = match self.tree.list(dir).await {
            Ok(children) => children,
            Err(Error::NoNode { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut found = Vec::with_capacity(children.len());
        for (name, record) in children {
            let Ok(id) = name.parse() else { continue };
            match parse(&dir.join(&name)?, &record) {
                Ok(Some(value)) => found.push((id, value)),
                Ok(None) => {}
                Err(error) => tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "skipping malformed record"
                ),
            }
        }
        Ok(found)
    }

    /// Acquires a lock and reads the record that it protects.
    async fn lock_and_read<T: ModelRecord>(
        &self,
        lock: &Lock,
        path: &TreePath,
        patience: Patience,
    ) -> Result<Attempt<T>> {
        let guard = match patience {
            Patience::None => lock.try_acquire().await,
            Patience::For(limit) => lock.acquire_within(limit).await.map(Some),
        };
        let guard = match guard {
            Ok(Some(guard)) => guard,
            Ok(None) | Err(Error::LockTimeout(_)) => return Ok(Attempt::Busy),
            Err(Error::NoNode { .. }) => return Ok(Attempt::Gone),
            Err(error) => return Err(error),
        };
        // The server may lag behind the one that the previous holder wrote to. Pipelined: the read takes effect after
        // the sync.
        let tree = &**guard.tree();
        let (synced, read) = join(tree.sync(), read(tree, path)).await;
        let read = synced.and(read);
        match read {
            Ok(Some(Stored { value, stat })) => {
                Ok(Attempt::Held(Box::new(Held { value, stat, guard })))
            }
            Ok(None) => {
                guard.release().await?;
                Ok(Attempt::Gone)
            }
            Err(error) => {
                guard.release().await?;
                Err(error)
            }
        }
    }
}

async fn create(
    tree: &dyn Tree,
    dir: &TreePath,
    path: &TreePath,
    data: Vec<u8>,
    mode: CreateMode,
) -> Result<Created> {
    let data = Bytes::from(data);
    match tree.create(path, data.clone(), mode).await {
        Err(Error::NoNode { .. }) => {
            ext::ensure_path(tree, dir).await?;
            tree.create(path, data, mode).await
        }
        result => result,
    }
}

/// Writes a record under its lock, unconditionally.
async fn store<T: ModelRecord>(guard: &LockGuard, path: &TreePath, value: &T) -> Result<Stat> {
    let data = Bytes::from(value.to_json());
    guard.tree().set(path, data, Version::Any).await
}

async fn read<T: ModelRecord>(tree: &dyn Tree, path: &TreePath) -> Result<Option<Stored<T>>> {
    match ext::get_opt(tree, path).await? {
        Some(record) => parse(path, &record),
        None => Ok(None),
    }
}

fn parse<T: ModelRecord>(path: &TreePath, record: &Record) -> Result<Option<Stored<T>>> {
    if record.data.is_empty() {
        return Ok(None);
    }
    match T::from_json(&record.data) {
        Ok(value) => Ok(Some(Stored {
            value,
            stat: record.stat,
        })),
        Err(source) => Err(Error::Malformed {
            path: path.clone(),
            source,
        }),
    }
}

/// Parses the id from the path of a created sequential record.
fn new_id<I: std::str::FromStr>(created: &Created) -> Result<I> {
    created.path.name().parse().map_err(|_| Error::Backend {
        context: format!("{}: invalid sequence number from the store", created.path),
        source: "expected ten digits".into(),
    })
}

fn path(text: impl Into<Arc<str>>) -> Result<TreePath> {
    Ok(TreePath::new(text)?)
}
