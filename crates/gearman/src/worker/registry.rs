//! The registered functions of a worker.
//!
//! A connection subscribes when it opens and receives the current functions followed by every later change.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;

use super::job::JobHandler;

#[derive(Clone)]
pub(super) struct RegisteredFunction {
    pub(super) name: Arc<str>,
    pub(super) timeout: Option<Duration>,
    pub(super) handler: Arc<dyn JobHandler>,
}

impl fmt::Debug for RegisteredFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Function({})", self.name)
    }
}

#[derive(Debug)]
pub(super) enum FunctionChange {
    Added(Arc<str>, Option<Duration>),
    Removed(Arc<str>),
    /// Dropped once all earlier changes have been sent to the server.
    Sync {
        _ack: mpsc::Sender<()>,
    },
}

/// The current functions and a stream of later changes.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) functions: Vec<(Arc<str>, Option<Duration>)>,
    pub(super) changes: mpsc::UnboundedReceiver<FunctionChange>,
}

#[derive(Debug, Default)]
pub(super) struct FunctionRegistry {
    inner: Mutex<FunctionTable>,
}

#[derive(Debug, Default)]
struct FunctionTable {
    functions: HashMap<Arc<str>, RegisteredFunction>,
    subscribers: Vec<mpsc::UnboundedSender<FunctionChange>>,
}

impl FunctionTable {
    fn publish(&mut self, change: impl Fn() -> FunctionChange) {
        self.subscribers
            .retain(|subscriber| subscriber.send(change()).is_ok());
    }
}

impl FunctionRegistry {
    pub(super) fn add(&self, function: RegisteredFunction) {
        let mut inner = self.lock();
        let (name, timeout) = (function.name.clone(), function.timeout);
        let before = inner.functions.insert(name.clone(), function);
        if before.is_none_or(|before| before.timeout != timeout) {
            inner.publish(|| FunctionChange::Added(name.clone(), timeout));
        }
    }

    /// Removes a function. Returns false if it was not registered.
    pub(super) fn remove(&self, name: &str) -> bool {
        let mut inner = self.lock();
        let Some(function) = inner.functions.remove(name) else {
            return false;
        };
        inner.publish(|| FunctionChange::Removed(function.name.clone()));
        true
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<RegisteredFunction> {
        let name = std::str::from_utf8(name).ok()?;
        self.lock().functions.get(name).cloned()
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.lock().functions.contains_key(name)
    }

    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .lock()
            .functions
            .keys()
            .map(std::string::ToString::to_string)
            .collect();
        names.sort_unstable();
        names
    }

    pub(super) fn subscribe(&self) -> Subscription {
        let (sender, changes) = mpsc::unbounded_channel();
        let mut inner = self.lock();
        inner.subscribers.push(sender);
        let mut functions: Vec<_> = inner
            .functions
            .values()
            .map(|f| (f.name.clone(), f.timeout))
            .collect();
        functions.sort_unstable();
        Subscription { functions, changes }
    }

    /// Waits until every connection has sent all changes made so far or is closed.
    pub(super) async fn synced(&self) {
        let (ack, mut acked) = mpsc::channel(1);
        self.lock()
            .publish(|| FunctionChange::Sync { _ack: ack.clone() });
        drop(ack);
        acked.recv().await;
    }

    fn lock(&self) -> MutexGuard<'_, FunctionTable> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
