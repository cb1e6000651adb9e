//! From the changes of a view to events.

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

use super::{Event, Happened, Hub, Kind};
use crate::time;

/// Others get a turn after so many things.
const BREATH: usize = 256;

/// What an event tells of a thing, beside its state.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub(crate) kind: Kind,
    pub(crate) id: Arc<str>,
    pub(crate) tenant: Option<TenantName>,
    pub(crate) related: Box<[Arc<str>]>,
}

impl Subject {
    pub(crate) fn new(kind: Kind, id: impl Into<Arc<str>>) -> Self {
        Self {
            kind,
            id: id.into(),
            tenant: None,
            related: Box::default(),
        }
    }
}

/// Records that become things of the API.
#[async_trait]
pub(crate) trait Follow: Send + Sync + 'static {
    type Id: Clone + Ord + Send + 'static;
    /// How the things are told apart: by the ids of their records, unless several records make one thing.
    type Key: Clone + Eq + Hash + Send + Sync + 'static;

    fn changes(&self) -> Changes<Self::Id>;

    /// Returns when everything was heard of that is there.
    async fn loaded(&self) -> nodeyard_store::Result<()>;

    fn key(&self, id: &Self::Id) -> Self::Key;

    /// All that there are.
    fn keys(&self) -> Vec<Self::Key>;

    /// With its JSON; none if there is no such thing, or nothing to show of it.
    fn show(&self, key: &Self::Key) -> Option<(Subject, String)>;
}

/// The records of a view, each of which is a thing.
pub(crate) struct Records<S: Shape> {
    pub(crate) view: View<S>,
    /// What to tell of one, and its JSON.
    pub(crate) tell: fn(&Item<S>) -> Option<(Subject, String)>,
}

#[async_trait]
impl<S: Shape> Follow for Records<S> {
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

    fn show(&self, id: &S::Id) -> Option<(Subject, String)> {
        (self.tell)(&self.view.get(id)?)
    }
}

/// Publishes all changes until `shutdown`, or until the store is closed.
pub(crate) async fn follow<F: Follow>(hub: Hub, by: F, shutdown: CancellationToken) {
    let mut changes = by.changes();
    // What is there already is no news.
    let loaded = tokio::select! {
        loaded = by.loaded() => loaded,
        () = shutdown.cancelled() => return,
    };
    if loaded.is_err() {
        return;
    }
    let mut feed = Feed {
        hub,
        known: HashMap::new(),
        by,
    };
    feed.begin().await;
    loop {
        let change = tokio::select! {
            change = changes.next() => change,
            () = shutdown.cancelled() => return,
        };
        match change {
            Some(Change::Ids(ids)) => {
                // Several records of one thing are one change.
                let keys: HashSet<F::Key> = ids.iter().map(|id| feed.by.key(id)).collect();
                keys.into_iter().for_each(|key| feed.changed(&key));
            }
            Some(Change::Everything) => feed.lost().await,
            None => return,
        }
    }
}

struct Feed<F: Follow> {
    hub: Hub,
    by: F,
    /// What was last told of each thing.
    known: HashMap<F::Key, Known>,
}

struct Known {
    subject: Subject,
    /// Of its JSON: a change that nobody could see is none.
    digest: u64,
}

impl<F: Follow> Feed<F> {
    /// Takes everything there is as known. There may be very much.
    async fn begin(&mut self) {
        self.known.clear();
        for (number, key) in self.by.keys().into_iter().enumerate() {
            if let Some((subject, json)) = self.by.show(&key) {
                let digest = digest(&json);
                self.known.insert(key, Known { subject, digest });
            }
            if number % BREATH == 0 {
                tokio::task::yield_now().await;
            }
        }
    }

    async fn lost(&mut self) {
        self.begin().await;
        self.hub.interrupt();
        self.hub.waiting.ring_all();
    }

    fn changed(&mut self, key: &F::Key) {
        let (subject, happened, json) = match (self.by.show(key), self.known.get(key)) {
            (Some((subject, json)), known) => {
                let digest = digest(&json);
                let happened = match known {
                    Some(known) if known.digest == digest => return,
                    Some(_) => Happened::Changed,
                    None => Happened::Created,
                };
                let known = Known {
                    subject: subject.clone(),
                    digest,
                };
                self.known.insert(key.clone(), known);
                (subject, happened, Some(json))
            }
            (None, Some(_)) => match self.known.remove(key) {
                Some(known) => (known.subject, Happened::Deleted, None),
                None => return,
            },
            (None, None) => return,
        };
        let (kind, id) = (subject.kind, Arc::clone(&subject.id));
        self.hub.publish(|number| Event {
            frame: frame(number, &subject, happened, json.as_deref()),
            kind,
            id: subject.id,
            tenant: subject.tenant,
            related: subject.related,
        });
        self.hub.waiting.ring(kind, &id);
    }
}

fn digest(text: &str) -> u64 {
    use std::hash::{DefaultHasher, Hasher as _};
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    hasher.finish()
}

/// JSON has no line breaks of its own, so one `data` line is enough.
fn frame(
    number: &super::ring::EventId,
    subject: &Subject,
    happened: Happened,
    json: Option<&str>,
) -> Bytes {
    #[derive(Serialize)]
    struct Head<'a> {
        kind: Kind,
        id: &'a str,
        change: Happened,
        time: Option<String>,
    }
    let head = Head {
        kind: subject.kind,
        id: &subject.id,
        change: happened,
        time: time::shown(now()),
    };
    // Texts cannot fail to be written.
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
