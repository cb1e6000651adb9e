//! The configuration of providers and pools, and what the drivers found out about them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_model::{Label, LauncherId, Limits, PoolName, ProviderName, Resources};
use serde::{Deserialize, Serialize};

use crate::images::availability::PendingImage;

/// An availability zone.
pub type ZoneName = Arc<str>;

/// The key of a pool of any launcher.
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

/// Tunable parameters of the decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// How long a request that does not fit allows later ones to take the room it could use.
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
    /// The quota of the cloud; unlimited where `ignore-provider-quota` is set.
    pub limits: Limits,
    /// What instances that are not managed use of it.
    pub foreign: Resources,
    /// What leaked nodes of ours use of it. This room is freed by clean-up, so it makes no request impossible.
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
    /// `max-servers` and similar limits.
    pub limits: Limits,
    pub labels: BTreeMap<Label, LabelSetup>,
    /// The zones to launch in; if empty, the cloud chooses.
    pub zones: Vec<ZoneName>,
}

impl PoolSetup {
    /// Returns why the provider did not start. None if it did.
    pub(crate) fn unreachable(&self) -> Option<&str> {
        match &self.labels.values().next()?.readiness {
            LabelReadiness::Unreachable { reason } => Some(reason),
            _ => None,
        }
    }
}

/// The drains in force. Each has the name of its scope, such as `provider cloud`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drains {
    /// Our pools that accept no request. They still decline what they can never serve.
    pub pools: BTreeMap<PoolKey, Box<str>>,
    /// No pool of ours considers requests with one of these labels.
    pub labels: BTreeMap<Label, Box<str>>,
}

impl Drains {
    /// Returns the drain that applies to these labels in a pool of ours.
    pub(crate) fn on(&self, key: &PoolKey, labels: &[Label]) -> Option<&str> {
        let pool = self.pools.get(key).map(|scope| &**scope);
        pool.or_else(|| self.of_labels(labels))
    }

    pub(crate) fn of_labels(&self, labels: &[Label]) -> Option<&str> {
        let mut scopes = labels.iter().filter_map(|label| self.labels.get(label));
        scopes.next().map(|scope| &**scope)
    }
}

/// The setup of a label in a pool.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelSetup {
    /// What one node uses of the quotas.
    pub cost: Resources,
    pub readiness: LabelReadiness,
    pub supply: Supply,
    /// A node serves only the request that it was launched for.
    pub bound: bool,
}

impl LabelSetup {
    /// Returns a label that can be launched at once.
    pub fn launched(cost: Resources) -> Self {
        Self {
            cost,
            readiness: LabelReadiness::Ready,
            supply: Supply::Launched,
            bound: false,
        }
    }
}

/// Where the nodes of a label come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Supply {
    Launched,
    /// The number of existing machines. Each has a ready node while it is free; none is launched.
    Fixed(usize),
}

/// Whether nodes of a label can be launched.
#[derive(Debug, Clone, PartialEq)]
pub enum LabelReadiness {
    Ready,
    /// No ready upload, or no such image in the cloud.
    ImageMissing {
        image: Box<str>,
        /// The image reference, or why the image is not being made, if known.
        reason: Option<Box<str>>,
        /// Its progress, if it is being made.
        pending: Option<Box<PendingImage>>,
    },
    /// The configuration of the label cannot work, such as a flavor that does not exist.
    Broken {
        reason: Box<str>,
    },
    /// The provider did not start. All labels of such a pool are unreachable.
    Unreachable {
        reason: Box<str>,
    },
}

/// The configuration of a label, independent of pools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LabelPolicy {
    pub min_ready: usize,
    /// `max-ready-age`; None is unlimited.
    pub max_ready_age: Option<Duration>,
}
