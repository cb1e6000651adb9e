//! The task that updates a view: turns watch events into reads, and reads into changes.
//!
//! At most one read per record is in flight. Events that arrive meanwhile cause another read after it, because the
//! first may have been executed before the event's change.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot};

use super::walk::{self, MAX_CONCURRENT_READS};
use super::{Kind, Shape, ViewInner};
use crate::error::{Error, Result};
use crate::ext;
use crate::path::TreePath;
use crate::tree::{Record, Session};
use crate::watch::{WatchEvent, Watcher};

/// The delay before listing everything again after an error.
const INITIAL_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);

type Barriers = mpsc::UnboundedReceiver<oneshot::Sender<()>>;

type ReadResult<I> = (I, TreePath, Result<Option<Record>>);

struct ViewFeed<S: Shape> {
    inner: Arc<ViewInner<S>>,
    /// Everything must be listed again.
    stale: bool,
    /// The state of each record with queued or running reads.
    reads: HashMap<S::Id, ReadState>,
    /// The queued reads.
    queue: VecDeque<(S::Id, TreePath)>,
    running: FuturesUnordered<BoxFuture<'static, ReadResult<S::Id>>>,
    barriers: Vec<SyncBarrier<S::Id>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadState {
    Queued,
    Running,
    /// One is running and another must follow.
    RunningAndAgain,
}

/// A caller waiting for the reads that were outstanding when it called.
struct SyncBarrier<I> {
    /// How many reads of each record.
    outstanding: HashMap<I, u8>,
    done: oneshot::Sender<()>,
}

/// Updates the view until the store is closed.
pub(super) async fn run<S: Shape>(inner: Arc<ViewInner<S>>, mut barriers: Barriers) {
    let tree = Arc::clone(&inner.tree);
    match ext::persist(&*tree, || tree.watch(&inner.root)).await {
        Ok(watcher) => {
            let mut feed = ViewFeed {
                inner: Arc::clone(&inner),
                stale: true,
                reads: HashMap::new(),
                queue: VecDeque::new(),
                running: FuturesUnordered::new(),
                barriers: Vec::new(),
            };
            feed.follow(watcher, &mut barriers).await;
        }
        Err(Error::Closed) => {}
        Err(error) => tracing::error!(
            root = %inner.root,
            error = &error as &dyn std::error::Error,
            "failed to set watch; the view will not be updated"
        ),
    }
    inner.write().close();
}

impl<S: Shape> ViewFeed<S> {
    async fn follow(&mut self, mut watcher: Watcher, barriers: &mut Barriers) {
        loop {
            if self.stale && self.list_all().await.is_err() {
                return;
            }
            self.start_reads();
            self.update_backlog(watcher.waiting());
            tokio::select! {
                event = watcher.next() => match event {
                    Some(event) => self.handle_event(&event),
                    None => return,
                },
                Some(read) = self.running.next(), if !self.running.is_empty() => {
                    self.finish_read(read);
                }
                Some(done) = barriers.recv() => {
                    while let Some(event) = watcher.try_next() {
                        self.handle_event(&event);
                    }
                    self.update_backlog(0);
                    self.wait_for_reads(done);
                }
            }
        }
    }

    /// Lists everything, retrying until it succeeds. Fails only when the store is closed.
    async fn list_all(&mut self) -> Result<()> {
        let tree = Arc::clone(&self.inner.tree);
        let mut pause = INITIAL_RETRY_DELAY;
        let seen = loop {
            ext::connected(&*tree).await?;
            // The listing includes the outstanding reads.
            self.reads.clear();
            self.queue.clear();
            self.running.clear();
            self.inner.write().start_listing();
            match walk::walk(&self.inner).await {
                Ok(seen) => break seen,
                Err(error) if error.is_connection() => {
                    ext::reconnected(&*tree).await?;
                }
                Err(Error::Closed) => return Err(Error::Closed),
                Err(error) => {
                    tracing::warn!(
                        root = %self.inner.root,
                        error = &error as &dyn std::error::Error,
                        "failed to load view; retrying, using the last known state until then"
                    );
                    let mut sessions = tree.session();
                    let closed = sessions.wait_for(|session| *session == Session::Closed);
                    // Either way, it is tried again.
                    let _ = tokio::time::timeout(pause, closed).await;
                    pause = (pause * 2).min(MAX_RETRY_DELAY);
                }
            }
        };
        self.inner.write().finish_listing(&seen);
        self.stale = false;
        for barrier in self.barriers.drain(..) {
            // Fails if the caller was dropped.
            let _ = barrier.done.send(());
        }
        Ok(())
    }

    fn handle_event(&mut self, event: &WatchEvent) {
        let (path, exists) = match event {
            WatchEvent::Gap => {
                self.stale = true;
                return;
            }
            WatchEvent::Created(path) | WatchEvent::Changed(path) => (path, true),
            WatchEvent::Deleted(path) => (path, false),
        };
        match self.inner.shape.kind(path) {
            Kind::Contender(id) => {
                let mut state = self.inner.write();
                if exists {
                    state.add_contender(&id, path.name());
                } else {
                    state.remove_contender(&id, path.name());
                }
            }
            Kind::Record { id, .. } if exists => self.schedule_read(id, path),
            Kind::Record { id, .. } if self.reads.contains_key(&id) => {
                // The read in flight may return the deleted record, so another one must follow.
                self.inner.write().remove_deleted(&id);
                self.schedule_read(id, path);
            }
            Kind::Record { id, .. } => self.inner.write().remove(&id),
            Kind::Directory | Kind::Nothing => {}
        }
    }

    fn schedule_read(&mut self, id: S::Id, path: &TreePath) {
        match self.reads.get_mut(&id) {
            Some(ReadState::Queued | ReadState::RunningAndAgain) => {}
            Some(need) => *need = ReadState::RunningAndAgain,
            None => {
                self.reads.insert(id.clone(), ReadState::Queued);
                self.queue.push_back((id, path.clone()));
            }
        }
    }

    fn start_reads(&mut self) {
        while self.running.len() < MAX_CONCURRENT_READS
            && let Some((id, path)) = self.queue.pop_front()
        {
            self.reads.insert(id.clone(), ReadState::Running);
            self.inner.write().start_read(&id);
            let tree = Arc::clone(&self.inner.tree);
            self.running.push(Box::pin(async move {
                let result = ext::get_opt(&*tree, &path).await;
                (id, path, result)
            }));
        }
    }

    fn finish_read(&mut self, (id, path, result): ReadResult<S::Id>) {
        match result {
            Ok(Some(record)) => walk::store(&self.inner, &id, &path, &record),
            Ok(None) => self.inner.write().remove(&id),
            // The listing reports the error if it persists.
            Err(_) => self.stale = true,
        }
        self.inner.write().end_read(&id);
        let again = self.reads.remove(&id) == Some(ReadState::RunningAndAgain);
        // Updated before the barriers are released.
        let backlog = &self.inner.backlog;
        backlog.reads.store(self.reads.len(), Ordering::Relaxed);
        self.count_read(&id);
        if again {
            self.schedule_read(id, &path);
        }
    }

    fn update_backlog(&self, events: usize) {
        let backlog = &self.inner.backlog;
        backlog.events.store(events, Ordering::Relaxed);
        backlog.reads.store(self.reads.len(), Ordering::Relaxed);
    }

    fn wait_for_reads(&mut self, done: oneshot::Sender<()>) {
        let count = |need| {
            if need == ReadState::RunningAndAgain {
                2
            } else {
                1
            }
        };
        let outstanding = self
            .reads
            .iter()
            .map(|(id, need)| (id.clone(), count(*need)))
            .collect();
        self.barriers.push(SyncBarrier { outstanding, done });
        self.release_barriers();
    }

    fn count_read(&mut self, id: &S::Id) {
        for barrier in &mut self.barriers {
            if let Some(count) = barrier.outstanding.get_mut(id) {
                *count -= 1;
                if *count == 0 {
                    barrier.outstanding.remove(id);
                }
            }
        }
        self.release_barriers();
    }

    fn release_barriers(&mut self) {
        if self.stale {
            return;
        }
        for barrier in self
            .barriers
            .extract_if(.., |barrier| barrier.outstanding.is_empty())
        {
            // Fails if the caller was dropped.
            let _ = barrier.done.send(());
        }
    }
}
