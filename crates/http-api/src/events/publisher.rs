//! Turns the changes of a view into events.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::hash::Hash;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use nodeyard_model::{TenantName, now};
use nodeyard_store::view::{Change, Changes, Item, Shape, View};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{ChangeEvent, ChangeType, EventHub, ObjectKind};
use crate::time;

/// The number of objects after which other tasks get a turn.
const YIELD_INTERVAL: usize = 256;

/// The fields of an event that do not depend on the object's state.
#[derive(Debug, Clone)]
pub(crate) struct EventSubject {
    pub(crate) kind: ObjectKind,
    pub(crate) id: Arc<str>,
    pub(crate) tenant: Option<TenantName>,
    pub(crate) related: Box<[Arc<str>]>,
}

impl EventSubject {
    pub(crate) fn new(kind: ObjectKind, id: impl Into<Arc<str>>) -> Self {
        Self {
            kind,
            id: id.into(),
            tenant: None,
            related: Box::default(),
        }
    }
}

/// A source of objects whose changes are published.
#[async_trait]
pub(crate) trait EventSource: Send + Sync + 'static {
    type Id: Clone + Ord + Send + 'static;
    /// Identifies an object: the id of its record, unless several records make up one object.
    type Key: Clone + Eq + Hash + Send + Sync + 'static;

    fn changes(&self) -> Changes<Self::Id>;

    /// Returns when all existing records are loaded.
    async fn loaded(&self) -> nodeyard_store::Result<()>;

    /// Returns the key of the object that a record belongs to.
    fn key(&self, id: &Self::Id) -> Self::Key;

    /// Returns the keys of all objects.
    fn keys(&self) -> Vec<Self::Key>;

    /// Returns the object as JSON; None if it does not exist or is not shown.
    fn show(&self, key: &Self::Key) -> Option<(EventSubject, String)>;
}

/// The records of a view, each of which is an object.
pub(crate) struct ViewSource<S: Shape> {
    pub(crate) view: View<S>,
    /// Renders a record as an event's subject and JSON.
    pub(crate) to_event: fn(&Item<S>) -> Option<(EventSubject, String)>,
}

#[async_trait]
impl<S: Shape> EventSource for ViewSource<S> {
    type Id = S::Id;
    type Key = S::Id;

    fn changes(&self) -> Changes<S::Id> {
        self.view.changes()
    }

    async fn loaded(&self) -> nodeyard_store::Result<()> {
        self.view.synced().await
    }

    fn key(&self, id: &S::Id) -> S::Id {
        id.clone()
    }

    fn keys(&self) -> Vec<S::Id> {
        let mut ids = Vec::with_capacity(self.view.len());
        self.view.for_each(|item| ids.push(item.id));
        ids
    }

    fn show(&self, id: &S::Id) -> Option<(EventSubject, String)> {
        (self.to_event)(&self.view.get(id)?)
    }
}

/// Publishes all changes of `source` until `shutdown`, or until the store is closed.
pub(crate) async fn publish_changes<F: EventSource>(
    hub: EventHub,
    source: F,
    shutdown: CancellationToken,
) {
    let mut changes = source.changes();
    // Existing objects are not events.
    let loaded = tokio::select! {
        loaded = source.loaded() => loaded,
        () = shutdown.cancelled() => return,
    };
    if loaded.is_err() {
        return;
    }
    let mut publisher = ChangePublisher {
        hub,
        known: HashMap::new(),
        source,
    };
    publisher.load_known().await;
    loop {
        let change = tokio::select! {
            change = changes.next() => change,
            () = shutdown.cancelled() => return,
        };
        match change {
            Some(Change::Ids(ids)) => {
                // Changes of several records of one object are one event.
                let keys: HashSet<F::Key> = ids.iter().map(|id| publisher.source.key(id)).collect();
                keys.into_iter().for_each(|key| publisher.changed(&key));
            }
            Some(Change::Everything) => publisher.reset().await,
            None => return,
        }
    }
}

/// Publishes the changes of one source.
struct ChangePublisher<F: EventSource> {
    hub: EventHub,
    source: F,
    /// The state of each object as last published.
    known: HashMap<F::Key, PublishedState>,
}

/// What was last published of an object.
struct PublishedState {
    subject: EventSubject,
    /// A hash of its JSON, to drop changes that are not visible.
    digest: u64,
}

impl<F: EventSource> ChangePublisher<F> {
    /// Records the current state of all objects without publishing events. Yields now and then, because there may be
    /// many.
    async fn load_known(&mut self) {
        self.known.clear();
        for (number, key) in self.source.keys().into_iter().enumerate() {
            if let Some((subject, json)) = self.source.show(&key) {
                let digest = digest(&json);
                self.known.insert(key, PublishedState { subject, digest });
            }
            if number % YIELD_INTERVAL == 0 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Handles a gap in the changes: every stream sends a `reset`.
    async fn reset(&mut self) {
        self.load_known().await;
        self.hub.interrupt();
        self.hub.waiters.notify_all();
    }

    /// Publishes the change of an object, if it is visible.
    fn changed(&mut self, key: &F::Key) {
        let (subject, change_type, json) = match (self.source.show(key), self.known.get(key)) {
            (Some((subject, json)), known) => {
                let digest = digest(&json);
                let change_type = match known {
                    Some(known) if known.digest == digest => return,
                    Some(_) => ChangeType::Changed,
                    None => ChangeType::Created,
                };
                let known = PublishedState {
                    subject: subject.clone(),
                    digest,
                };
                self.known.insert(key.clone(), known);
                (subject, change_type, Some(json))
            }
            (None, Some(_)) => match self.known.remove(key) {
                Some(known) => (known.subject, ChangeType::Deleted, None),
                None => return,
            },
            (None, None) => return,
        };
        let (kind, id) = (subject.kind, Arc::clone(&subject.id));
        self.hub.publish(|number| ChangeEvent {
            frame: frame(number, &subject, change_type, json.as_deref()),
            kind,
            id: subject.id,
            tenant: subject.tenant,
            related: subject.related,
        });
        self.hub.waiters.notify(kind, &id);
    }
}

fn digest(text: &str) -> u64 {
    use std::hash::{DefaultHasher, Hasher as _};
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    hasher.finish()
}

/// Serialises a server-sent event. JSON contains no line breaks, so one `data` line suffices.
fn frame(
    number: &super::buffer::EventId,
    subject: &EventSubject,
    change_type: ChangeType,
    json: Option<&str>,
) -> Bytes {
    #[derive(Serialize)]
    struct Head<'a> {
        kind: ObjectKind,
        id: &'a str,
        change: ChangeType,
        time: Option<String>,
    }
    let head = Head {
        kind: subject.kind,
        id: &subject.id,
        change: change_type,
        time: time::shown(now()),
    };
    // Serialising to a string cannot fail.
    let mut data = serde_json::to_string(&head).unwrap_or_default();
    data.pop();
    let object = json.unwrap_or("null");
    let mut frame = String::with_capacity(data.len() + object.len() + 64);
    let _ = write!(
        frame,
        "id: {number}\nevent: {}\ndata: {data},\"object\":{object}}}\n\n",
        subject.kind
    );
    Bytes::from(frame)
}
