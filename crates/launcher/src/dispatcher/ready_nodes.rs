//! Requests ready nodes (`min-ready`), and collects them.
//!
//! The views follow the store independently, so a missing node is only a candidate. Before it is requested, the
//! protocol of [`min_ready`] is followed: under a lock that all launchers share, with both views updated one after the
//! other.
//!
//! Own requests are identified by their records, so a request whose creation had no response is included. A request is
//! handled until it is deleted, so interrupted work is resumed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use nodeyard_model::{Label, NodeId, NodeRequest, RequestId, RequestState, Timestamp, layout};
use nodeyard_plan::{MIN_READY_REQUESTOR, min_ready};
use nodeyard_store::{Error, Result, SessionId, Stat, TreePath, ext};
use tokio::sync::oneshot;
use tracing::{debug, warn};
use uuid::Uuid;

use super::{Dispatcher, Timer};
use crate::context::Context;
use crate::report::{TaskReport, panicked};
use crate::settle;

/// After a request for a ready node has failed, or could not be made.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct ReadyNodes {
    /// Requests for ready nodes, of any launcher, and the session that each ends with.
    sessions: BTreeMap<RequestId, SessionId>,
    /// Those of them that are fulfilled or failed.
    ended: BTreeSet<RequestId>,
    /// Those of ours that are being deleted.
    ending: BTreeSet<RequestId>,
    asking: bool,
    /// The last attempt failed; the next one waits.
    pub(super) pausing: bool,
}

impl ReadyNodes {
    pub(super) fn saw(&mut self, id: RequestId, record: &NodeRequest, stat: &Stat) {
        if stat.is_ephemeral() && record.requestor.as_deref() == Some(MIN_READY_REQUESTOR) {
            self.sessions.insert(id, SessionId(stat.ephemeral_owner));
            if record.state.is_final() {
                self.ended.insert(id);
            }
        }
    }

    pub(super) fn forget(&mut self, request: RequestId) {
        self.sessions.remove(&request);
        self.ended.remove(&request);
        self.ending.remove(&request);
    }

    /// Marks a request as not ended, so that it is tried again.
    pub(super) fn not_ended(&mut self, request: RequestId) {
        self.ending.remove(&request);
    }

    /// Returns the requests of a session that are done, apart from those that are being deleted.
    fn ended(&self, session: Option<SessionId>) -> BTreeSet<RequestId> {
        let is_ours = |id: &RequestId| session.as_ref() == self.sessions.get(id);
        let ours = self.ended.difference(&self.ending).copied();
        ours.filter(|id| session.is_some() && is_ours(id)).collect()
    }
}

impl Dispatcher {
    /// Checks whether ready nodes are missing, and whether requested ones are ready.
    pub(super) fn keep_ready(&mut self) {
        let ended = self.ready_nodes.ended(self.session);
        let finished = min_ready::finished(&self.scheduler, &ended);
        for (id, nodes) in finished.collect {
            self.end_request(id, nodes);
        }
        for id in finished.discard {
            debug!(request = %id, "failed to launch ready node");
            self.end_request(id, Vec::new());
            self.pause();
        }
        if !self.scheduler.keeps_nodes_ready() {
            if self.scheduler.has_removed_min_ready() {
                let removed_min_ready = self.scheduler.removed_min_ready();
                self.scheduler.nodes_seen(&removed_min_ready);
            }
            return;
        }
        let idle = !self.ready_nodes.asking && !self.ready_nodes.pausing;
        if idle && (self.scheduler.ready_nodes_wanted() || self.scheduler.has_removed_min_ready()) {
            self.ready_nodes.asking = true;
            let panicked = TaskReport::Asked(Err(panicked()));
            let work = ask(self.ctx.clone());
            self.ctx.spawn("ready nodes", work, panicked);
        }
    }

    /// Returns a label for each missing node that has room.
    pub(super) fn missing(&self) -> Vec<Label> {
        let plan = min_ready::plan(&self.scheduler, &self.labels, &BTreeSet::new());
        let submit = plan.submit.into_iter();
        submit
            .flat_map(|of| std::iter::repeat_n(of.label, of.count))
            .collect()
    }

    fn end_request(&mut self, id: RequestId, nodes: Vec<NodeId>) {
        self.ready_nodes.ending.insert(id);
        let panicked = TaskReport::Ended {
            request: id,
            ended: Err(panicked()),
        };
        self.ctx
            .spawn(id, end(self.ctx.clone(), id, nodes), panicked);
    }

    /// One that went is seen to be gone before the next decision.
    pub(super) fn ended(&mut self, request: RequestId, ended: Result<()>) {
        let Err(error) = ended else {
            self.ready_nodes.not_ended(request);
            return;
        };
        let error = &error as &dyn std::error::Error;
        warn!(%request, error, "failed to end request for ready nodes; retrying");
        self.timers
            .after(self.ctx.timing.delete_retry, Timer::End(request));
    }

    fn pause(&mut self) {
        self.ready_nodes.pausing = true;
        self.timers.within(PAUSE, Timer::KeepReady);
    }

    pub(super) fn asked(&mut self, asked: Result<()>) {
        self.ready_nodes.asking = false;
        if let Err(error) = asked {
            let error = &error as &dyn std::error::Error;
            warn!(error, "failed to request ready nodes; retrying");
            self.scheduler.recheck_ready_nodes();
            self.pause();
        }
    }
}

/// Goes on when the store comes back. What it does when the session is another one by then is harmless: the request is
/// gone, and nodes that it left may become free.
async fn end(ctx: Context, request: RequestId, nodes: Vec<NodeId>) {
    let tree = &**ctx.registry.tree();
    let work = ext::persist(tree, || settle::collect(&ctx, request, &nodes));
    if let Some(ended) = ctx.unless_stopped(work).await {
        ctx.report(TaskReport::Ended { request, ended });
    }
}

async fn ask(ctx: Context) {
    if let Some(asked) = ctx.unless_stopped(request_missing(&ctx)).await {
        ctx.report(TaskReport::Asked(asked));
    }
}

/// Requests the missing nodes. If interrupted, the next attempt sees the requests of this one.
async fn request_missing(ctx: &Context) -> Result<()> {
    let lock = ctx
        .registry
        .locks()
        .lock(TreePath::new(layout::MIN_READY_LOCK)?);
    let guard = lock.acquire().await?;
    ctx.requests.synced().await?;
    let removed_min_ready = answered(ctx, TaskReport::RemovedMinReady).await?;
    ctx.nodes.synced().await?;
    let missing = answered(ctx, |answer| TaskReport::Missing {
        removed_min_ready,
        answer,
    })
    .await?;
    for label in missing {
        let record = request_for(&label, ctx.clock.now());
        let requests = ctx.registry.requests();
        let (id, stat) = requests
            .create_under(&guard, min_ready::PRECEDENCE, &record)
            .await?;
        ctx.requests.wrote(id, Arc::new(record), stat);
    }
    guard.release().await
}

/// Queries the dispatcher, which processes all changes so far first.
async fn answered<T>(
    ctx: &Context,
    question: impl FnOnce(oneshot::Sender<T>) -> TaskReport,
) -> Result<T> {
    let (answer, answered) = oneshot::channel();
    ctx.report(question(answer));
    answered.await.map_err(|_| Error::Closed)
}

fn request_for(label: &Label, now: Timestamp) -> NodeRequest {
    let mut request = NodeRequest::new(RequestState::Requested, now);
    request.labels = vec![label.clone()];
    request.requestor = Some(MIN_READY_REQUESTOR.into());
    request.reuse = false;
    request.event_id = Some(Uuid::new_v4().simple().to_string().into());
    request.created_time = Some(now);
    request
}
