//! Helpers composed of several [`Tree`] operations. They are not atomic.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt, join_all};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::error::{Error, Result};
use crate::path::TreePath;
use crate::tree::{CreateMode, Record, Session, SessionId, Tree, Version};

/// The delay before a retry.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// How often a recursive delete starts over when children are added concurrently.
const DELETE_ATTEMPTS: usize = 32;

/// Creates the record and all missing parents, empty and persistent. One round trip when only the
/// record itself is missing or everything exists.
pub async fn ensure_path(tree: &dyn Tree, path: &TreePath) -> Result<()> {
    let mut missing = vec![path.clone()];
    while let Some(next) = missing.last() {
        match tree
            .create(next, Bytes::new(), CreateMode::Persistent)
            .await
        {
            Ok(_) | Err(Error::NodeExists { .. }) => {
                missing.pop();
            }
            Err(Error::NoNode { .. }) => match next.parent() {
                Some(parent) if !parent.is_root() => missing.push(parent),
                // The parent is the root of the tree, which is there unless the chroot is missing.
                _ => return Err(Error::NoNode { path: next.clone() }),
            },
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Deletes the record and everything below it, children first. Concurrent deletions are ignored;
/// records that are added concurrently are deleted too.
pub async fn delete_recursive(tree: &dyn Tree, path: &TreePath) -> Result<()> {
    delete_tree(tree, path.clone()).await
}

fn delete_tree(tree: &dyn Tree, path: TreePath) -> BoxFuture<'_, Result<()>> {
    async move {
        for _ in 0..DELETE_ATTEMPTS {
            match tree.delete(&path, Version::Any).await {
                Ok(()) | Err(Error::NoNode { .. }) => return Ok(()),
                Err(Error::NotEmpty { .. }) => {}
                Err(error) => return Err(error),
            }
            let names = match tree.children(&path).await {
                Ok(listing) => listing.names,
                Err(Error::NoNode { .. }) => return Ok(()),
                Err(error) => return Err(error),
            };
            let below = names
                .iter()
                .map(|name| Ok(delete_tree(tree, path.join(name)?)))
                .collect::<Result<Vec<_>>>()?;
            for result in join_all(below).await {
                result?;
            }
        }
        Err(Error::NotEmpty { path })
    }
    .boxed()
}

/// Returns the record, or `None` if it does not exist.
pub async fn get_opt(tree: &dyn Tree, path: &TreePath) -> Result<Option<Record>> {
    match tree.get(path).await {
        Ok(record) => Ok(Some(record)),
        Err(Error::NoNode { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Parses a record as JSON. Returns `None` if it does not exist or is invalid.
pub async fn read_json<T: DeserializeOwned>(tree: &dyn Tree, path: &TreePath) -> Result<Option<T>> {
    let record = get_opt(tree, path).await?;
    Ok(record.and_then(|record| serde_json::from_slice(&record.data).ok()))
}

/// Updates a JSON record by compare-and-swap and returns the new value. `change` may be called
/// several times; if it changes nothing, nothing is written.
pub async fn change_json<T>(tree: &dyn Tree, path: &TreePath, change: impl Fn(&mut T)) -> Result<T>
where
    T: Default + Clone + PartialEq + Serialize + DeserializeOwned,
{
    loop {
        let record = get_opt(tree, path).await?;
        let known = record
            .as_ref()
            .and_then(|record| serde_json::from_slice::<T>(&record.data).ok());
        let mut value = known.clone().unwrap_or_default();
        change(&mut value);
        if known.unwrap_or_default() == value {
            return Ok(value);
        }
        // Cannot fail for the types that are stored.
        let data = Bytes::from(serde_json::to_vec(&value).unwrap_or_default());
        let written = match record {
            Some(record) => {
                let version = Version::Exactly(record.stat.version);
                tree.set(path, data, version).await.map(drop)
            }
            None => {
                let mode = CreateMode::Persistent;
                tree.create(path, data, mode).await.map(drop)
            }
        };
        match written {
            Ok(()) => return Ok(value),
            Err(Error::BadVersion { .. } | Error::NodeExists { .. }) => {}
            Err(Error::NoNode { .. }) => {
                if let Some(parent) = path.parent() {
                    ensure_path(tree, &parent).await?;
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Returns the names of the children; empty if the record does not exist.
pub async fn child_names(tree: &dyn Tree, path: &TreePath) -> Result<Vec<String>> {
    match tree.children(path).await {
        Ok(listing) => Ok(listing.names),
        Err(Error::NoNode { .. }) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Deletes the record. Returns false if it does not exist.
pub async fn delete_opt(tree: &dyn Tree, path: &TreePath) -> Result<bool> {
    match tree.delete(path, Version::Any).await {
        Ok(()) => Ok(true),
        Err(Error::NoNode { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Waits until connected and returns the session.
pub async fn connected(tree: &dyn Tree) -> Result<SessionId> {
    let mut sessions = tree.session();
    let found = sessions
        .wait_for(|session| matches!(session, Session::Connected(_) | Session::Closed))
        .await
        .map_err(|_| Error::Closed)?;
    found.id().ok_or(Error::Closed)
}

/// Waits until the session has ended.
pub(crate) async fn session_over(mut sessions: watch::Receiver<Session>, session: SessionId) {
    // An error means that the handle was dropped, and the session with it.
    let _ = sessions.wait_for(|now| now.id() != Some(session)).await;
}

/// Waits until the connection or session is reestablished.
pub async fn reconnected(tree: &dyn Tree) -> Result<SessionId> {
    tokio::time::sleep(RETRY_DELAY).await;
    connected(tree).await
}

/// Retries an idempotent operation on connection loss.
pub async fn persist<T, F>(tree: &dyn Tree, mut operation: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    loop {
        match operation().await {
            Err(error) if error.is_connection() => {}
            result => return result,
        }
        reconnected(tree).await?;
    }
}
