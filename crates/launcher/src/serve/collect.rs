//! Collects the nodes of a request concurrently: ready ones are allocated, others recorded and launched.

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use nodeyard_model::{Label, Node, NodeId, NodeRequest, Resources, TenantName};
use nodeyard_plan::ZoneName;
use nodeyard_plan::protocol::{self, node::Planned};
use nodeyard_plan::verdict::{Acceptance, NodeStep};
use nodeyard_store::ext::persist_in_session;
use nodeyard_store::registry::{Attempt, Held, Patience};
use nodeyard_store::{Error, Result};
use tokio::sync::oneshot;
use tracing::{Instrument as _, debug, info_span, warn};

use super::{AssignedNode, HeldRequest, Serving};
use crate::launch::{LaunchError, NodeLaunch};
use crate::report::TaskReport;

/// How long to wait for the lock of a new node before a warning.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) enum CollectOutcome {
    All,
    /// No nodes for these labels.
    Lacking(Vec<Label>),
    /// A launch failed permanently, with the reason.
    Failed(String),
    RequestGone,
}

/// Why a label has no node.
#[derive(Debug)]
enum NodeUnavailable {
    /// Another launcher has it.
    Taken,
    /// It exceeds a limit.
    NoRoom,
    /// The cloud has refused it for lack of quota.
    Quota,
    Failed(String),
    Store(Error),
}

impl From<Error> for NodeUnavailable {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl Serving {
    pub(super) async fn collect(
        &self,
        held_request: &mut HeldRequest,
        acceptance: &Acceptance,
    ) -> Result<CollectOutcome> {
        let HeldRequest { held, assigned } = held_request;
        let zone = acceptance.zone.as_ref();
        let steps = acceptance.steps.iter().map(|step| async {
            match step {
                NodeStep::Reuse { label, node } => {
                    (label, self.reuse(label, *node, &held.value).await)
                }
                NodeStep::Launch { label, cost } => {
                    (label, self.launch(label, cost, zone, &held.value).await)
                }
            }
        });
        let mut steps: FuturesUnordered<_> = steps.collect();
        let (mut missing, mut failed) = (Vec::new(), None);
        loop {
            let step = tokio::select! {
                step = steps.next() => step,
                () = self.gone.cancelled() => return Ok(CollectOutcome::RequestGone),
                () = held.guard.lost() => return Err(Error::SessionExpired),
            };
            let Some((label, result)) = step else { break };
            match result {
                Ok(node) => assigned.push(node),
                Err(NodeUnavailable::Store(error)) => return Err(error),
                Err(NodeUnavailable::Failed(why)) => failed = Some(format!("{label}: {why}")),
                Err(miss) => {
                    debug!(%label, ?miss, "failed to get node");
                    // Report it at once, although the other machines may take minutes to boot.
                    if let NodeUnavailable::Quota = miss {
                        let request = self.id;
                        self.ctx.report(TaskReport::LaunchRefused { request });
                    }
                    missing.push(label.clone());
                }
            }
        }
        Ok(if let Some(why) = failed {
            CollectOutcome::Failed(why)
        } else if missing.is_empty() {
            CollectOutcome::All
        } else {
            CollectOutcome::Lacking(missing)
        })
    }

    async fn reuse(
        &self,
        label: &Label,
        node: NodeId,
        request: &NodeRequest,
    ) -> Result<AssignedNode, NodeUnavailable> {
        let mut assigned = self
            .lock_ready(label, node)
            .await?
            .ok_or(NodeUnavailable::Taken)?;
        let Ok(allocated) = protocol::node::allocate(Some(&assigned.held.value), self.id, request)
        else {
            assigned.held.guard.release().await?;
            return Err(NodeUnavailable::Taken);
        };
        assigned.held.value = allocated;
        self.store(&mut assigned).await?;
        if self.counts_for_tenant(&assigned.held.value) && self.exceeds_limit(&assigned).await? {
            self.unassign(assigned).await?;
            return Err(NodeUnavailable::NoRoom);
        }
        Ok(assigned)
    }

    /// Returns whether allocating these ready nodes may exceed the limits of their tenant. Other launchers may
    /// allocate at the same time, so that is checked after they are allocated and before they are unlocked.
    pub(super) fn may_exceed_tenant(&self, acceptance: &Acceptance) -> bool {
        let Some(request) = self.ctx.requests.get(&self.id) else {
            return false;
        };
        let nodes = acceptance.steps.iter().filter_map(|step| match step {
            NodeStep::Reuse { node, .. } => self.ctx.nodes.get(node),
            NodeStep::Launch { .. } => None,
        });
        let mut nodes = nodes.map(|node| node.value);
        self.is_limited(request.value.tenant_name.as_ref())
            && nodes.any(|node| node.resources.is_some())
    }

    fn counts_for_tenant(&self, node: &Node) -> bool {
        node.resources.is_some() && self.is_limited(node.tenant_name.as_ref())
    }

    fn is_limited(&self, tenant: Option<&TenantName>) -> bool {
        let limits = &self.ctx.config.borrow().tenant_resource_limits;
        tenant.is_some_and(|tenant| limits.contains_key(tenant.as_str()))
    }

    async fn launch(
        &self,
        label: &Label,
        cost: &Resources,
        zone: Option<&ZoneName>,
        request: &NodeRequest,
    ) -> Result<AssignedNode, NodeUnavailable> {
        let Some(pool) = self.pool_run() else {
            return Err(NodeUnavailable::Failed("its pool has gone".to_owned()));
        };
        let planned = Planned {
            request: self.id,
            record: request,
            pool: &pool.key,
            launcher: &pool.id,
            label,
            cost,
            zone,
        };
        let nodes = self.ctx.registry.nodes();
        let record = protocol::node::planned(&planned, self.ctx.clock.now());
        let (id, _) = nodes.create(&record).await?;
        let span = info_span!("node", node = %id, provider = %self.provider.name);
        async {
            // A launcher that has not seen the request yet may inspect the node; it releases the lock without a
            // change.
            let held = loop {
                match nodes.lock(id, Patience::For(LOCK_PATIENCE)).await? {
                    Attempt::Held(held) => break *held,
                    Attempt::Busy => warn!("timed out locking newly created node; retrying"),
                    Attempt::Gone => return Err(NodeUnavailable::Taken),
                }
            };
            let mut assigned = AssignedNode {
                label: label.clone(),
                id,
                held,
                launched: true,
            };
            if self.exceeds_limit(&assigned).await? {
                nodes
                    .delete(id, assigned.held, self.ctx.clock.now())
                    .await?;
                return Err(NodeUnavailable::NoRoom);
            }
            let begun =
                protocol::node::begin(Some(&assigned.held.value), self.id, self.ctx.clock.now());
            // The launch writes it together with what is known before the machine exists.
            assigned.held.value = begun.map_err(|_| NodeUnavailable::Taken)?;
            self.start(label, request, &mut assigned.held, id).await?;
            Ok(assigned)
        }
        .instrument(span)
        .await
    }

    async fn start(
        &self,
        label: &Label,
        request: &NodeRequest,
        held: &mut Held<Node>,
        node: NodeId,
    ) -> Result<(), NodeUnavailable> {
        let launch = NodeLaunch {
            ctx: &self.ctx,
            provider: &self.provider,
            pool: &self.pool,
            label,
            request: self.id,
            record: request,
            node,
        };
        launch.run(held).await.map_err(|error| match error {
            LaunchError::Quota => NodeUnavailable::Quota,
            LaunchError::Failed(why) => NodeUnavailable::Failed(why),
            LaunchError::Store(error) => NodeUnavailable::Store(error),
        })
    }

    /// Returns whether a node exceeds a limit. Several launchers may have recorded or allocated nodes at the same
    /// time; the later one gives way before the cloud is called or the node is unlocked.
    async fn exceeds_limit(&self, assigned: &AssignedNode) -> Result<bool> {
        self.ctx.nodes.synced().await?;
        let (answer, verdict) = oneshot::channel();
        self.ctx.report(TaskReport::ExceedsLimit {
            node: assigned.id,
            launched: assigned.launched,
            answer,
        });
        match verdict.await {
            Ok(None) => Ok(false),
            Ok(Some(sum)) => {
                debug!(%sum, "limit reached by another launcher");
                Ok(true)
            }
            Err(_) => Err(Error::Closed),
        }
    }

    async fn store(&self, assigned: &mut AssignedNode) -> Result<()> {
        let nodes = self.ctx.registry.nodes();
        let store = || nodes.store(&assigned.held.guard, assigned.id, &assigned.held.value);
        assigned.held.stat = persist_in_session(&**assigned.held.guard.tree(), store).await?;
        Ok(())
    }
}
