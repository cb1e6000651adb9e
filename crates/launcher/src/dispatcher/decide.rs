//! Executes the decisions of the scheduler, and processes the reports of tasks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_driver_common::ImageSettings;
use nodeyard_model::{Label, NodeId, NodeState, RequestId};
use nodeyard_plan::assign::{Decision, DecisionInputs, Retry};
use nodeyard_plan::protocol::node::ObservedState;
use nodeyard_plan::verdict::{Decline, QuotaScope};
use nodeyard_plan::{PoolKey, RequestVerdict, ZoneName, orphans};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};
use uuid::Uuid;

use super::cloud_polls::CloudPoll;
use super::{Dispatcher, ServingTask, Timer, ViewChanges};
use crate::provider::Provider;
use crate::report::{Recovered, ServeOutcome, Settled, TaskReport};
use crate::serve::{INCOMPLETE_PAUSE, ServeCommand, Serving};
use crate::{recover, settle};

/// Before a request is planned anew that could not be served as planned; doubles each time.
const RETRY_DELAY: Duration = Duration::from_millis(20);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);

/// The delay before nodes are deleted that were reserved for a request and unassigned from it. They occupy quota until then.
const EXPIRY_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause before a deletion that failed is retried. The first is the `delete_retry` of the options; it doubles
/// each time.
const DELETE_PAUSE_MOST: Duration = Duration::from_secs(300);

impl Dispatcher {
    pub(super) fn decision_inputs(&self) -> DecisionInputs {
        let (seed, _) = Uuid::new_v4().as_u64_pair();
        DecisionInputs {
            now: self.ctx.clock.now(),
            seed,
        }
    }

    /// Executes all decisions that are due. Returns true if there is more to decide at once.
    pub(super) fn decide(&mut self) -> bool {
        self.requeue_revoked();
        let mut stale = self.scheduler.take_stale();
        stale.append(&mut self.deferred);
        let more = !stale.is_empty();
        for key in stale {
            self.pass(&key);
        }
        self.clean();
        self.keep_ready();
        more
    }

    fn pass(&mut self, key: &PoolKey) {
        let decision_inputs = self.decision_inputs();
        let pass = self.scheduler.assign(key, decision_inputs);
        for decision in pass.decisions {
            self.execute(key, decision);
        }
        for eviction in pass.evictions {
            let why = format!("request {} needs its room", eviction.wanted_by);
            let seen = ObservedState::ready(eviction.since);
            settle::spawn_retire(&self.ctx, eviction.node, seen, why);
        }
        if let Some(at) = pass.again_at {
            let delay = at
                .since(decision_inputs.now)
                .saturating_add(Duration::from_millis(1));
            self.timers.within(delay, Timer::Assign(key.clone()));
        }
        self.announce(key, pass.paused);
    }

    fn execute(&mut self, key: &PoolKey, decision: Decision) {
        let order = match decision.verdict {
            RequestVerdict::Accept(acceptance) => ServeCommand::Accept(acceptance),
            RequestVerdict::Reserve(_) => ServeCommand::Reserve,
            RequestVerdict::Decline(ref reason)
                if self.may_change(key, reason) && self.requeue_reserved(key, decision.request) =>
            {
                return;
            }
            RequestVerdict::Decline(_) if !self.is_complete() => {
                let timer = Timer::Release(key.clone(), decision.request);
                self.timers.after(INCOMPLETE_PAUSE, timer);
                return;
            }
            RequestVerdict::Decline(ref reason)
                if self.depends_on_cloud(key, reason)
                    && self.poll_cloud_for(key, decision.request) =>
            {
                return;
            }
            RequestVerdict::Decline(reason) => ServeCommand::Decline(reason.to_string()),
            RequestVerdict::Skip(_) | RequestVerdict::Yield(_) | RequestVerdict::Defer(_) => return,
        };
        self.send_command(key, decision.request, order);
    }

    fn may_change(&self, key: &PoolKey, reason: &Decline) -> bool {
        !self.is_complete() || self.depends_on_cloud(key, reason)
    }

    /// Requeues a reserved request that may have to be declined. It is decided while it waits like any other, since a
    /// request whose decision is delayed must not stay reserved.
    fn requeue_reserved(&self, key: &PoolKey, id: RequestId) -> bool {
        let task = self.serving.get(&id).filter(|task| task.pool == *key);
        let order = ServeCommand::Requeue("it may have to be declined");
        task.is_some_and(|task| task.orders.send(order).is_ok())
    }

    /// Returns whether the reason for a decline depends on the state of the cloud.
    fn depends_on_cloud(&self, key: &PoolKey, reason: &Decline) -> bool {
        match reason {
            Decline::BrokenLabel { .. } => true,
            // The use by others or the quota may have changed.
            Decline::TooLarge { scope, .. } => matches!(scope, QuotaScope::Provider(_)),
            Decline::ImageMissing { label, .. } => {
                let running = self.providers.get(&key.provider);
                let settings = running.and_then(|running| running.provider.label(&key.pool, label));
                settings.is_some_and(|settings| matches!(settings.image, ImageSettings::Cloud(_)))
            }
            _ => false,
        }
    }

    /// Sends a command to the task of a request. Starts the task if there is none.
    fn send_command(&mut self, key: &PoolKey, id: RequestId, order: ServeCommand) {
        let order = match self.serving.get_mut(&id) {
            Some(task) if task.pool == *key => match task.orders.send(order) {
                Ok(()) => return,
                // The task has ended, and its report is pending.
                Err(mpsc::error::SendError(order)) => {
                    task.next.push_back((key.clone(), order));
                    return;
                }
            },
            Some(task) => {
                task.next.push_back((key.clone(), order));
                return;
            }
            None => order,
        };
        let Some(provider) = self.provider(key) else {
            self.scheduler.release(key, id);
            return;
        };
        let (orders, inbox) = mpsc::unbounded_channel();
        let gone = CancellationToken::new();
        let serving = Serving {
            ctx: self.ctx.clone(),
            provider: Arc::clone(&provider),
            pool: key.pool.clone(),
            id,
            orders: inbox,
            gone: gone.clone(),
        };
        let panicked = TaskReport::Served {
            request: id,
            outcome: ServeOutcome::Lost,
        };
        self.ctx.spawn(id, serving.run(order), panicked);
        let task = ServingTask {
            pool: key.clone(),
            provider,
            orders,
            gone,
            next: VecDeque::new(),
        };
        self.serving.insert(id, task);
    }

    /// Requeues requests whose reservations were revoked.
    pub(super) fn requeue_revoked(&mut self) {
        for (key, id) in self.scheduler.revoke_reservations() {
            match self.serving.get_mut(&id) {
                // If it has ended, its report determines the state of the request.
                Some(task) if task.pool == key => {
                    let _ = task
                        .orders
                        .send(ServeCommand::Requeue("its pool is drained or gone"));
                }
                // Another pool serves it, and this one has not started.
                Some(task) => {
                    task.next.retain(|(pool, _)| *pool != key);
                    self.scheduler.release(&key, id);
                }
                // The connection to the store was lost; it will be planned again.
                None => {}
            }
        }
    }

    fn provider(&self, key: &PoolKey) -> Option<Arc<Provider>> {
        let running = self.providers.get(&key.provider)?;
        Some(Arc::clone(&running.provider))
    }

    /// Starts the clean-up of abandoned nodes and requests.
    fn clean(&mut self) {
        let orphans = orphans::take(&mut self.scheduler);
        let dangling = orphans.dangling.into_iter().map(|(node, _)| node);
        // The writer of `deleted` removes the record next; clean-up removes what it could not.
        let nodes = orphans.nodes.into_iter();
        let nodes = nodes.filter(|(_, state)| *state != NodeState::Deleted);
        let nodes = nodes.map(|(node, _)| node);
        for node in nodes.chain(dangling).chain(orphans.empty) {
            self.settle(node);
        }
        // When its lock is free, its nodes are reset and it is requeued. Until then it is not returned again.
        for request in self.scheduler.take_abandoned() {
            if self.serving.contains_key(&request) || self.recovering.contains_key(&request) {
                continue;
            }
            let cancelled = CancellationToken::new();
            let guard = cancelled.clone().drop_guard();
            self.recovering.insert(request, Some(guard));
            let panicked = TaskReport::Recovered {
                request,
                outcome: Recovered::Again,
            };
            let work = recover::run(self.ctx.clone(), request, cancelled);
            self.ctx.spawn(request, work, panicked);
        }
    }

    pub(super) fn settle(&mut self, id: NodeId) {
        if !self.settling.insert(id) {
            return;
        }
        let node = self.ctx.nodes.get(&id);
        let provider = node.and_then(|node| {
            let running = self.providers.get(node.value.provider.as_ref()?)?;
            let can_delete = !running.provider.is_unreachable;
            can_delete.then(|| Arc::clone(&running.provider))
        });
        let panicked = TaskReport::Settled {
            node: id,
            outcome: Settled::Failed,
        };
        let work = settle::run(self.ctx.clone(), provider, id);
        self.ctx.spawn(id, work, panicked);
    }

    pub(super) fn handle_report(&mut self, report: TaskReport, changes: &mut ViewChanges) {
        match report {
            // The nodes follow when the loop catches up, before the next decision.
            TaskReport::Served { request, outcome } => self.served(request, outcome),
            TaskReport::LaunchAccepted { request } => {
                self.scheduler.record_accepted_launch(request);
            }
            TaskReport::LaunchRefused { request } => {
                self.check_cloud_of(request);
                self.scheduler
                    .record_quota_refusal(request, self.ctx.clock.now());
            }
            TaskReport::Lacking {
                request,
                missing,
                zone,
            } => self.retry(request, &missing, zone.as_ref()),
            TaskReport::ExceedsLimit {
                node,
                launched,
                answer,
            } => {
                self.catch_up(changes);
                let excess = if launched {
                    self.scheduler.excess(node)
                } else {
                    self.scheduler.tenant_excess(node)
                };
                // The receiver is dropped if the request was abandoned.
                let _ = answer.send(excess);
            }
            TaskReport::Settled { node, outcome } => self.settled(node, outcome, changes),
            TaskReport::NotEvicted(node) => self.scheduler.release_eviction(node),
            TaskReport::Recovered { request, outcome } => match outcome {
                Recovered::Done => {
                    self.recovering.remove(&request);
                    self.feed_request(request);
                }
                Recovered::Again => {
                    if let Some(recovery) = self.recovering.get_mut(&request) {
                        *recovery = None;
                        let retry = self.ctx.timing.cleanup;
                        self.timers.within(retry, Timer::Recover(request));
                    }
                }
            },
            TaskReport::NodesOf { request, answer } => {
                self.catch_up(changes);
                // The receiver is dropped if the launcher stops.
                let _ = answer.send(self.scheduler.nodes_of(request).collect());
            }
            TaskReport::Started {
                provider,
                attempt,
                result,
            } => self.started(&provider, attempt, result),
            TaskReport::Inventory(inventory) => {
                self.catch_up(changes);
                self.take_inventory(*inventory);
            }
            // The receivers are dropped if the launcher stops.
            TaskReport::IsComplete(answer) => {
                let _ = answer.send(self.is_complete());
            }
            TaskReport::RemovedMinReady(answer) => {
                self.catch_up(changes);
                let _ = answer.send(self.scheduler.removed_min_ready());
            }
            TaskReport::Missing {
                removed_min_ready,
                answer,
            } => {
                self.catch_up(changes);
                self.scheduler.nodes_seen(&removed_min_ready);
                let _ = answer.send(self.missing());
            }
            TaskReport::Asked(asked) => self.asked(asked),
            TaskReport::Ended { request, ended } => self.ended(request, ended),
            TaskReport::CleanedUp(old_locks) => self.old_locks = Some(old_locks),
        }
    }

    fn settled(&mut self, node: NodeId, outcome: Settled, changes: &mut ViewChanges) {
        match outcome {
            Settled::Done | Settled::Busy => {
                self.settling.remove(&node);
                if outcome == Settled::Done {
                    self.failed_deletions.remove(&node);
                }
                self.catch_up(changes);
                self.scheduler.mark_for_orphan_check(node);
            }
            // It stays in `settling` until then.
            Settled::Failed => {
                let failures = self.failed_deletions.entry(node).or_default();
                let delay = delete_pause(self.ctx.timing.delete_retry, *failures);
                *failures += 1;
                self.timers.after(delay, Timer::Settle(node));
            }
        }
    }

    fn served(&mut self, id: RequestId, outcome: ServeOutcome) {
        let Some(task) = self.serving.remove(&id) else {
            return;
        };
        self.feed_request(id);
        match outcome {
            // The scheduler is updated by its record.
            ServeOutcome::Fulfilled => {}
            ServeOutcome::Declined | ServeOutcome::Requeued => {
                self.scheduler.release(&task.pool, id);
            }
            ServeOutcome::LaunchFailed => {
                self.scheduler.release(&task.pool, id);
                self.poll_cloud(&task.pool.provider, CloudPoll::List);
            }
            ServeOutcome::Gone | ServeOutcome::Conflict | ServeOutcome::Lost => {
                let retries = self.retries.entry(id).or_default();
                *retries += 1;
                let delay = RETRY_DELAY.saturating_mul(1 << (*retries).min(10));
                debug!(request = %id, ?outcome, retries, "planning request again");
                let timer = Timer::Release(task.pool, id);
                self.timers.after(delay.min(MAX_RETRY_DELAY), timer);
            }
        }
        for (pool, order) in task.next {
            self.send_command(&pool, id, order);
        }
    }

    pub(super) fn release(&mut self, pool: &PoolKey, id: RequestId) {
        self.recover_again(id);
        self.feed_request(id);
        self.scheduler.release(pool, id);
    }

    /// Allows another recovery of a request at once, without waiting for its timer.
    pub(super) fn recover_again(&mut self, id: RequestId) {
        if matches!(self.recovering.get(&id), Some(None)) {
            self.recovering.remove(&id);
        }
    }

    /// Decides on a reserved request that lacks nodes again.
    fn retry(&mut self, id: RequestId, missing: &[Label], zone: Option<&ZoneName>) {
        let decision_inputs = self.decision_inputs();
        let order = if self.is_outdated(id) {
            ServeCommand::Requeue("its provider has been replaced")
        } else {
            match self.scheduler.retry(id, missing, zone, decision_inputs) {
                Retry::Accept(acceptance) => ServeCommand::Accept(acceptance),
                Retry::Unassign(verdict) => {
                    debug!(request = %id, %verdict, "request waits again");
                    self.timers.within(EXPIRY_PAUSE, Timer::Expiry);
                    ServeCommand::Unassign
                }
                Retry::Requeue => {
                    ServeCommand::Requeue("it lacks nodes, and its pool is drained or gone")
                }
            }
        };
        match self.serving.get(&id) {
            Some(task) if task.orders.send(order).is_ok() => {}
            _ => warn!(request = %id, "request that lacks nodes is not being served"),
        }
    }

    /// Returns whether a request is served by a provider that was replaced. Its launches are finished; missing nodes
    /// are left to its successor.
    fn is_outdated(&self, id: RequestId) -> bool {
        let Some(task) = self.serving.get(&id) else {
            return false;
        };
        let now = self.providers.get(&task.pool.provider);
        now.is_none_or(|running| !Arc::ptr_eq(&running.provider, &task.provider))
    }
}

/// Returns the pause before a deletion is retried that has failed this often before.
fn delete_pause(first: Duration, failures: u32) -> Duration {
    let pause = first.saturating_mul(1 << failures.min(10));
    pause.min(DELETE_PAUSE_MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_deletions_are_retried_less_and_less_often() {
        let first = Duration::from_secs(5);
        let pauses = (0..8).map(|failures| delete_pause(first, failures).as_secs());
        let pauses: Vec<_> = pauses.collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(delete_pause(first, u32::MAX), DELETE_PAUSE_MOST);
        assert_eq!(delete_pause(Duration::MAX, 1), DELETE_PAUSE_MOST);
    }
}
