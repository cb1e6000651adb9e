//! Tasks that outlive the jobs that request them.
//!
//! gearmand reassigns a job when it loses the connection to its worker, and stewards repeat a request when its result was lost.
//! A task therefore has a key and runs once, and all jobs that request it receive its result.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use super::task_error::TaskError;

/// The running tasks by key. `V` is the view of a running task, `T` its result.
#[derive(Debug)]
pub(super) struct SharedTasks<K, V, T> {
    running: Arc<Mutex<HashMap<K, SharedTask<V, T>>>>,
}

/// A running or completed task.
#[derive(Debug)]
pub(super) struct SharedTask<V, T> {
    pub(super) view: V,
    outcome: watch::Receiver<Option<Result<T, TaskError>>>,
}

impl<V: Clone, T> Clone for SharedTask<V, T> {
    fn clone(&self) -> Self {
        Self {
            view: self.view.clone(),
            outcome: self.outcome.clone(),
        }
    }
}

impl<K, V, T> Default for SharedTasks<K, V, T> {
    fn default() -> Self {
        Self {
            running: Arc::default(),
        }
    }
}

impl<K, V, T> SharedTasks<K, V, T>
where
    K: Clone + Eq + Hash + Send + 'static,
    V: Clone + Send + Sync + 'static,
    T: Clone + Send + Sync + 'static,
{
    pub(super) fn get(&self, key: &K) -> Option<SharedTask<V, T>> {
        self.lock().get(key).cloned()
    }

    pub(super) fn keys(&self) -> Vec<K> {
        self.lock().keys().cloned().collect()
    }

    /// Returns the running task with this key, or starts one with the view and future that `start` returns.
    ///
    /// A task must record its result before it ends, because it is then removed from the map.
    pub(super) fn get_or_start<F, W, E>(
        &self,
        key: K,
        tasks: &TaskTracker,
        start: F,
    ) -> Result<SharedTask<V, T>, E>
    where
        F: FnOnce() -> Result<(V, W), E>,
        W: Future<Output = Result<T, TaskError>> + Send + 'static,
    {
        let mut running = self.lock();
        if let Some(work) = running.get(&key) {
            return Ok(work.clone());
        }
        let (view, future) = start()?;
        let (publish, outcome) = watch::channel(None);
        let work = SharedTask { view, outcome };
        running.insert(key.clone(), work.clone());
        let (map, inner) = (Arc::clone(&self.running), tasks.clone());
        tasks.spawn(async move {
            // A task of its own, so that a panic is returned as an error.
            let result = inner
                .spawn(future)
                .await
                .unwrap_or_else(|panic| Err(panic.into()));
            map.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&key);
            publish.send_replace(Some(result));
        });
        Ok(work)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, SharedTask<V, T>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V, T: Clone> SharedTask<V, T> {
    /// Waits for the result.
    pub(super) async fn outcome(&self) -> Result<T, TaskError> {
        let mut outcome = self.outcome.clone();
        match outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or_else(|| Err(dropped())),
            Err(_) => Err(dropped()),
        }
    }
}

fn dropped() -> TaskError {
    TaskError::unable("the worker stopped")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    type Test = SharedTasks<&'static str, (), usize>;

    #[tokio::test]
    async fn identical_requests_share_a_task() {
        let (shared, tasks) = (Test::default(), TaskTracker::new());
        let started = Arc::new(AtomicUsize::new(0));
        let (go, gate) = oneshot::channel::<()>();
        let mut gate = Some(gate);
        let mut ask = || {
            let (gate, started) = (gate.take(), Arc::clone(&started));
            shared.get_or_start("a", &tasks, || {
                started.fetch_add(1, Ordering::SeqCst);
                let future = async move {
                    if let Some(gate) = gate {
                        let _ = gate.await;
                    }
                    Ok(7)
                };
                Ok::<_, TaskError>(((), future))
            })
        };
        let (first, second) = (ask().unwrap(), ask().unwrap());
        go.send(()).unwrap();
        assert_eq!(first.outcome().await, Ok(7));
        assert_eq!(second.outcome().await, Ok(7));
        assert_eq!(started.load(Ordering::SeqCst), 1);
        assert!(shared.get(&"a").is_none());
        assert_eq!(ask().unwrap().outcome().await, Ok(7));
        assert_eq!(started.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_panic_is_an_error_without_its_message() {
        let (shared, tasks) = (Test::default(), TaskTracker::new());
        let future = async { panic!("secret") };
        let work = shared.get_or_start("a", &tasks, || Ok::<_, TaskError>(((), future)));
        let Err(TaskError::Internal(text)) = work.unwrap().outcome().await else {
            panic!("a panic has no result");
        };
        assert!(!text.contains("secret"), "{text}");
        assert!(shared.keys().is_empty());
    }
}
