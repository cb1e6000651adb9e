//! What the launcher tells the plan about its own pools: configuration, and what the drivers found out.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_model::{Label, LauncherId, Limits, PoolName, ProviderName, Resources};
use serde::{Deserialize, Serialize};

use crate::images::availability::PendingImage;

/// An availability zone.
pub type Zone = Arc<str>;

/// A pool of a provider, whoever runs it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PoolKey {
    pub provider: ProviderName,
    pub pool: PoolName,
}

impl PoolKey {
    pub fn new(provider: ProviderName, pool: PoolName) -> Self {
        Self { provider, pool }
    }
}

impl fmt::Display for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.provider, self.pool)
    }
}

/// How the plan weighs what it can weigh either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How long a request that does not fit lets later ones take the room it could use.
    pub patience: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(60),
        }
    }
}

/// A provider that this launcher runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProviderSetup {
    /// What the cloud grants; unlimited where `ignore-provider-quota` is set.
    pub limits: Limits,
    /// What others use of it: instances that are no node of ours.
    pub foreign: Resources,
    /// What nodes of ours use of it that have no record any more. It takes room until it is cleaned up, so that nothing
    /// is impossible for it.
    pub leaked: Resources,
    /// `max-concurrency`. None is without limit; with zero the provider neither accepts nor declines.
    pub max_launches: Option<usize>,
    /// `affinity: require`: a request that names a provider of another cluster is never taken in its place.
    pub keeps_to_cluster: bool,
}

/// One of this launcher's pools.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolSetup {
    /// The id under which this pool is registered; it signs `declined_by` and nodes.
    pub id: LauncherId,
    pub key: PoolKey,
    /// `max-servers` and its kin.
    pub limits: Limits,
    pub labels: BTreeMap<Label, LabelSetup>,
    /// Where to launch; empty leaves it to the cloud.
    pub zones: Vec<Zone>,
}

impl PoolSetup {
    /// Returns why the provider did not start. None if it did.
    pub(crate) fn unreachable(&self) -> Option<&str> {
        match &self.labels.values().next()?.readiness {
            Readiness::Unreachable { reason } => Some(reason),
            _ => None,
        }
    }
}

/// What is to accept nothing new. Each with the name of what is drained, such as `provider cloud`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drains {
    /// Our pools that take no request. What they can never serve they still decline.
    pub pools: BTreeMap<PoolKey, Box<str>>,
    /// Requests with one of these labels are looked at by no pool of ours.
    pub labels: BTreeMap<Label, Box<str>>,
}

impl Drains {
    /// What keeps a pool of ours from serving these labels.
    pub(crate) fn on(&self, key: &PoolKey, labels: &[Label]) -> Option<&str> {
        let pool = self.pools.get(key).map(|scope| &**scope);
        pool.or_else(|| self.of_labels(labels))
    }

    pub(crate) fn of_labels(&self, labels: &[Label]) -> Option<&str> {
        let mut scopes = labels.iter().filter_map(|label| self.labels.get(label));
        scopes.next().map(|scope| &**scope)
    }
}

/// What it takes to serve a label in a pool.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelSetup {
    /// What one node takes of the quotas.
    pub cost: Resources,
    pub readiness: Readiness,
    pub supply: Supply,
    /// A node is for the request that it was launched for and for no other, whoever else could use it.
    pub bound: bool,
}

impl LabelSetup {
    /// A label that can be launched right away.
    pub fn launched(cost: Resources) -> Self {
        Self {
            cost,
            readiness: Readiness::Ready,
            supply: Supply::Launched,
            bound: false,
        }
    }
}

/// Where the nodes of a label come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Supply {
    Launched,
    /// So many machines exist; each appears as a ready node when it is free. None is ever launched.
    Fixed(usize),
}

/// Whether nodes of a label can be launched at all.
#[derive(Debug, Clone, PartialEq)]
pub enum Readiness {
    Ready,
    /// No ready upload, or no such image in the cloud.
    ImageMissing {
        image: Box<str>,
        /// What the cloud was asked for, or why the image is not made, where there is more to say than a name.
        reason: Option<Box<str>>,
        /// How far it is, if it is being made.
        pending: Option<Box<PendingImage>>,
    },
    /// The configuration of the label cannot work, such as a flavor that does not exist.
    Broken {
        reason: Box<str>,
    },
    /// The provider did not start, so nothing is known about the label. All labels of such a pool say so.
    Unreachable {
        reason: Box<str>,
    },
}

/// What the configuration says of a label, whatever pool it comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LabelPolicy {
    pub min_ready: usize,
    /// `max-ready-age`; none is without end.
    pub max_ready_age: Option<Duration>,
}
