//! The nodes of a request: ready ones are allocated, others recorded and launched, all at the same time.

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use nodeyard_model::{Label, Node, NodeId, NodeRequest, Resources, TenantName};
use nodeyard_plan::Zone;
use nodeyard_plan::protocol::{self, node::Planned};
use nodeyard_plan::verdict::{Acceptance, Step};
use nodeyard_store::ext::persist_in_session;
use nodeyard_store::registry::{Attempt, Held, Patience};
use nodeyard_store::{Error, Result};
use tokio::sync::oneshot;
use tracing::{Instrument as _, debug, info_span, warn};

use super::{Got, Serving, Taken};
use crate::launch::{Launch, LaunchError};
use crate::report::Report;

/// Before it is said that a node cannot be locked.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) enum Collected {
    All,
    /// These could not be had; the others were.
    Lacking(Vec<Label>),
    /// A launch failed for good, and why.
    Failed(String),
    RequestGone,
}

/// Why a label has no node.
#[derive(Debug)]
enum Miss {
    /// Somebody else was faster.
    Taken,
    /// There is no room for it after all.
    NoRoom,
    /// The cloud has refused it for lack of quota.
    Quota,
    Failed(String),
    Store(Error),
}

impl From<Error> for Miss {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl Serving {
    pub(super) async fn collect(
        &self,
        taken: &mut Taken,
        acceptance: &Acceptance,
    ) -> Result<Collected> {
        let Taken { held, got } = taken;
        let zone = acceptance.zone.as_ref();
        let steps = acceptance.steps.iter().map(|step| async {
            match step {
                Step::Reuse { label, node } => (label, self.reuse(label, *node, &held.value).await),
                Step::Launch { label, cost } => {
                    (label, self.launch(label, cost, zone, &held.value).await)
                }
            }
        });
        let mut steps: FuturesUnordered<_> = steps.collect();
        let (mut missing, mut failed) = (Vec::new(), None);
        loop {
            let step = tokio::select! {
                step = steps.next() => step,
                () = self.gone.cancelled() => return Ok(Collected::RequestGone),
                () = held.guard.lost() => return Err(Error::SessionExpired),
            };
            let Some((label, result)) = step else { break };
            match result {
                Ok(node) => got.push(node),
                Err(Miss::Store(error)) => return Err(error),
                Err(Miss::Failed(why)) => failed = Some(format!("{label}: {why}")),
                Err(miss) => {
                    debug!(%label, ?miss, "failed to get node");
                    // Known at once, although the other machines may take minutes to boot.
                    if let Miss::Quota = miss {
                        let request = self.id;
                        self.ctx.report(Report::LaunchRefused { request });
                    }
                    missing.push(label.clone());
                }
            }
        }
        Ok(if let Some(why) = failed {
            Collected::Failed(why)
        } else if missing.is_empty() {
            Collected::All
        } else {
            Collected::Lacking(missing)
        })
    }

    async fn reuse(&self, label: &Label, node: NodeId, request: &NodeRequest) -> Result<Got, Miss> {
        let mut got = self.lock_ready(label, node).await?.ok_or(Miss::Taken)?;
        let Ok(allocated) = protocol::node::allocate(Some(&got.held.value), self.id, request)
        else {
            got.held.guard.release().await?;
            return Err(Miss::Taken);
        };
        got.held.value = allocated;
        self.store(&mut got).await?;
        if self.counts_for_tenant(&got.held.value) && self.is_too_much(&got).await? {
            self.let_go(got).await?;
            return Err(Miss::NoRoom);
        }
        Ok(got)
    }

    /// Whether handing over these ready nodes may exceed what their tenant may have. Other launchers may give it some at
    /// the same time, so it must be looked at after they are allocated and before they are handed over.
    pub(super) fn may_exceed_tenant(&self, acceptance: &Acceptance) -> bool {
        let Some(request) = self.ctx.requests.get(&self.id) else {
            return false;
        };
        let nodes = acceptance.steps.iter().filter_map(|step| match step {
            Step::Reuse { node, .. } => self.ctx.nodes.get(node),
            Step::Launch { .. } => None,
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
        zone: Option<&Zone>,
        request: &NodeRequest,
    ) -> Result<Got, Miss> {
        let Some(pool) = self.pool_run() else {
            return Err(Miss::Failed("its pool has gone".to_owned()));
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
            // A launcher that has not seen the request yet looks after the node, and leaves it alone.
            let held = loop {
                match nodes.lock(id, Patience::For(LOCK_PATIENCE)).await? {
                    Attempt::Held(held) => break *held,
                    Attempt::Busy => warn!("timed out locking newly created node; retrying"),
                    Attempt::Gone => return Err(Miss::Taken),
                }
            };
            let mut got = Got {
                label: label.clone(),
                id,
                held,
                launched: true,
            };
            if self.is_too_much(&got).await? {
                nodes.delete(id, got.held, self.ctx.clock.now()).await?;
                return Err(Miss::NoRoom);
            }
            let begun = protocol::node::begin(Some(&got.held.value), self.id, self.ctx.clock.now());
            // The launch writes it, with everything else that is known before there is a machine.
            got.held.value = begun.map_err(|_| Miss::Taken)?;
            self.start(label, request, &mut got.held, id).await?;
            Ok(got)
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
    ) -> Result<(), Miss> {
        let launch = Launch {
            ctx: &self.ctx,
            provider: &self.provider,
            pool: &self.pool,
            label,
            request: self.id,
            record: request,
            node,
        };
        launch.run(held).await.map_err(|error| match error {
            LaunchError::Quota => Miss::Quota,
            LaunchError::Failed(why) => Miss::Failed(why),
            LaunchError::Store(error) => Miss::Store(error),
        })
    }

    /// Several launchers may have recorded or allocated nodes at the same time. Whoever was later than the limit allows
    /// gives way, before anything is asked of the cloud or handed over.
    async fn is_too_much(&self, got: &Got) -> Result<bool> {
        self.ctx.nodes.synced().await?;
        let (answer, verdict) = oneshot::channel();
        self.ctx.report(Report::IsTooMuch {
            node: got.id,
            launched: got.launched,
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

    async fn store(&self, got: &mut Got) -> Result<()> {
        let nodes = self.ctx.registry.nodes();
        let store = || nodes.store(&got.held.guard, got.id, &got.held.value);
        got.held.stat = persist_in_session(&**got.held.guard.tree(), store).await?;
        Ok(())
    }
}
