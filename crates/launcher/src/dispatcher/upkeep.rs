//! Periodic clean-up and expiry, and responses to queries.

use nodeyard_model::{NodeState, RequestId, RequestState};
use nodeyard_plan::{expiry, orphans, protocol};
use nodeyard_store::view::Change;
use tracing::debug;

use super::cloud_polls::CloudPoll;
use super::{Dispatcher, Timer};
use crate::declined;
use crate::handle::{DrainStatus, LauncherStatus, PoolStatus, Query};
use crate::old_locks::OldLocks;
use crate::report::TaskReport;
use crate::settle;
use nodeyard_operations::drain::{self, DrainScope};

impl Dispatcher {
    /// Sets the clocks going.
    pub(super) fn begin_rounds(&mut self) {
        let timing = self.ctx.timing;
        self.timers.after(timing.pass, Timer::Pass);
        self.timers.after(timing.cleanup, Timer::Cleanup);
        self.timers.after(timing.cloud_check, Timer::CloudCheck);
    }

    pub(super) fn timer(&mut self, timer: Timer) {
        match timer {
            Timer::Release(pool, request) => {
                // The pool may be serving it again, and only this task would get its next command.
                let task = self.serving.get(&request);
                if !task.is_some_and(|task| task.concerns(&pool)) {
                    self.release(&pool, request);
                }
            }
            Timer::Settle(node) => {
                self.settling.remove(&node);
                self.scheduler.mark_for_orphan_check(node);
            }
            Timer::Recover(request) => {
                self.recover_again(request);
                self.feed_request(request);
            }
            Timer::Start(provider) => self.start_again(&provider),
            Timer::Assign(key) => {
                self.deferred.insert(key);
            }
            Timer::Pass => {
                self.feed_everything();
                self.scheduler.wake_all();
                self.scheduler.recheck_ready_nodes();
                self.images_changed(&Change::Everything);
                self.timers.after(self.ctx.timing.pass, Timer::Pass);
            }
            Timer::Cleanup => self.clean_up(),
            Timer::CloudCheck => {
                self.poll_clouds(CloudPoll::List);
                self.timers
                    .within(self.ctx.timing.cloud_check, Timer::CloudCheck);
            }
            Timer::Expiry => self.expire(),
            Timer::FailDeclined => self.fail_declined(),
            Timer::KeepReady => self.ready_nodes.pausing = false,
            Timer::End(request) => self.ready_nodes.not_ended(request),
            Timer::Sample => self.sample_waiting(),
            Timer::Images => self.images_changed(&Change::Everything),
        }
    }

    fn clean_up(&mut self) {
        self.expire();
        for (node, state) in orphans::find(&self.scheduler).nodes {
            if state == NodeState::Deleted {
                self.settle(node);
            }
        }
        self.poll_clouds(CloudPoll::CollectGarbage);
        self.timers.after(self.ctx.timing.cleanup, Timer::Cleanup);
        if let Some(old_locks) = self.old_locks.take() {
            self.remove_old_locks(old_locks);
        }
    }

    /// Deletes old locks and empty records in the background, until [`TaskReport::CleanedUp`].
    fn remove_old_locks(&self, mut old_locks: OldLocks) {
        let ctx = self.ctx.clone();
        let work = async move {
            let work = async {
                let exists = |id| ctx.requests.get(&id).is_some();
                let old = (ctx.clock.now(), ctx.timing.lock_age);
                old_locks.remove(&ctx.registry, exists, old).await?;
                ctx.registry.nodes().delete_nameless_ghosts().await
            };
            let Some(removed) = ctx.unless_stopped(work).await else {
                return;
            };
            if let Err(error) = removed {
                debug!(%error, "failed to delete old locks of requests or empty records");
            }
            ctx.report(TaskReport::CleanedUp(old_locks));
        };
        let panicked = TaskReport::CleanedUp(OldLocks::default());
        self.ctx.spawn("old locks", work, panicked);
    }

    fn expire(&mut self) {
        let max_hold_age = self.config.borrow().max_hold_age.map(|age| *age);
        let now = self.ctx.clock.now();
        let plan = expiry::plan(&self.scheduler, &self.labels, max_hold_age, now);
        for expired in plan.expired {
            let why = expired.reason.to_string();
            settle::spawn_retire(&self.ctx, expired.node, expired.seen, why);
        }
        if let Some(at) = plan.again_at {
            self.timers.within(at.since(now), Timer::Expiry);
        }
    }

    /// Fails the requests that every registered pool has declined. Checks again later while there are any: another
    /// launcher may have the lock of one, or a pool of ours may be about to be registered.
    fn fail_declined(&mut self) {
        let registered = self.ctx.registered();
        let mut declined = Vec::new();
        self.ctx.requests.for_each(|request| {
            let record = &request.value;
            if record.state == RequestState::Requested
                && !record.declined_by.is_empty()
                && protocol::request::all_declined(record, &registered)
            {
                declined.push(request.id);
            }
        });
        if declined.is_empty() {
            return;
        }
        if self.is_complete() {
            for id in declined {
                if !self.serving.contains_key(&id) {
                    self.ctx.tasks.spawn(declined::run(self.ctx.clone(), id));
                }
            }
        }
        let grace = self.ctx.timing.departure_grace;
        self.timers.within(grace, Timer::FailDeclined);
    }

    pub(super) fn answer(&mut self, query: Query) {
        // The receiver may have been dropped.
        match query {
            Query::Explain(request, answer) => {
                let explanation = self.explain(request);
                let _ = answer.send(self.with_progress(explanation));
            }
            Query::Status(answer) => {
                let _ = answer.send(self.status());
            }
            Query::Drain(scope, on, answer) => {
                let ctx = self.ctx.clone();
                self.ctx.tasks.spawn(async move {
                    let tree = &**ctx.registry.tree();
                    let done = if on {
                        drain::begin(tree, &scope).await
                    } else {
                        drain::end(tree, &scope).await
                    };
                    let _ = answer.send(done.map(|_| ()));
                });
            }
        }
    }

    fn status(&self) -> LauncherStatus {
        let mut serving: Vec<RequestId> = self.serving.keys().copied().collect();
        serving.sort_unstable();
        let mut settling: Vec<_> = self.settling.iter().copied().collect();
        settling.sort_unstable();
        let drains = self.drains.items();
        let pools = self.pools().map(|(pool, paused)| PoolStatus {
            paused: paused || self.is_unreachable(&pool),
            drained: self.is_drained(&pool),
            pool,
        });
        let failed = self.failed_providers.iter();
        LauncherStatus {
            nodes: self.scheduler.node_count(),
            requests: self.scheduler.request_count(),
            pools: pools.collect(),
            failed_providers: failed
                .map(|(name, why)| (name.to_string(), why.clone()))
                .collect(),
            drains: drains
                .iter()
                .map(|drain| self.drain_status(&drain.id))
                .collect(),
            serving,
            settling,
        }
    }

    fn drain_status(&self, scope: &DrainScope) -> DrainStatus {
        let mut nodes = 0;
        self.ctx.nodes.for_each(|node| {
            let key = node.value.provider.clone().zip(node.value.pool.clone());
            let key = key.map(|(provider, pool)| nodeyard_plan::PoolKey::new(provider, pool));
            let covered = match scope {
                DrainScope::Label(label) => node.value.labels.contains(label),
                _ => key.is_some_and(|key| {
                    let ours = self.providers.contains_key(&key.provider);
                    ours && scope.covers(&self.options.hostname, &key)
                }),
            };
            nodes += usize::from(covered);
        });
        let serving = self.serving.keys().filter(|id| match scope {
            DrainScope::Label(label) => {
                let request = self.ctx.requests.get(id);
                request.is_some_and(|request| request.value.labels.contains(label))
            }
            _ => {
                let key = self.scheduler.taken_by(**id);
                key.is_some_and(|key| scope.covers(&self.options.hostname, key))
            }
        });
        DrainStatus {
            scope: scope.clone(),
            serving: serving.count(),
            nodes,
        }
    }
}
