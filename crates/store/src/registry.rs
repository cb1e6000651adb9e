//! Requests, nodes, images and components as typed records, with the rules of how each is written.
//!
//! Zuul and Python launchers work on the same records. What keeps all of them safe is that a record is
//! changed only under its lock and only after it was read again under that lock: therefore locking
//! something returns the fresh record with the guard ([`Held`]), or tells that it is [`Attempt::Gone`].
//! Writes take the guard, and go through its session: when the lock is lost, they have no effect.
//!
//! Records without data do not exist for us. They are about to be filled, or they are ghosts that a
//! locker made when it created the parents of its lock anew.

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

/// The records of a store. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Registry {
    tree: Arc<dyn Tree>,
    locks: Locks,
}

/// A record as it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored<T> {
    pub value: T,
    pub stat: Stat,
}

/// A record whose lock we hold, as it was read under that lock.
#[derive(Debug)]
pub struct Held<T> {
    pub value: T,
    pub stat: Stat,
    pub guard: LockGuard,
}

/// What became of an attempt to lock a record.
#[derive(Debug)]
pub enum Attempt<T> {
    Held(Box<Held<T>>),
    /// Somebody else has the lock.
    Busy,
    /// The record does not exist any more.
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

/// How long to wait for a lock that somebody else has.
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

    /// Creates a record in a directory, which is made if it is missing.
    async fn create(
        &self,
        dir: &TreePath,
        path: &TreePath,
        data: Vec<u8>,
        mode: CreateMode,
    ) -> Result<Created> {
        create(&*self.tree, dir, path, data, mode).await
    }

    /// None if there is no record, or none with data.
    async fn get<T: ModelRecord>(&self, path: &TreePath) -> Result<Option<Stored<T>>> {
        read(&*self.tree, path).await
    }

    /// The records in a directory whose names are ids. Malformed ones are left out and logged.
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
                    "malformed record left out"
                ),
            }
        }
        Ok(found)
    }

    /// Takes a lock and reads the record that it protects.
    async fn hold<T: ModelRecord>(
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
        // A follower may lag behind the one that granted the lock to whoever had it before us.
        // Begun together: the read takes effect after the sync, and saves a round trip.
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

/// Writes under a lock replace whatever is there: the lock is what makes that safe.
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

/// The name that the store has given to a sequential record, as an id.
fn new_id<I: std::str::FromStr>(created: &Created) -> Result<I> {
    created.path.name().parse().map_err(|_| Error::Backend {
        context: format!(
            "{}: the store gave a number that is not an id",
            created.path
        ),
        source: "expected ten digits".into(),
    })
}

fn path(text: impl Into<Arc<str>>) -> Result<TreePath> {
    Ok(TreePath::new(text)?)
}
