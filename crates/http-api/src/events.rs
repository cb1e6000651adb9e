//! Every change, as it happens, to any number of listeners.
//!
//! ```text
//!    views ──changes──► feed ──► ring ──► stream ──► client
//!                                  ╰────► stream ──► client
//! ```
//!
//! One task for each kind of record follows a view and turns a change into an [`Event`], written once as the bytes that
//! go over the wire. The newest are kept in a [`ring`]; a stream is a place in it and nothing more, so thousands of
//! them cost little, and a slow one keeps nothing alive. Who falls so far behind that events are missing, or comes
//! back with an id from before a restart, is told to list again.
//!
//! Views tell what has changed and not how often, so several quick changes of a record may be one event. Each holds
//! the record as it then was; the last one is always the truth.

mod feed;
mod ring;
mod stream;
mod waiting;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use nodeyard_model::TenantName;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use utoipa::ToSchema;

pub(crate) use feed::{Follow, Records, Subject, follow};
pub(crate) use ring::Resume;
pub(crate) use stream::body;
pub(crate) use waiting::Waiting;

use crate::access::Sight;
use ring::Ring;

/// What a change is about.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
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

impl Kind {
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

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Whether tenants have their own, which others must not see.
    pub(crate) fn is_tenants(self) -> bool {
        matches!(self, Self::Request | Self::Lease | Self::Scope | Self::Node)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What happened to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Happened {
    Created,
    Changed,
    Deleted,
}

/// A change, ready to be sent.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) kind: Kind,
    pub(crate) id: Arc<str>,
    pub(crate) tenant: Option<TenantName>,
    /// Ids of other things that it concerns, such as the request of a node.
    pub(crate) related: Box<[Arc<str>]>,
    /// As the wire wants it.
    pub(crate) frame: Bytes,
}

/// What a listener wants to hear, and may.
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    /// All if there are none.
    pub(crate) kinds: BTreeSet<Kind>,
    /// Only what is about this, or related to it.
    pub(crate) about: Option<String>,
    /// Of what tenants have; the rest is everybody's.
    pub(crate) sight: Sight,
}

impl Filter {
    pub(crate) fn wants(&self, event: &Event) -> bool {
        let kind = self.kinds.is_empty() || self.kinds.contains(&event.kind);
        let visible = !event.kind.is_tenants() || self.sight.sees(event.tenant.as_ref());
        let about = self.about.as_ref().is_none_or(|about| {
            *event.id == **about || event.related.iter().any(|id| **id == **about)
        });
        kind && visible && about
    }
}

/// Where events come from and go to. Cloning is cheap.
#[derive(Debug, Clone)]
pub(crate) struct Hub {
    ring: Arc<Ring>,
    /// Wakes the streams; tells nothing itself.
    news: watch::Sender<()>,
    pub(crate) waiting: Arc<Waiting>,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            ring: Arc::new(Ring::new()),
            news: watch::Sender::new(()),
            waiting: Arc::default(),
        }
    }
}

impl Hub {
    /// What the id of an event is made of: where it stands, in this run of the process.
    fn publish(&self, make: impl FnOnce(&ring::EventId) -> Event) {
        self.ring.push(make);
        self.news.send_replace(());
    }

    /// Events are missing from here on, for everybody.
    fn interrupt(&self) {
        self.ring.interrupt();
        self.news.send_replace(());
    }
}
