//! Watches: the newest state of all our objects of a kind, as the cluster reports it.
//!
//! A feed may be incomplete: an object that is not in it has to be read from the cluster. While the watch is interrupted
//! the feed returns nothing.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::watch as signal;
use tokio::task::JoinHandle;
use tracing::debug;

/// Namespace (empty where there is none) and name.
type Key = (String, String);

/// A watch that runs until this is dropped.
pub(crate) struct WatchFeed<K> {
    shared: Arc<FeedState<K>>,
    task: JoinHandle<()>,
}

struct FeedState<K> {
    table: Mutex<FeedTable<K>>,
    /// Notified of each change of the table.
    changes: signal::Sender<()>,
}

struct FeedTable<K> {
    complete: bool,
    objects: HashMap<Key, Arc<K>>,
    /// The objects of a list that is not complete yet.
    arriving: HashMap<Key, Arc<K>>,
}

impl<K> fmt::Debug for WatchFeed<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WatchFeed")
    }
}

impl<K> Drop for WatchFeed<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<K> WatchFeed<K>
where
    K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
    K::DynamicType: Default,
{
    pub(crate) fn start(api: Api<K>, selector: &str) -> Self {
        let shared = Arc::new(FeedState {
            table: Mutex::new(FeedTable {
                complete: false,
                objects: HashMap::new(),
                arriving: HashMap::new(),
            }),
            changes: signal::Sender::new(()),
        });
        let config = watcher::Config::default().labels(selector);
        let task = tokio::spawn(follow(api, config, Arc::clone(&shared)));
        Self { shared, task }
    }

    /// Whether the watch is running.
    pub(crate) fn is_live(&self) -> bool {
        self.shared.table().complete
    }

    /// Returns None if the object is not known; it may exist.
    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let table = self.shared.table();
        if !table.complete {
            return None;
        }
        table
            .objects
            .get(&(namespace.to_owned(), name.to_owned()))
            .cloned()
    }

    /// Returns all known objects.
    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.shared.table().objects.values().cloned().collect()
    }

    /// Waits until the object has another version, or is gone if it was `seen` here before.
    pub(crate) async fn changed(&self, namespace: &str, name: &str, version: &str, seen: bool) {
        let mut changes = self.shared.changes.subscribe();
        loop {
            match self.get(namespace, name) {
                Some(object) if object.resource_version().as_deref() != Some(version) => return,
                None if seen => return,
                _ => {}
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

impl<K> FeedState<K> {
    fn table(&self) -> MutexGuard<'_, FeedTable<K>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn follow<K>(api: Api<K>, config: watcher::Config, shared: Arc<FeedState<K>>)
where
    K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + 'static,
    K::DynamicType: Default,
{
    let mut events = pin!(watch(api, config).default_backoff());
    while let Some(event) = events.next().await {
        {
            let mut table = shared.table();
            match event {
                Ok(event) => table.take(event),
                Err(error) => {
                    debug!(%error, "watch interrupted; retrying");
                    table.complete = false;
                }
            }
        }
        shared.changes.send_replace(());
    }
}

impl<K> FeedTable<K>
where
    K: Resource,
    K::DynamicType: Default,
{
    fn take(&mut self, event: Event<K>) {
        let key = |object: &K| (object.namespace().unwrap_or_default(), object.name_any());
        match event {
            Event::Init => self.arriving.clear(),
            Event::InitApply(object) => {
                self.arriving.insert(key(&object), Arc::new(object));
            }
            Event::InitDone => {
                self.objects = std::mem::take(&mut self.arriving);
                self.complete = true;
            }
            // After an interruption the watch continues where it ended, or lists again.
            Event::Apply(object) => {
                self.objects.insert(key(&object), Arc::new(object));
                self.complete = true;
            }
            Event::Delete(object) => {
                self.objects.remove(&key(&object));
                self.complete = true;
            }
        }
    }
}
