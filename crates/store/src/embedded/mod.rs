//! The embedded backend: the tree in one file of one process, with nothing else installed.
//!
//! ```text
//!  handle ──request──► queue ──► writer thread ──group──► file (commit, fsync)
//!    ▲                               │
//!    └──────── answer ◄──────────────┤──► watchers
//!    reads ──► snapshot ◄────────────┘
//! ```
//!
//! *Writes* of all sessions go through one thread, [`writer`], which commits them in groups. An answered
//! write of a persistent record is on the disk.
//!
//! *Reads* use the snapshot that the writer published last. They never wait for the disk to sync: the
//! storage keeps old pages while a commit is under way. A single record is read on the caller's thread,
//! since that is a few lookups in memory or in the system's cache; lists go to the blocking pool. A read
//! begun while earlier writes of the same handle are under way waits for those, and may then see
//! later writes of that handle, too.
//!
//! *Sessions* live as long as somebody holds a handle. One process owns the file; others reach it through
//! [`crate::socket`].

mod batch;
mod database;
mod fault;
mod format;
mod hub;
mod medium;
mod rehearsal;
mod resync;
mod session;
mod snapshot;
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

use database::{Store, epoch_base};
use fault::{Doing, Fault};
use hub::Hub;
use medium::{FileMedium, Medium};
use writer::{Request, Shared, Writer};

pub(crate) use batch::Outcome;
pub(crate) use hub::Listener;
pub(crate) use session::SessionTree;
pub(crate) use snapshot::Snapshot;
pub(crate) use writer::Work;

/// The store of this process. Handles on it come from [`Embedded::session`].
#[derive(Debug)]
pub struct Embedded {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Request>,
    next_session: AtomicI64,
}

impl Embedded {
    /// True if there is a store in this directory.
    pub fn exists(directory: &Path) -> bool {
        FileMedium::new(directory).name().exists()
    }

    /// Opens the store in this directory, or makes a new one. Ephemeral records of the process that
    /// had it before are gone when this returns. It blocks; the whole file is checked, and a damaged one is refused as
    /// it is.
    pub fn open(directory: &Path) -> Result<Arc<Self>> {
        let medium = FileMedium::new(directory);
        medium
            .prepare()
            .and_then(|()| medium.rehearse())
            .map_err(|fault| fault.while_doing(Doing::Open, &medium.name()))?;
        Self::open_on(Box::new(medium))
    }

    fn open_on(medium: Box<dyn Medium>) -> Result<Arc<Self>> {
        let file = medium.name();
        Self::start(medium).map_err(|fault| fault.while_doing(Doing::Open, &file))
    }

    fn start(medium: Box<dyn Medium>) -> Result<Arc<Self>, Fault> {
        let store = Store::open(&*medium, 0)?;
        let epoch = store.begin_epoch(writer::now())?;
        let zxid = epoch_base(epoch);
        let shared = Arc::new(Shared {
            current: RwLock::new(Arc::new(store.snapshot(zxid)?)),
            hub: Hub::default(),
        });
        let (queue, requests) = mpsc::channel();
        let writer = Writer::new(medium, store, zxid, shared.clone());
        thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run(requests))?;
        Ok(Arc::new(Self {
            shared,
            queue,
            next_session: AtomicI64::new(epoch_base(epoch) + 1),
        }))
    }

    /// A handle with a session of its own, which ends with [`Tree::close`] or when the last clone of
    /// the handle is dropped.
    pub fn session(&self) -> Arc<dyn Tree> {
        Arc::new(self.begin_session())
    }

    pub(crate) fn begin_session(&self) -> SessionTree {
        let id = self.next_session.fetch_add(1, Ordering::Relaxed);
        SessionTree::begin(id, self.shared.clone(), self.queue.clone())
    }

    /// The listener hears of every change from now on, until it is dropped.
    pub(crate) fn listen(&self, listener: Weak<dyn Listener>) {
        self.shared.hub.listen(listener);
    }

    /// Looks at the newest state. No change is published while `look` runs: what it adds to a
    /// listener's watches is told of everything after this state and of nothing before.
    pub(crate) async fn look<T>(&self, look: impl FnOnce(&Arc<Snapshot>) -> T) -> T {
        look(&*self.shared.current.read().await)
    }

    /// Ends all sessions and closes the file. When this returns, another process can open it.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.queue.send(Request::Close { done }).is_ok() {
            // An error means that the writer has ended already.
            let _ = closed.await;
        }
    }
}
