//! The task behind a view: turns watch events into reads, and reads into changes.
//!
//! For each record at most one read is under way. Events that arrive meanwhile ask for one more
//! after it, because the read may have passed the store before the event's change did.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot};

use super::walk::{self, LOCK};
use super::{Key, Kind, Shape, Shared};
use crate::error::{Error, Result};
use crate::ext;
use crate::tree::Record;
use crate::watch::{WatchEvent, Watcher};

/// Reads under way at a time.
const WINDOW: usize = 512;

type Barriers = mpsc::UnboundedReceiver<oneshot::Sender<()>>;

struct Feed<S: Shape> {
    shared: Arc<Shared<S>>,
    /// Everything must be listed again.
    stale: bool,
    /// What each record with a read to come still needs.
    reads: HashMap<Key, Need>,
    /// The keys of `reads` whose read has not begun.
    queue: VecDeque<Key>,
    running: FuturesUnordered<BoxFuture<'static, (Key, Result<Option<Record>>)>>,
    barriers: Vec<Barrier>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Queued,
    Running,
    /// One is running and another must follow.
    RunningAndAgain,
}

/// Somebody who waits until the reads that were outstanding when they asked are done.
struct Barrier {
    /// How many reads of each key.
    outstanding: HashMap<Key, u8>,
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
            tokio::select! {
                event = watcher.next() => match event {
                    Some(event) => self.event(&event),
                    None => return,
                },
                Some((key, result)) = self.running.next(), if !self.running.is_empty() => {
                    self.read(&key, result);
                }
                Some(done) = barriers.recv() => {
                    while let Some(event) = watcher.try_next() {
                        self.event(&event);
                    }
                    self.wait_for_reads(done);
                }
            }
        }
    }

    /// Fails only when the store has been closed.
    async fn list_all(&mut self) -> Result<()> {
        let tree = Arc::clone(&self.shared.tree);
        let seen = loop {
            ext::connected(&*tree).await?;
            // What is outstanding now is seen by the listing.
            self.reads.clear();
            self.queue.clear();
            self.running.clear();
            self.shared.write().listing_begins();
            match walk::walk(&self.shared).await {
                Ok(seen) => break seen,
                Err(error) if error.is_connection() => ext::reconnected(&*tree).await?,
                Err(error) => return Err(error),
            };
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
        let Some(key) = self.shared.root.relative(path) else {
            return;
        };
        if let Some((record, name)) = self.contender(key) {
            let mut state = self.shared.write();
            if exists {
                state.contender_came(record, name);
            } else {
                state.contender_went(record, name);
            }
            return;
        }
        if !matches!(self.shared.shape.kind(key), Kind::Record { .. }) {
            return;
        }
        if exists {
            self.want(key);
        } else if self.reads.contains_key(key) {
            // The read under way may still bring the record back, so it is not the last.
            self.want(key);
            self.shared.write().forget(key);
        } else {
            self.shared.write().remove(key);
        }
    }

    /// Splits `<record>/lock/<contender>`.
    fn contender<'k>(&self, key: &'k str) -> Option<(&'k str, &'k str)> {
        let (dir, name) = key.rsplit_once('/')?;
        let record = dir.strip_suffix(LOCK)?.strip_suffix('/')?;
        match self.shared.shape.kind(record) {
            Kind::Record { lock: true, .. } => Some((record, name)),
            _ => None,
        }
    }

    fn want(&mut self, key: &str) {
        match self.reads.get_mut(key) {
            Some(Need::Queued | Need::RunningAndAgain) => {}
            Some(need) => *need = Need::RunningAndAgain,
            None => {
                let key = Key::from(key);
                self.reads.insert(Arc::clone(&key), Need::Queued);
                self.queue.push_back(key);
            }
        }
    }

    fn begin_reads(&mut self) {
        while self.running.len() < WINDOW
            && let Some(key) = self.queue.pop_front()
        {
            self.reads.insert(Arc::clone(&key), Need::Running);
            self.shared.write().read_begins(&key);
            let shared = Arc::clone(&self.shared);
            self.running.push(Box::pin(async move {
                let result = match shared.root.join(&key) {
                    Ok(path) => ext::get_opt(&*shared.tree, &path).await,
                    Err(error) => Err(error.into()),
                };
                (key, result)
            }));
        }
    }

    fn read(&mut self, key: &Key, result: Result<Option<Record>>) {
        match result {
            Ok(Some(record)) => walk::store(&self.shared, key, &record),
            Ok(None) => self.shared.write().remove(key),
            Err(error) if error.is_connection() => self.stale = true,
            Err(error) => tracing::warn!(
                root = %self.shared.root,
                %key,
                error = &error as &dyn std::error::Error,
                "cannot read a record"
            ),
        }
        if self.reads.remove(key) == Some(Need::RunningAndAgain) {
            self.want(key);
        }
        self.pass_barriers(key);
    }

    fn wait_for_reads(&mut self, done: oneshot::Sender<()>) {
        let outstanding: HashMap<Key, u8> = self
            .reads
            .iter()
            .map(|(key, need)| {
                (
                    Arc::clone(key),
                    if *need == Need::RunningAndAgain { 2 } else { 1 },
                )
            })
            .collect();
        self.barriers.push(Barrier { outstanding, done });
        self.open_barriers();
    }

    fn pass_barriers(&mut self, key: &Key) {
        for barrier in &mut self.barriers {
            if let Some(count) = barrier.outstanding.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    barrier.outstanding.remove(key);
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
