//! The functions of a worker, and how its connections learn of changes.
//!
//! A connection subscribes when it is made: it gets what there is and, without a gap, every change after that.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;

use super::job::Handler;

#[derive(Clone)]
pub(super) struct Function {
    pub(super) name: Arc<str>,
    pub(super) timeout: Option<Duration>,
    pub(super) handler: Arc<dyn Handler>,
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Function({})", self.name)
    }
}

#[derive(Debug)]
pub(super) enum Change {
    Added(Arc<str>, Option<Duration>),
    Removed(Arc<str>),
    /// Dropped once everything before it has been sent to the server.
    Sync {
        _ack: mpsc::Sender<()>,
    },
}

/// What there is, and what changes from then on.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) functions: Vec<(Arc<str>, Option<Duration>)>,
    pub(super) changes: mpsc::UnboundedReceiver<Change>,
}

#[derive(Debug, Default)]
pub(super) struct Registry {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    functions: HashMap<Arc<str>, Function>,
    subscribers: Vec<mpsc::UnboundedSender<Change>>,
}

impl Inner {
    fn publish(&mut self, change: impl Fn() -> Change) {
        self.subscribers
            .retain(|subscriber| subscriber.send(change()).is_ok());
    }
}

impl Registry {
    pub(super) fn add(&self, function: Function) {
        let mut inner = self.lock();
        let (name, timeout) = (function.name.clone(), function.timeout);
        let before = inner.functions.insert(name.clone(), function);
        if before.is_none_or(|before| before.timeout != timeout) {
            inner.publish(|| Change::Added(name.clone(), timeout));
        }
    }

    /// False if there was no such function.
    pub(super) fn remove(&self, name: &str) -> bool {
        let mut inner = self.lock();
        let Some(function) = inner.functions.remove(name) else {
            return false;
        };
        inner.publish(|| Change::Removed(function.name.clone()));
        true
    }

    pub(super) fn find(&self, name: &[u8]) -> Option<Function> {
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

    /// Waits until every connection has passed on all changes made so far, or is gone.
    pub(super) async fn synced(&self) {
        let (ack, mut acked) = mpsc::channel(1);
        self.lock().publish(|| Change::Sync { _ack: ack.clone() });
        drop(ack);
        acked.recv().await;
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
