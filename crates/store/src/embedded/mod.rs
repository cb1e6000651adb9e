//! The embedded backend: the tree in one file, owned by one process.
//!
//! ```text
//!  handle ──request──► queue ──► writer thread ──group──► file (commit, fsync)
//!    ▲                               │
//!    └──────── answer ◄──────────────┤──► watchers
//!    reads ──► snapshot ◄────────────┘
//! ```
//!
//! *Writes* of all sessions go through one thread, [`writer`], which commits them in groups. An acknowledged write of a
//! persistent record is durable.
//!
//! *Reads* use the latest published snapshot and never wait for a sync. Single records are read on the caller's thread,
//! lists on the blocking pool. A read waits for earlier writes of the same handle, and may see later ones.
//!
//! *Sessions* last as long as their handles. Other processes access the store through [`crate::socket`].

mod batch;
mod database;
mod dry_run;
mod file_error;
mod format;
mod hub;
mod resync_storage;
mod session;
mod snapshot;
mod storage_file;
mod writer;

#[cfg(test)]
mod fault_tests;

use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::thread;

use tokio::sync::{RwLock, oneshot};

use crate::error::Result;
use crate::tree::Tree;

use database::{StoreFile, epoch_base};
use file_error::{StorageOperation, StoreFileError};
use hub::WatchHub;
use storage_file::{DiskFile, StorageFile};
use writer::{StoreWriter, WriterCommand, WriterShared};

pub(crate) use batch::WriteOutcome;
pub(crate) use hub::ChangeListener;
pub(crate) use session::SessionTree;
pub(crate) use snapshot::Snapshot;
pub(crate) use writer::WriteOps;

/// The store of this process. [`Embedded::session`] creates handles.
#[derive(Debug)]
pub struct Embedded {
    shared: Arc<WriterShared>,
    queue: mpsc::Sender<WriterCommand>,
    next_session: AtomicI64,
}

impl Embedded {
    /// Returns whether there is a store in this directory.
    pub fn exists(directory: &Path) -> bool {
        DiskFile::new(directory).name().exists()
    }

    /// Opens or creates the store in this directory, verifies it, and deletes the ephemeral records of the previous
    /// process. Rejects a damaged file without changing it. Blocks.
    pub fn open(directory: &Path) -> Result<Arc<Self>> {
        let storage_file = DiskFile::new(directory);
        storage_file
            .prepare()
            .and_then(|()| storage_file.dry_run())
            .map_err(|file_error| {
                file_error.to_error(StorageOperation::Open, &storage_file.name())
            })?;
        Self::open_on(Box::new(storage_file))
    }

    fn open_on(storage_file: Box<dyn StorageFile>) -> Result<Arc<Self>> {
        let file = storage_file.name();
        Self::start(storage_file)
            .map_err(|file_error| file_error.to_error(StorageOperation::Open, &file))
    }

    fn start(storage_file: Box<dyn StorageFile>) -> Result<Arc<Self>, StoreFileError> {
        let store = StoreFile::open(&*storage_file, 0)?;
        let epoch = store.start_epoch(writer::now())?;
        let zxid = epoch_base(epoch);
        let shared = Arc::new(WriterShared {
            current: RwLock::new(Arc::new(store.snapshot(zxid)?)),
            hub: WatchHub::default(),
        });
        let (queue, requests) = mpsc::channel();
        let writer = StoreWriter::new(storage_file, store, zxid, shared.clone());
        thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run(requests))?;
        Ok(Arc::new(Self {
            shared,
            queue,
            next_session: AtomicI64::new(epoch_base(epoch) + 1),
        }))
    }

    /// Creates a handle with its own session, which ends by [`Tree::close`] or when the last clone of
    /// the handle is dropped.
    pub fn session(&self) -> Arc<dyn Tree> {
        Arc::new(self.create_session())
    }

    pub(crate) fn create_session(&self) -> SessionTree {
        let id = self.next_session.fetch_add(1, Ordering::Relaxed);
        SessionTree::begin(id, self.shared.clone(), self.queue.clone())
    }

    /// Calls the listener with every change from now on, until it is dropped.
    pub(crate) fn add_listener(&self, listener: Weak<dyn ChangeListener>) {
        self.shared.hub.add_listener(listener);
    }

    /// Calls `look` with the latest state. No change is published meanwhile, so watches that it adds to a listener
    /// receive exactly the changes after this state.
    pub(crate) async fn with_latest<T>(&self, look: impl FnOnce(&Arc<Snapshot>) -> T) -> T {
        look(&*self.shared.current.read().await)
    }

    /// Ends all sessions and closes the file, so that another process can open it.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.queue.send(WriterCommand::Close { done }).is_ok() {
            // An error means that the writer has already ended.
            let _ = closed.await;
        }
    }
}
