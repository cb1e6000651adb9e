//! Reports of tasks to the dispatcher.

use std::collections::BTreeSet;
use std::sync::Arc;

use nodeyard_driver::Resource;
use nodeyard_model::{Label, Limits, NodeId, PoolName, ProviderName, RequestId};
use nodeyard_plan::verdict::QuotaShortage;
use nodeyard_plan::{LabelReadiness, ZoneName};
use tokio::sync::oneshot;

use crate::error::StartError;
use crate::old_locks::OldLocks;
use crate::provider::Provider;

#[derive(Debug)]
pub(crate) enum TaskReport {
    /// The work on a request has ended.
    Served {
        request: RequestId,
        outcome: ServeOutcome,
    },
    /// The cloud makes a machine for a request.
    LaunchAccepted { request: RequestId },
    /// The cloud refused a launch because its quota is used up.
    LaunchRefused { request: RequestId },
    /// A request that was accepted needs these again.
    Lacking {
        request: RequestId,
        missing: Vec<Label>,
        zone: Option<ZoneName>,
    },
    /// Whether a node that was recorded just now exceeds a limit, or one that was allocated that of its tenant.
    ExceedsLimit {
        node: NodeId,
        launched: bool,
        answer: oneshot::Sender<Option<QuotaShortage>>,
    },
    /// Asks whether all our pools are registered, so that a request may be declined.
    IsComplete(oneshot::Sender<bool>),
    /// The work on a node has ended.
    Settled { node: NodeId, outcome: Settled },
    /// An idle node could not be made to go.
    NotEvicted(NodeId),
    /// The work on a request that its launcher left has ended.
    Recovered {
        request: RequestId,
        outcome: Recovered,
    },
    /// Which nodes are allocated to a request, as far as nodes are seen now.
    NodesOf {
        request: RequestId,
        answer: oneshot::Sender<Vec<NodeId>>,
    },
    Started {
        provider: ProviderName,
        attempt: u64,
        result: Result<Arc<Provider>, StartError>,
    },
    /// A provider's cloud was polled.
    Inventory(Box<Inventory>),
    /// Which requests for ready nodes have gone, as far as requests are seen now.
    RemovedMinReady(oneshot::Sender<BTreeSet<RequestId>>),
    /// Which ready nodes are missing, now that the nodes of these requests have been seen.
    Missing {
        removed_min_ready: BTreeSet<RequestId>,
        answer: oneshot::Sender<Vec<Label>>,
    },
    /// Ready nodes were asked for.
    Asked(nodeyard_store::Result<()>),
    /// A request of our own for ready nodes was ended.
    Ended {
        request: RequestId,
        ended: nodeyard_store::Result<()>,
    },
    /// Old locks were deleted. The state of the others saves the next round a read.
    CleanedUp(OldLocks),
}

/// Returns the error of a task that panicked.
pub(crate) fn panicked() -> nodeyard_store::Error {
    nodeyard_store::Error::Backend {
        context: "the task panicked".to_owned(),
        source: "this is a bug in this program; the log has the place".into(),
    }
}

/// The result of polling a cloud. What could not be listed is absent.
#[derive(Debug)]
pub(crate) struct Inventory {
    pub(crate) provider: Arc<Provider>,
    pub(crate) limits: Option<Limits>,
    pub(crate) resources: Option<Vec<Resource>>,
    pub(crate) readiness: Vec<(PoolName, Label, LabelReadiness)>,
    /// A broken label works now.
    pub(crate) mended: bool,
    pub(crate) zones: Vec<(PoolName, Vec<ZoneName>)>,
}

impl Inventory {
    pub(crate) fn nothing(provider: Arc<Provider>) -> Self {
        Self {
            provider,
            limits: None,
            resources: None,
            readiness: Vec::new(),
            mended: false,
            zones: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServeOutcome {
    Fulfilled,
    Declined,
    /// Declined, because the cloud did not make a machine.
    LaunchFailed,
    /// It was requeued for any pool.
    Requeued,
    /// The requestor has deleted it.
    Gone,
    /// Another contender holds it, or it cannot be served as planned.
    Conflict,
    /// The connection to the store was lost; the request will be recovered.
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    /// Nothing is left to do.
    Done,
    /// Its lock was held, or the connection to the store was lost.
    Busy,
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recovered {
    /// It is recovered, or does not need it.
    Done,
    Again,
}
