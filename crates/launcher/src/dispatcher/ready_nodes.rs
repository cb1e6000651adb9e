//! Nodes that are to be ready before anybody wants them.
//!
//! What is missing is only suspected here, from views that follow the store each at its own pace. Before anything is
//! asked for, the protocol of [`min_ready`] is followed: under a lock that all launchers share, with both views
//! brought up to date one after the other.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_model::{Label, NodeRequest, RequestId, RequestState, Timestamp};
use nodeyard_plan::min_ready::Submit;
use nodeyard_plan::{MIN_READY_REQUESTOR, min_ready};
use nodeyard_store::{Error, Result, TreePath};
use tokio::sync::oneshot;
use tracing::{debug, warn};
use uuid::Uuid;

use super::{Dispatcher, Timer};
use crate::context::Context;
use crate::drain::Scope;
use crate::report::Report;
use crate::settle;

/// Whoever asks for ready nodes holds this lock.
const LOCK: &str = "/nodeyard/min-ready";
/// After a request for a ready node has failed, or could not be made.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct ReadyNodes {
    /// Our own requests.
    own: BTreeSet<RequestId>,
    asking: bool,
    /// The last attempt failed; the next one waits.
    pub(super) pausing: bool,
}

impl ReadyNodes {
    pub(super) fn forget(&mut self, request: RequestId) {
        self.own.remove(&request);
    }

    /// Our requests are gone with their session.
    pub(super) fn forget_all(&mut self) {
        self.own.clear();
    }
}

impl Dispatcher {
    /// Looks whether ready nodes are missing, and whether those that were asked for have come.
    pub(super) fn keep_ready(&mut self) {
        if !self.labels.values().any(|label| label.min_ready > 0) {
            let departed = self.world.departed();
            self.world.nodes_seen(&departed);
            return;
        }
        let plan = min_ready::plan(&self.world, &self.labels, &self.ready_nodes.own);
        for (id, nodes) in plan.collect {
            self.end_request(id, nodes);
        }
        for id in plan.discard {
            debug!(request = %id, "a ready node could not be had");
            self.end_request(id, Vec::new());
            self.pause();
        }
        let idle = !self.ready_nodes.asking && !self.ready_nodes.pausing;
        if idle && (!self.wanted(plan.submit).is_empty() || !self.world.departed().is_empty()) {
            self.ready_nodes.asking = true;
            self.ctx.tasks.spawn(ask(self.ctx.clone()));
        }
    }

    /// A label for each node that is missing and has room.
    pub(super) fn missing(&self) -> Vec<Label> {
        let plan = min_ready::plan(&self.world, &self.labels, &BTreeSet::new());
        self.wanted(plan.submit)
    }

    fn wanted(&self, submit: Vec<Submit>) -> Vec<Label> {
        let drained = |label: &Label| self.drains.get(&Scope::Label(label.clone())).is_some();
        let missing = submit.into_iter().filter(|of| !drained(&of.label));
        missing
            .flat_map(|of| std::iter::repeat_n(of.label, of.count))
            .collect()
    }

    fn end_request(&mut self, id: RequestId, nodes: Vec<nodeyard_model::NodeId>) {
        self.ready_nodes.forget(id);
        self.ctx
            .tasks
            .spawn(settle::collect(self.ctx.clone(), id, nodes));
    }

    fn pause(&mut self) {
        self.ready_nodes.pausing = true;
        self.timers.within(PAUSE, Timer::KeepReady);
    }

    pub(super) fn asked(&mut self, made: Result<Vec<RequestId>>) {
        self.ready_nodes.asking = false;
        match made {
            Ok(made) => {
                for id in made {
                    self.ready_nodes.own.insert(id);
                    self.feed_request(id);
                }
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                warn!(
                    error,
                    "ready nodes could not be asked for; trying again soon"
                );
                self.pause();
            }
        }
    }
}

async fn ask(ctx: Context) {
    let made = tokio::select! {
        made = ask_for_missing(&ctx) => made,
        () = ctx.stop.cancelled() => return,
    };
    ctx.report(Report::Asked(made));
}

async fn ask_for_missing(ctx: &Context) -> Result<Vec<RequestId>> {
    let lock = ctx.registry.locks().lock(TreePath::new(LOCK)?);
    let guard = lock.acquire().await?;
    ctx.requests.synced().await?;
    let departed = answered(ctx, Report::Departed).await?;
    ctx.nodes.synced().await?;
    let missing = answered(ctx, |answer| Report::Missing { departed, answer }).await?;
    let mut made = Vec::with_capacity(missing.len());
    for label in missing {
        let record = request_for(&label, ctx.clock.now());
        let requests = ctx.registry.requests();
        let (id, stat) = requests
            .create_under(&guard, min_ready::PRECEDENCE, &record)
            .await?;
        ctx.requests.wrote(id, Arc::new(record), stat);
        made.push(id);
    }
    guard.release().await?;
    Ok(made)
}

/// Asks the dispatcher, which looks at all changes so far before it answers.
async fn answered<T>(
    ctx: &Context,
    question: impl FnOnce(oneshot::Sender<T>) -> Report,
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
