//! Verdicts of a pool on a request, as data and as text.
//!
//! The texts follow "pool p/q: ", so they start in lower case and end without a full stop.

use std::fmt;
use std::time::Duration;

use nodeyard_model::{
    Label, LauncherId, NodeId, ProviderName, Quantity, RequestState, ResourceName, Resources,
    TenantName, Timestamp,
};
use serde::{Deserialize, Serialize};

use crate::images::availability::ImageStage;
use crate::setup::{PoolKey, ZoneName};
use crate::span::HumanDuration;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequestVerdict {
    /// This pool does not handle the request.
    Skip(Skip),
    /// Another pool comes first.
    Yield(Yield),
    /// This pool can serve it later.
    Defer(Defer),
    /// Like defer, and no other pool can serve it: this pool reserves the request and keeps room for it.
    Reserve(CapacityShortage),
    /// This pool cannot serve it.
    Decline(Decline),
    /// This pool serves it now.
    Accept(Acceptance),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Skip {
    /// The request is being served, or it is done.
    NotWaiting { state: RequestState },
    /// A pool of this launcher serves it.
    Taken { by: PoolKey },
    /// The reason if it still holds. A failed launch does not.
    AlreadyDeclined { reason: Option<Decline> },
    /// The pool does not see itself among the registered pools.
    NotRegistered,
    /// `max-concurrency: 0`: the provider neither accepts nor declines.
    Ignoring,
    /// The pool or one of the labels is drained.
    Drained {
        /// What is drained, such as `provider cloud`.
        scope: Box<str>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Yield {
    /// The request names a provider, and a pool of it can serve the request.
    Affinity {
        provider: ProviderName,
        to: LauncherId,
    },
    /// The request names a provider, which cannot serve it; a pool in its cluster can.
    Cluster {
        provider: ProviderName,
        to: LauncherId,
    },
    /// A pool that can serve the request comes first.
    Priority {
        own: i64,
        theirs: i64,
        to: LauncherId,
    },
    /// This pool lacks a label that another one has.
    Labels { missing: Vec<Label>, to: LauncherId },
    /// This pool's cloud refuses launches at the moment, and another pool can serve the request.
    Refused { to: LauncherId },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Defer {
    Shortage(CapacityShortage),
    /// `max-concurrency` launches are under way.
    Launching {
        launching: usize,
        /// Kept for requests that come first.
        kept: usize,
        max_concurrency: usize,
    },
    /// The cloud refuses launches for lack of quota, and requests probe it in turn.
    Refused {
        /// Seconds until the next probe; none while one is under way.
        retry_in: Option<i64>,
    },
    /// The request waits for an image that is being made.
    Image(Box<AwaitedImage>),
    /// The provider did not start.
    Unreachable {
        reason: Box<str>,
    },
}

/// An image that a request waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwaitedImage {
    pub image: Box<str>,
    pub label: Label,
    pub provider: ProviderName,
    pub stage: ImageStage,
    /// The progress of the build or upload. None until its worker has reported it.
    #[serde(default)]
    pub percent: Option<u8>,
    /// Seconds until the image should be ready, estimated from earlier durations; negative if overdue.
    #[serde(default)]
    pub remaining: Option<i64>,
    pub at: Timestamp,
}

impl Defer {
    pub(crate) fn is_at_tenant(&self) -> bool {
        matches!(self, Self::Shortage(CapacityShortage::Quota(sum)) if matches!(sum.scope, QuotaScope::Tenant(_)))
    }
}

/// The owner of a limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QuotaScope {
    Pool(PoolKey),
    Provider(ProviderName),
    Tenant(TenantName),
}

/// A lack of quota or machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CapacityShortage {
    Quota(QuotaShortage),
    /// Too few free machines of a label that is not launched.
    Machines {
        label: Label,
        needed: usize,
        free: usize,
    },
}

impl CapacityShortage {
    /// Returns whether the pool lacks room that it could free. A tenant limit is the same in every pool, and fixed
    /// machines cannot be added.
    pub(crate) fn is_of_room(&self) -> bool {
        matches!(self, Self::Quota(sum) if !matches!(sum.scope, QuotaScope::Tenant(_)))
    }
}

/// A limit that is exceeded: `foreign + used + launching + kept + needed > limit`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QuotaShortage {
    #[serde(rename = "ledger")]
    pub scope: QuotaScope,
    #[serde(with = "resource_name")]
    pub resource: ResourceName,
    pub limit: Quantity,
    /// Used by instances that have no record.
    pub foreign: Quantity,
    /// Used by nodes that have a record.
    pub used: Quantity,
    /// Promised to requests whose nodes have no record yet.
    pub launching: Quantity,
    /// Kept for requests that come first.
    pub kept: Quantity,
    pub needed: Quantity,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decline {
    /// `max-servers` is zero.
    NoServers,
    /// `affinity: require`, and the request names a provider of another cluster.
    OtherCluster {
        provider: ProviderName,
    },
    UnknownLabels {
        labels: Vec<Label>,
    },
    BrokenLabel {
        label: Label,
        reason: Box<str>,
    },
    ImageMissing {
        label: Label,
        image: Box<str>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<Box<str>>,
    },
    /// More than the limit allows even when nothing else runs.
    TooLarge {
        #[serde(rename = "ledger")]
        scope: QuotaScope,
        #[serde(with = "resource_name")]
        resource: ResourceName,
        limit: Quantity,
        needed: Quantity,
    },
    /// More machines of a label than exist.
    TooFewMachines {
        label: Label,
        exist: usize,
        needed: usize,
    },
    /// Min-ready requests do not wait for room.
    NoRoomForMinReady {
        shortage: CapacityShortage,
    },
    /// The same while the pool is drained.
    DrainedForMinReady {
        scope: Box<str>,
    },
    /// The same while the provider did not start.
    UnreachableForMinReady {
        reason: Box<str>,
    },
}

impl Decline {
    /// Returns whether the reason holds after a drain, too. Images and labels may be changed during the drain.
    pub(crate) fn outlasts_drain(&self) -> bool {
        !matches!(self, Self::ImageMissing { .. } | Self::BrokenLabel { .. })
    }
}

/// How a request is served: one step for each of its labels, in their order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Acceptance {
    pub pool: PoolKey,
    pub steps: Vec<NodeStep>,
    /// Where to launch; all nodes of a request are in one zone.
    #[serde(with = "zone")]
    pub zone: Option<ZoneName>,
}

impl Acceptance {
    /// Returns the reused nodes.
    pub fn reused(&self) -> impl Iterator<Item = NodeId> {
        self.steps.iter().filter_map(|step| match step {
            NodeStep::Reuse { node, .. } => Some(*node),
            NodeStep::Launch { .. } => None,
        })
    }

    /// Returns the labels that are launched, with their cost.
    pub fn launched(&self) -> impl Iterator<Item = (&Label, &Resources)> {
        self.steps.iter().filter_map(|step| match step {
            NodeStep::Launch { label, cost } => Some((label, cost)),
            NodeStep::Reuse { .. } => None,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeStep {
    /// Lock this ready node, check that it is still free, allocate it.
    Reuse { label: Label, node: NodeId },
    /// Record, lock and launch a node; `cost` is its `resources`.
    Launch { label: Label, cost: Resources },
}

impl fmt::Display for RequestVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Skip(skip) => skip.fmt(f),
            Self::Yield(to) => write!(f, "leaves it to another pool: {to}"),
            Self::Defer(defer) => write!(f, "cannot serve it yet: {defer}"),
            Self::Reserve(shortage) => write!(f, "keeps room for it: {shortage}"),
            Self::Decline(reason) => write!(f, "declines: {reason}"),
            Self::Accept(acceptance) => acceptance.fmt(f),
        }
    }
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotWaiting { state } => write!(f, "nothing to do, the request is {state}"),
            Self::Taken { by } => write!(f, "nothing to do, {by} has taken it"),
            Self::AlreadyDeclined { reason: None } => f.write_str("has declined it"),
            Self::AlreadyDeclined {
                reason: Some(reason),
            } => write!(f, "has declined it: {reason}"),
            Self::NotRegistered => f.write_str("is not registered yet"),
            Self::Ignoring => f.write_str("takes no requests because max-concurrency is 0"),
            Self::Drained { scope } => write!(f, "does not take it, {scope} is drained"),
        }
    }
}

impl fmt::Display for Yield {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Affinity { provider, to } => {
                write!(
                    f,
                    "the request asks for provider {provider}, where {to} can serve it"
                )
            }
            Self::Cluster { provider, to } => {
                write!(
                    f,
                    "the request asks for provider {provider}, and {to} is in the same cluster"
                )
            }
            Self::Priority { own, theirs, to } => {
                write!(f, "{to} has priority {theirs}, this pool {own}")
            }
            Self::Labels { missing, to } => {
                write!(f, "it lacks {}, {to} has them all", CommaSeparated(missing))
            }
            Self::Refused { to } => {
                write!(f, "the cloud refuses launches, {to} can serve it")
            }
        }
    }
}

impl fmt::Display for Defer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shortage(shortage) => shortage.fmt(f),
            Self::Launching {
                launching,
                kept,
                max_concurrency,
            } => {
                write!(f, "{launching} launches are under way, ")?;
                if *kept > 0 {
                    write!(f, "{kept} are kept for requests before it, ")?;
                }
                write!(f, "max-concurrency is {max_concurrency}")
            }
            Self::Refused { retry_in } => {
                f.write_str("the cloud refuses launches for lack of quota, ")?;
                match retry_in {
                    Some(seconds) => write!(f, "the next attempt is in {seconds} s"),
                    None => f.write_str("an attempt is under way"),
                }
            }
            Self::Image(image) => image.fmt(f),
            Self::Unreachable { reason } => write!(f, "its provider did not start: {reason}"),
        }
    }
}

impl fmt::Display for AwaitedImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { image, label, .. } = self;
        let stage = self.stage.display_at(&self.provider, self.at);
        write!(f, "image {image} of label {label} {stage}")?;
        if let Some(percent) = self.percent {
            write!(f, ", {percent} % done")?;
        }
        let Some(remaining) = self.remaining else {
            return Ok(());
        };
        let span = HumanDuration(Duration::from_secs(remaining.unsigned_abs()));
        if remaining >= 0 {
            write!(f, ", should be ready in {span}")
        } else {
            write!(f, ", should have been ready {span} ago")
        }
    }
}

impl fmt::Display for QuotaScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool(key) => write!(f, "pool {key}"),
            Self::Provider(name) => write!(f, "provider {name}"),
            Self::Tenant(name) => write!(f, "tenant {name}"),
        }
    }
}

impl fmt::Display for CapacityShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quota(sum) => sum.fmt(f),
            Self::Machines {
                label,
                needed,
                free,
            } => write!(
                f,
                "{needed} machines with label {label} needed, {free} free"
            ),
        }
    }
}

impl fmt::Display for QuotaShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            scope,
            resource,
            limit,
            needed,
            used,
            ..
        } = self;
        write!(
            f,
            "{needed} {resource} needed, {scope} has {used} of {limit} in use"
        )?;
        for (amount, what) in [
            (self.foreign, "used by others"),
            (self.launching, "about to be launched"),
            (self.kept, "kept for requests before it"),
        ] {
            if amount > Quantity::ZERO {
                write!(f, ", {amount} {what}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Decline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoServers => f.write_str("max-servers is 0"),
            Self::OtherCluster { provider } => write!(
                f,
                "the request asks for provider {provider}, this one is elsewhere and has `affinity: require`"
            ),
            Self::UnknownLabels { labels } => {
                write!(f, "it does not offer {}", CommaSeparated(labels))
            }
            Self::BrokenLabel { label, reason } => {
                write!(f, "label {label} cannot work: {reason}")
            }
            Self::ImageMissing {
                label,
                image,
                reason,
            } => {
                write!(f, "image {image} of label {label} is not available")?;
                match reason {
                    Some(reason) => write!(f, ": {reason}"),
                    None => Ok(()),
                }
            }
            Self::TooLarge {
                scope,
                resource,
                limit,
                needed,
            } => write!(
                f,
                "{needed} {resource} needed, {scope} allows {limit} in all"
            ),
            Self::TooFewMachines {
                label,
                exist,
                needed,
            } => write!(
                f,
                "{needed} machines with label {label} needed, {exist} exist"
            ),
            Self::NoRoomForMinReady { shortage } => {
                write!(f, "no room for a min-ready node: {shortage}")
            }
            Self::DrainedForMinReady { scope } => {
                write!(
                    f,
                    "no min-ready nodes are launched while {scope} is drained"
                )
            }
            Self::UnreachableForMinReady { reason } => write!(
                f,
                "no min-ready nodes are launched while its provider does not start: {reason}"
            ),
        }
    }
}

impl fmt::Display for Acceptance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("serves it:")?;
        for (index, step) in self.steps.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match step {
                NodeStep::Reuse { label, node } => write!(f, "{comma} {label} is node {node}")?,
                NodeStep::Launch { label, .. } => write!(f, "{comma} {label} is launched")?,
            }
        }
        Ok(())
    }
}

/// Separated by commas.
pub(crate) struct CommaSeparated<'a, T>(pub(crate) &'a [T]);

impl<T: fmt::Display> fmt::Display for CommaSeparated<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, item) in self.0.iter().enumerate() {
            write!(f, "{}{item}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

mod resource_name {
    use nodeyard_model::ResourceName;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        name: &ResourceName,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(name.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<ResourceName, D::Error> {
        let name = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Ok(ResourceName::from(&*name))
    }
}

mod zone {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::setup::ZoneName;

    pub(super) fn serialize<S: Serializer>(
        zone: &Option<ZoneName>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        zone.as_deref().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<ZoneName>, D::Error> {
        Ok(Option::<Box<str>>::deserialize(deserializer)?.map(ZoneName::from))
    }
}
