//! Change events for any number of clients.
//!
//! ```text
//!    views ──changes──► publisher ──► buffer ──► stream ──► client
//!                                       ╰──────► stream ──► client
//! ```
//!
//! One task per kind of record follows a view and turns each change into a [`ChangeEvent`], serialised once. The newest
//! events are kept in a [`buffer`]; a stream is a position in it, so thousands of streams cost little and a slow one
//! keeps nothing alive. A client that misses events, or resumes with an id from before a restart, gets a `reset` event.
//!
//! Views report what has changed and not how often, so several quick changes of a record may become one event. Each
//! event contains the current state of the record.

mod buffer;
mod publisher;
mod stream;
mod waiters;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use nodeyard_model::TenantName;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use utoipa::ToSchema;

pub(crate) use buffer::Resume;
pub(crate) use publisher::{EventSource, EventSubject, ViewSource, publish_changes};
pub(crate) use stream::body;
pub(crate) use waiters::ChangeWaiters;

use crate::access::Visibility;
use buffer::EventBuffer;

/// The kind of an object that changes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
#[schema(as = Kind)]
pub(crate) enum ObjectKind {
    Request,
    Lease,
    Scope,
    Node,
    Image,
    Build,
    Upload,
    Pool,
    Component,
    Drain,
}

impl ObjectKind {
    pub(crate) const ALL: [Self; 10] = [
        Self::Request,
        Self::Lease,
        Self::Scope,
        Self::Node,
        Self::Image,
        Self::Build,
        Self::Upload,
        Self::Pool,
        Self::Component,
        Self::Drain,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Lease => "lease",
            Self::Scope => "scope",
            Self::Node => "node",
            Self::Image => "image",
            Self::Build => "build",
            Self::Upload => "upload",
            Self::Pool => "pool",
            Self::Component => "component",
            Self::Drain => "drain",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Returns whether objects of this kind belong to tenants, which other tenants must not see.
    pub(crate) fn belongs_to_tenants(self) -> bool {
        matches!(self, Self::Request | Self::Lease | Self::Scope | Self::Node)
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = Happened)]
pub(crate) enum ChangeType {
    Created,
    Changed,
    Deleted,
}

/// A change of an object, serialised.
#[derive(Debug)]
pub(crate) struct ChangeEvent {
    pub(crate) kind: ObjectKind,
    pub(crate) id: Arc<str>,
    pub(crate) tenant: Option<TenantName>,
    /// Ids of other objects that it concerns, such as the request of a node.
    pub(crate) related: Box<[Arc<str>]>,
    /// The server-sent event.
    pub(crate) frame: Bytes,
}

/// Selects the events of a stream.
#[derive(Debug, Clone)]
pub(crate) struct EventFilter {
    /// Empty for all kinds.
    pub(crate) kinds: BTreeSet<ObjectKind>,
    /// Selects only events about the object with this id, or related to it.
    pub(crate) about: Option<String>,
    /// Which tenants' objects are visible; others are visible to all.
    pub(crate) visibility: Visibility,
}

impl EventFilter {
    pub(crate) fn matches(&self, event: &ChangeEvent) -> bool {
        let kind = self.kinds.is_empty() || self.kinds.contains(&event.kind);
        let visible =
            !event.kind.belongs_to_tenants() || self.visibility.sees(event.tenant.as_ref());
        let about = self.about.as_ref().is_none_or(|about| {
            *event.id == **about || event.related.iter().any(|id| **id == **about)
        });
        kind && visible && about
    }
}

/// Receives events and serves the streams. Cloning is cheap.
#[derive(Debug, Clone)]
pub(crate) struct EventHub {
    buffer: Arc<EventBuffer>,
    /// Wakes the streams; carries no data.
    wakeup: watch::Sender<()>,
    pub(crate) waiters: Arc<ChangeWaiters>,
}

impl Default for EventHub {
    fn default() -> Self {
        Self {
            buffer: Arc::new(EventBuffer::new()),
            wakeup: watch::Sender::new(()),
            waiters: Arc::default(),
        }
    }
}

impl EventHub {
    /// Adds an event; `make` gets its id.
    fn publish(&self, make: impl FnOnce(&buffer::EventId) -> ChangeEvent) {
        self.buffer.push(make);
        self.wakeup.send_replace(());
    }

    /// Drops all events, so that every stream sends a `reset`.
    fn interrupt(&self) {
        self.buffer.interrupt();
        self.wakeup.send_replace(());
    }
}
