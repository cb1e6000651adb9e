//! Watches: the newest state of all our objects of a kind, as the cluster reports it.
//!
//! A feed may be incomplete: an object that is not in it has to be read from the cluster. While the watch is interrupted
//! the feed returns nothing. A watch whose connection is half-open reports nothing either, and no error: whoever waits in
//! vain reads the object from the cluster and has the feed compared ([`WatchFeed::confirm`]).

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch as signal};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::{debug, warn};

/// How much later than the API server a working watch may have a change.
const LAG: Duration = Duration::from_secs(1);

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
    /// Notified when the watch is to begin again.
    restart: Notify,
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
            restart: Notify::new(),
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

    /// Compares the feed with the `version` that the API server has of an object, None if it is gone. Restarts the watch
    /// if that is not reported: its connection may be half-open.
    pub(crate) async fn confirm(&self, namespace: &str, name: &str, version: Option<&str>) {
        if !self.is_live() {
            return;
        }
        let known = self.get(namespace, name);
        let known = known.and_then(|object| object.resource_version());
        if known.as_deref() == version {
            return;
        }
        let seen = known.is_some();
        let change = self.changed(namespace, name, known.as_deref().unwrap_or_default(), seen);
        if timeout(LAG, change).await.is_err() {
            warn!(namespace, name, "watch reports no changes; restarting it");
            self.shared.interrupt();
            self.shared.restart.notify_one();
        }
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

    /// Distrusts the feed until the watch reports again.
    fn interrupt(&self) {
        self.table().complete = false;
        self.changes.send_replace(());
    }
}

async fn follow<K>(api: Api<K>, config: watcher::Config, shared: Arc<FeedState<K>>)
where
    K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + 'static,
    K::DynamicType: Default,
{
    loop {
        tokio::select! {
            () = follow_one_watch(api.clone(), config.clone(), &shared) => return,
            () = shared.restart.notified() => shared.interrupt(),
        }
    }
}

async fn follow_one_watch<K>(api: Api<K>, config: watcher::Config, shared: &FeedState<K>)
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
