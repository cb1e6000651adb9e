//! Registration of running components.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nodeyard_model::{Component, ComponentKind, PoolComponent, Record as ModelRecord, layout};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::{PoolShape, Registry, path};
use crate::error::{Error, Result};
use crate::ext;
use crate::path::TreePath;
use crate::tree::{CreateMode, Tree, Version};
use crate::view::View;

/// The delay after errors other than connection loss.
const RETRY_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
pub struct Components<'a> {
    pub(super) registry: &'a Registry,
}

/// Keeps a component registered across sessions, until it is dropped or
/// [`Registration::end`]s.
#[derive(Debug)]
pub struct Registration {
    record: watch::Sender<Bytes>,
    path: watch::Receiver<Option<TreePath>>,
    /// Dropping it ends the task.
    end: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Components<'_> {
    pub fn pool_view(&self) -> Result<View<PoolShape>> {
        let root = layout::components(ComponentKind::Pool);
        self.registry.view(&root, PoolShape)
    }

    /// Creates the directories of all kinds, which Python components expect.
    pub async fn prepare(&self) -> Result<()> {
        for kind in ComponentKind::ALL {
            let dir = path(layout::components(*kind))?;
            ext::ensure_path(&*self.registry.tree, &dir).await?;
        }
        Ok(())
    }

    /// Launchers or builders.
    pub async fn list(&self, kind: ComponentKind) -> Result<Vec<Component>> {
        self.list_in(kind).await
    }

    pub async fn pools(&self) -> Result<Vec<PoolComponent>> {
        self.list_in(ComponentKind::Pool).await
    }

    async fn list_in<T: ModelRecord>(&self, kind: ComponentKind) -> Result<Vec<T>> {
        let dir = path(layout::components(kind))?;
        let list: Vec<(String, _)> = self.registry.list(&dir).await?;
        Ok(list.into_iter().map(|(_, stored)| stored.value).collect())
    }

    /// Registers a launcher or a builder.
    pub fn register(&self, component: &Component) -> Result<Registration> {
        let prefix = path(layout::component_prefix(
            component.kind,
            &component.hostname,
        ))?;
        Ok(self.begin(prefix, component.to_json()))
    }

    pub fn register_pool(&self, pool: &PoolComponent) -> Result<Registration> {
        let prefix = path(layout::component_prefix(
            ComponentKind::Pool,
            &pool.hostname,
        ))?;
        Ok(self.begin(prefix, pool.to_json()))
    }

    fn begin(&self, prefix: TreePath, data: Vec<u8>) -> Registration {
        let (record, wanted) = watch::channel(Bytes::from(data));
        let (place, path) = watch::channel(None);
        let (end, ended) = oneshot::channel();
        let announcer = ComponentAnnouncer {
            tree: Arc::clone(&self.registry.tree),
            prefix,
            wanted,
            place,
        };
        Registration {
            record,
            path,
            end: Some(end),
            task: tokio::spawn(announcer.run(ended)),
        }
    }
}

impl Registration {
    /// Updates the registered record, in the background.
    pub fn update(&self, component: &impl ModelRecord) {
        let data = Bytes::from(component.to_json());
        self.record.send_if_modified(|current| {
            let changed = *current != data;
            *current = data;
            changed
        });
    }

    /// Returns the path of the current registration, which changes with each session.
    pub fn path(&self) -> watch::Receiver<Option<TreePath>> {
        self.path.clone()
    }

    /// Unregisters the component and waits until its record is deleted.
    pub async fn end(mut self) {
        self.end.take();
        // The task neither panics nor is aborted.
        let _ = self.task.await;
    }
}

struct ComponentAnnouncer {
    tree: Arc<dyn Tree>,
    prefix: TreePath,
    wanted: watch::Receiver<Bytes>,
    place: watch::Sender<Option<TreePath>>,
}

/// The component's record in the current session.
struct AnnouncedRecord {
    path: TreePath,
    version: i32,
    data: Bytes,
}

impl ComponentAnnouncer {
    async fn run(mut self, mut ended: oneshot::Receiver<()>) {
        loop {
            let announced = tokio::select! {
                announced = self.announce() => announced,
                // An error means that the registration was dropped.
                _ = &mut ended => return self.unregister().await,
            };
            match announced {
                Ok(()) => {}
                Err(error) if error.is_connection() => {}
                Err(Error::Closed) => return,
                Err(error) => {
                    tracing::warn!(
                        prefix = %self.prefix,
                        error = &error as &dyn std::error::Error,
                        "failed to register component; retrying"
                    );
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
            if ext::reconnected(&*self.tree).await.is_err() {
                return;
            }
        }
    }

    /// Registers in the current session and applies updates until the record is deleted or the session ends.
    async fn announce(&mut self) -> Result<()> {
        let session = ext::connected(&*self.tree).await?;
        let tree = self.tree.pinned(session);
        let mut record = match self.find(&*tree, session.0).await? {
            Some(record) => record,
            None => self.create(&*tree).await?,
        };
        self.place.send_replace(Some(record.path.clone()));
        loop {
            let data = self.wanted.borrow_and_update().clone();
            if data != record.data {
                let version = Version::Exactly(record.version);
                match tree.set(&record.path, data.clone(), version).await {
                    Ok(stat) => {
                        record.version = stat.version;
                        record.data = data;
                    }
                    // Changes by others are overwritten.
                    Err(Error::BadVersion { .. }) => {
                        record.version = tree.get(&record.path).await?.stat.version;
                    }
                    Err(error) => return Err(error),
                }
                continue;
            }
            let (there, touched) = tree.watch_once(&record.path).await?;
            if there.is_none() {
                tracing::warn!(path = %record.path, "component record was deleted; registering it again");
                return Ok(());
            }
            tokio::select! {
                () = ext::session_over(self.tree.session(), session) => return Ok(()),
                () = touched.fired() => {}
                changed = self.wanted.changed() => if changed.is_err() {
                    return std::future::pending().await;
                },
            }
        }
    }

    async fn create(&self, tree: &dyn Tree) -> Result<AnnouncedRecord> {
        let data = self.wanted.borrow().clone();
        let mode = CreateMode::EphemeralSequential;
        let created = match tree.create(&self.prefix, data.clone(), mode).await {
            Err(Error::NoNode { path }) => {
                ext::ensure_path(tree, &self.dir().ok_or(Error::NoNode { path })?).await?;
                tree.create(&self.prefix, data.clone(), mode).await?
            }
            result => result?,
        };
        Ok(AnnouncedRecord {
            path: created.path,
            version: created.stat.version,
            data,
        })
    }

    /// Finds the record of this session, in case the response of a create was lost. Several pools may share a session,
    /// but each has different data.
    async fn find(&self, tree: &dyn Tree, session: i64) -> Result<Option<AnnouncedRecord>> {
        let Some(dir) = self.dir() else {
            return Ok(None);
        };
        tree.sync().await?;
        let children = match tree.list(&dir).await {
            Err(Error::NoNode { .. }) => return Ok(None),
            result => result?,
        };
        let known = self.place.borrow().clone();
        let data = self.wanted.borrow().clone();
        for (name, record) in children {
            let path = dir.join(&name)?;
            let is_ours = record.stat.ephemeral_owner == session
                && (Some(&path) == known.as_ref()
                    || name.starts_with(self.prefix.name()) && record.data == data);
            if is_ours {
                return Ok(Some(AnnouncedRecord {
                    path,
                    version: record.stat.version,
                    data: record.data,
                }));
            }
        }
        Ok(None)
    }

    fn dir(&self) -> Option<TreePath> {
        self.prefix.parent()
    }

    async fn unregister(self) {
        let removed = ext::persist(&*self.tree, || self.remove()).await;
        self.place.send_replace(None);
        if let Err(error) = removed
            && !matches!(error, Error::Closed)
        {
            tracing::warn!(
                prefix = %self.prefix,
                error = &error as &dyn std::error::Error,
                "failed to unregister component; it remains until the session ends"
            );
        }
    }

    /// Deletes the record, also if its create was in flight.
    async fn remove(&self) -> Result<()> {
        let session = ext::connected(&*self.tree).await?;
        if let Some(record) = self.find(&*self.tree, session.0).await? {
            ext::delete_opt(&*self.tree, &record.path).await?;
        }
        Ok(())
    }
}
