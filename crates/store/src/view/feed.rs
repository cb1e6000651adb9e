//! The task behind a view: turns watch events into reads, and reads into changes.
//!
//! For each record at most one read is under way. Events that arrive meanwhile ask for one more
//! after it, because the read may have passed the store before the event's change did.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot};

use super::walk::{self, WINDOW};
use super::{Kind, Shape, Shared};
use crate::error::{Error, Result};
use crate::ext;
use crate::path::TreePath;
use crate::tree::{Record, Session};
use crate::watch::{WatchEvent, Watcher};

/// Before everything is listed again because something could not be read.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

type Barriers = mpsc::UnboundedReceiver<oneshot::Sender<()>>;

type Read<I> = (I, TreePath, Result<Option<Record>>);

struct Feed<S: Shape> {
    shared: Arc<Shared<S>>,
    /// Everything must be listed again.
    stale: bool,
    /// What each record with a read to come still needs.
    reads: HashMap<S::Id, Need>,
    /// Those of `reads` whose read has not begun.
    queue: VecDeque<(S::Id, TreePath)>,
    running: FuturesUnordered<BoxFuture<'static, Read<S::Id>>>,
    barriers: Vec<Barrier<S::Id>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Queued,
    Running,
    /// One is running and another must follow.
    RunningAndAgain,
}

/// Somebody who waits until the reads that were outstanding when they asked are done.
struct Barrier<I> {
    /// How many reads of each record.
    outstanding: HashMap<I, u8>,
    done: oneshot::Sender<()>,
}

/// Follows the store until it is closed.
pub(super) async fn run<S: Shape>(shared: Arc<Shared<S>>, mut barriers: Barriers) {
    let tree = Arc::clone(&shared.tree);
    match ext::persist(&*tree, || tree.watch(&shared.root)).await {
        Ok(watcher) => {
            let mut feed = Feed {
                shared: Arc::clone(&shared),
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
            root = %shared.root,
            error = &error as &dyn std::error::Error,
            "cannot watch; the view stays as it is"
        ),
    }
    shared.write().close();
}

impl<S: Shape> Feed<S> {
    async fn follow(&mut self, mut watcher: Watcher, barriers: &mut Barriers) {
        loop {
            if self.stale && self.list_all().await.is_err() {
                return;
            }
            self.begin_reads();
            self.note_backlog(watcher.waiting());
            tokio::select! {
                event = watcher.next() => match event {
                    Some(event) => self.event(&event),
                    None => return,
                },
                Some(read) = self.running.next(), if !self.running.is_empty() => {
                    self.finish_read(read);
                }
                Some(done) = barriers.recv() => {
                    while let Some(event) = watcher.try_next() {
                        self.event(&event);
                    }
                    self.note_backlog(0);
                    self.wait_for_reads(done);
                }
            }
        }
    }

    /// Fails only when the store has been closed. As long as something cannot be read, the view is not current.
    async fn list_all(&mut self) -> Result<()> {
        let tree = Arc::clone(&self.shared.tree);
        let mut pause = SHORTEST_PAUSE;
        let seen = loop {
            ext::connected(&*tree).await?;
            // What is outstanding now is seen by the listing.
            self.reads.clear();
            self.queue.clear();
            self.running.clear();
            self.shared.write().listing_begins();
            match walk::walk(&self.shared).await {
                Ok(seen) => break seen,
                Err(error) if error.is_connection() => {
                    ext::reconnected(&*tree).await?;
                }
                Err(Error::Closed) => return Err(Error::Closed),
                Err(error) => {
                    tracing::warn!(
                        root = %self.shared.root,
                        error = &error as &dyn std::error::Error,
                        "cannot read everything; what was known before stands until that works"
                    );
                    let mut sessions = tree.session();
                    let closed = sessions.wait_for(|session| *session == Session::Closed);
                    // Either way, it is tried again.
                    let _ = tokio::time::timeout(pause, closed).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        };
        self.shared.write().listing_ended(&seen);
        self.stale = false;
        for barrier in self.barriers.drain(..) {
            // Whoever asked may have gone.
            let _ = barrier.done.send(());
        }
        Ok(())
    }

    fn event(&mut self, event: &WatchEvent) {
        let (path, exists) = match event {
            WatchEvent::Gap => {
                self.stale = true;
                return;
            }
            WatchEvent::Created(path) | WatchEvent::Changed(path) => (path, true),
            WatchEvent::Deleted(path) => (path, false),
        };
        match self.shared.shape.kind(path) {
            Kind::Contender(id) => {
                let mut state = self.shared.write();
                if exists {
                    state.contender_came(&id, path.name());
                } else {
                    state.contender_went(&id, path.name());
                }
            }
            Kind::Record { id, .. } if exists => self.want(id, path),
            Kind::Record { id, .. } if self.reads.contains_key(&id) => {
                // The read under way may still bring the record back, so it is not the last.
                self.shared.write().forget(&id);
                self.want(id, path);
            }
            Kind::Record { id, .. } => self.shared.write().remove(&id),
            Kind::Directory | Kind::Nothing => {}
        }
    }

    fn want(&mut self, id: S::Id, path: &TreePath) {
        match self.reads.get_mut(&id) {
            Some(Need::Queued | Need::RunningAndAgain) => {}
            Some(need) => *need = Need::RunningAndAgain,
            None => {
                self.reads.insert(id.clone(), Need::Queued);
                self.queue.push_back((id, path.clone()));
            }
        }
    }

    fn begin_reads(&mut self) {
        while self.running.len() < WINDOW
            && let Some((id, path)) = self.queue.pop_front()
        {
            self.reads.insert(id.clone(), Need::Running);
            self.shared.write().read_begins(&id);
            let tree = Arc::clone(&self.shared.tree);
            self.running.push(Box::pin(async move {
                let result = ext::get_opt(&*tree, &path).await;
                (id, path, result)
            }));
        }
    }

    fn finish_read(&mut self, (id, path, result): Read<S::Id>) {
        match result {
            Ok(Some(record)) => walk::store(&self.shared, &id, &path, &record),
            Ok(None) => self.shared.write().remove(&id),
            // The listing says what is wrong, if it still is.
            Err(_) => self.stale = true,
        }
        self.shared.write().read_ended(&id);
        let again = self.reads.remove(&id) == Some(Need::RunningAndAgain);
        // Whoever waits for this read sees it done.
        let backlog = &self.shared.backlog;
        backlog.reads.store(self.reads.len(), Ordering::Relaxed);
        self.pass_barriers(&id);
        if again {
            self.want(id, &path);
        }
    }

    fn note_backlog(&self, events: usize) {
        let backlog = &self.shared.backlog;
        backlog.events.store(events, Ordering::Relaxed);
        backlog.reads.store(self.reads.len(), Ordering::Relaxed);
    }

    fn wait_for_reads(&mut self, done: oneshot::Sender<()>) {
        let count = |need| if need == Need::RunningAndAgain { 2 } else { 1 };
        let outstanding = self
            .reads
            .iter()
            .map(|(id, need)| (id.clone(), count(*need)))
            .collect();
        self.barriers.push(Barrier { outstanding, done });
        self.open_barriers();
    }

    fn pass_barriers(&mut self, id: &S::Id) {
        for barrier in &mut self.barriers {
            if let Some(count) = barrier.outstanding.get_mut(id) {
                *count -= 1;
                if *count == 0 {
                    barrier.outstanding.remove(id);
                }
            }
        }
        self.open_barriers();
    }

    fn open_barriers(&mut self) {
        if self.stale {
            return;
        }
        for barrier in self
            .barriers
            .extract_if(.., |barrier| barrier.outstanding.is_empty())
        {
            // Whoever asked may have gone.
            let _ = barrier.done.send(());
        }
    }
}
