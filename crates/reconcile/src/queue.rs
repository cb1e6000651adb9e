//! The handle on a queue, and the loop that runs its tasks.

use std::any::Any;
use std::error::Error;
use std::fmt::Debug;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use crate::state::State;
use crate::{KeyStatus, Options, QueueCounts};

/// The keys to be reconciled. Cloning is cheap.
#[derive(Debug)]
pub struct WorkQueue<K> {
    state: Arc<Mutex<State<K>>>,
    options: Options,
}

impl<K> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        Self {
            state: Arc::clone(&self.state),
            options: self.options.clone(),
        }
    }
}

impl<K> WorkQueue<K> {
    pub fn new(options: Options) -> Self {
        Self {
            state: Arc::default(),
            options,
        }
    }

    /// Nothing panics while it holds the lock, so poison is ignored.
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash> WorkQueue<K> {
    /// Schedules a key to be run as soon as possible.
    pub fn add(&self, key: K) {
        self.add_after(key, Duration::ZERO);
    }

    /// Schedules a key to be run after a delay, unless it is due earlier anyway.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.lock().add(key, delay);
    }

    /// Returns how a key stands; none if it is not scheduled.
    pub fn status(&self, key: &K) -> Option<KeyStatus> {
        self.lock().status(key)
    }

    /// Returns a snapshot of all scheduled keys, in no order.
    pub fn statuses(&self) -> Vec<(K, KeyStatus)> {
        self.lock().statuses()
    }
}

/// A [`WorkQueue`] whose keys can be counted, whatever they are.
pub trait CountKeys: Debug + Send + Sync {
    fn counts(&self) -> QueueCounts;
}

impl<K: Clone + Debug + Eq + Hash + Send> CountKeys for WorkQueue<K> {
    fn counts(&self) -> QueueCounts {
        self.lock().counts()
    }
}

impl<K: Clone + Debug + Eq + Hash + Send + 'static> WorkQueue<K> {
    /// Runs the tasks of due keys until `stop`; then waits for those that run, and aborts them after the grace period. One
    /// such loop runs at a time. The keys are forgotten when it ends or is dropped, which aborts running tasks.
    ///
    /// A task returns after which delay to run its key again, if nothing adds it before.
    pub async fn run<T, E>(&self, stop: &CancellationToken, mut reconcile: impl FnMut(K) -> T)
    where
        T: Future<Output = Result<Option<Duration>, E>> + Send + 'static,
        E: Error + Send + 'static,
    {
        let _clear = ClearOnDrop(self);
        let mut tasks = JoinSet::new();
        loop {
            let has_room = tasks.len() < self.options.concurrency;
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(ended) = tasks.join_next() => self.end(ended),
                key = self.next(), if has_room => {
                    let task = AssertUnwindSafe(reconcile(key.clone())).catch_unwind();
                    tasks.spawn(async move { (key, task.await) });
                }
            }
        }
        let drained = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(self.options.grace, drained)
            .await
            .is_err()
        {
            warn!(
                queue = self.options.name,
                tasks = tasks.len(),
                "aborted running tasks"
            );
            tasks.shutdown().await;
        }
    }

    async fn next(&self) -> K {
        std::future::poll_fn(|cx| self.lock().poll_next(cx)).await
    }

    fn end<E: Error + 'static>(&self, ended: Result<TaskEnd<K, E>, tokio::task::JoinError>) {
        // Panics are caught within, and nothing aborts a task before the stop.
        let Ok((key, result)) = ended else { return };
        let (queue, backoff) = (self.options.name, self.options.backoff);
        match result {
            Ok(Ok(delay)) => self.lock().succeeded(key, delay),
            Ok(Err(cause)) => {
                let text = chain(&cause);
                let (failures, retry_in) = self.lock().failed(key.clone(), text, backoff);
                let error = &cause as &dyn Error;
                warn!(
                    queue,
                    ?key,
                    error,
                    failures,
                    ?retry_in,
                    "failed to reconcile; retrying"
                );
            }
            Err(panic) => {
                let panic = panic_text(&*panic);
                let text = format!("panicked: {panic}");
                let (failures, retry_in) = self.lock().failed(key.clone(), text, backoff);
                error!(
                    queue,
                    ?key,
                    panic,
                    failures,
                    ?retry_in,
                    "task panicked; retrying"
                );
            }
        }
    }
}

type TaskEnd<K, E> = (K, Result<Result<Option<Duration>, E>, Box<dyn Any + Send>>);

struct ClearOnDrop<'a, K>(&'a WorkQueue<K>);

impl<K> Drop for ClearOnDrop<'_, K> {
    fn drop(&mut self) {
        *self.0.lock() = State::default();
    }
}

/// Returns an error and its causes in one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message")
}
