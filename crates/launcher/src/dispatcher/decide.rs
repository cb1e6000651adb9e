//! What the picture says is to be done, and what became of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_driver_common::ImageSettings;
use nodeyard_model::{Label, NodeId, NodeState, RequestId};
use nodeyard_plan::assign::{Decision, Moment, Retry};
use nodeyard_plan::protocol::node::Seen;
use nodeyard_plan::verdict::{Decline, Ledger};
use nodeyard_plan::{PoolKey, Verdict, Zone, orphans};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};
use uuid::Uuid;

use super::cloud_polls::CloudPoll;
use super::{Dispatcher, News, Task, Timer};
use crate::provider::Provider;
use crate::report::{Recovered, Report, Served, Settled};
use crate::serve::{INCOMPLETE_PAUSE, Order, Serving};
use crate::{recover, settle};

/// Before a request is planned anew that could not be served as planned; doubles each time.
const SETBACK: Duration = Duration::from_millis(20);
const SETBACK_MOST: Duration = Duration::from_secs(2);

/// Before nodes are deleted that a request has given back and that were for it alone: they take room until then.
const EXPIRY_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause before a deletion that failed is retried. The first is the `delete_retry` of the options; it doubles
/// each time.
const DELETE_PAUSE_MOST: Duration = Duration::from_secs(300);

impl Dispatcher {
    pub(super) fn moment(&self) -> Moment {
        let (seed, _) = Uuid::new_v4().as_u64_pair();
        Moment {
            now: self.ctx.clock.now(),
            seed,
        }
    }

    /// Starts whatever is to be done now. True if there is more to decide at once.
    pub(super) fn decide(&mut self) -> bool {
        self.put_back();
        let mut stale = self.world.take_stale();
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
        let moment = self.moment();
        let pass = self.world.assign(key, moment);
        for decision in pass.decisions {
            self.carry_out(key, decision);
        }
        for eviction in pass.evictions {
            let why = format!("request {} needs its room", eviction.wanted_by);
            let seen = Seen::ready(eviction.since);
            settle::spawn_retire(&self.ctx, eviction.node, seen, why);
        }
        if let Some(at) = pass.again_at {
            let delay = at
                .since(moment.now)
                .saturating_add(Duration::from_millis(1));
            self.timers.within(delay, Timer::Assign(key.clone()));
        }
        self.announce(key, pass.paused);
    }

    fn carry_out(&mut self, key: &PoolKey, decision: Decision) {
        let order = match decision.verdict {
            Verdict::Accept(acceptance) => Order::Accept(acceptance),
            Verdict::Reserve(_) => Order::Reserve,
            Verdict::Decline(ref reason)
                if self.may_pass(key, reason) && self.let_go(key, decision.request) =>
            {
                return;
            }
            Verdict::Decline(_) if !self.is_complete() => {
                let timer = Timer::Release(key.clone(), decision.request);
                self.timers.after(INCOMPLETE_PAUSE, timer);
                return;
            }
            Verdict::Decline(ref reason)
                if self.is_lack_of_cloud(key, reason)
                    && self.poll_cloud_for(key, decision.request) =>
            {
                return;
            }
            Verdict::Decline(reason) => Order::Decline(reason.to_string()),
            Verdict::Skip(_) | Verdict::Yield(_) | Verdict::Defer(_) => return,
        };
        self.give(key, decision.request, order);
    }

    fn may_pass(&self, key: &PoolKey, reason: &Decline) -> bool {
        !self.is_complete() || self.is_lack_of_cloud(key, reason)
    }

    /// Puts a request back that a pool holds. Whether it is to be declined shows when it waits like any other: what is
    /// held while that is found out would be in nobody's hands afterwards.
    fn let_go(&self, key: &PoolKey, id: RequestId) -> bool {
        let task = self.serving.get(&id).filter(|task| task.pool == *key);
        let order = Order::PutBack("it may have to be declined");
        task.is_some_and(|task| task.orders.send(order).is_ok())
    }

    /// Whether a request is declined for want of something that the cloud has, or not, without us.
    fn is_lack_of_cloud(&self, key: &PoolKey, reason: &Decline) -> bool {
        match reason {
            Decline::BrokenLabel { .. } => true,
            // What others use of it, or what it grants, may have changed.
            Decline::TooLarge { ledger, .. } => matches!(ledger, Ledger::Provider(_)),
            Decline::ImageMissing { label, .. } => {
                let running = self.providers.get(&key.provider);
                let settings = running.and_then(|running| running.provider.label(&key.pool, label));
                settings.is_some_and(|settings| matches!(settings.image, ImageSettings::Cloud(_)))
            }
            _ => false,
        }
    }

    /// Gives an order to the work on a request, which is begun if there is none.
    fn give(&mut self, key: &PoolKey, id: RequestId, order: Order) {
        let order = match self.serving.get_mut(&id) {
            Some(task) if task.pool == *key => match task.orders.send(order) {
                Ok(()) => return,
                // It has ended, and its report is on the way.
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
            self.world.release(key, id);
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
        let panicked = Report::Served {
            request: id,
            outcome: Served::Lost,
        };
        self.ctx.spawn(id, serving.run(order), panicked);
        let task = Task {
            pool: key.clone(),
            provider,
            orders,
            gone,
            next: VecDeque::new(),
        };
        self.serving.insert(id, task);
    }

    /// Lets go of the requests that our pools hold and are not to hold any longer.
    pub(super) fn put_back(&mut self) {
        for (key, id) in self.world.let_go() {
            match self.serving.get_mut(&id) {
                // Should it have ended, its report says what becomes of the request.
                Some(task) if task.pool == key => {
                    let _ = task
                        .orders
                        .send(Order::PutBack("its pool is drained or gone"));
                }
                // Another pool's work comes first, and this one's has not begun.
                Some(task) => {
                    task.next.retain(|(pool, _)| *pool != key);
                    self.world.release(&key, id);
                }
                // The store went away, and it will be planned anew.
                None => {}
            }
        }
    }

    fn provider(&self, key: &PoolKey) -> Option<Arc<Provider>> {
        let running = self.providers.get(&key.provider)?;
        Some(Arc::clone(&running.provider))
    }

    /// Nodes and requests that were left behind.
    fn clean(&mut self) {
        let orphans = orphans::take(&mut self.world);
        let stranded = orphans.stranded.into_iter().map(|(node, _)| node);
        // Whoever writes `deleted` removes the record next; what it could not remove is left to the clean-up.
        let nodes = orphans.nodes.into_iter();
        let nodes = nodes.filter(|(_, state)| *state != NodeState::Deleted);
        let nodes = nodes.map(|(node, _)| node);
        for node in nodes.chain(stranded).chain(orphans.empty) {
            self.settle(node);
        }
        // As soon as nobody holds its lock, its nodes are reset and it waits again. Until then it is not told of again.
        for request in self.world.take_abandoned() {
            if self.serving.contains_key(&request) || self.recovering.contains_key(&request) {
                continue;
            }
            let cancelled = CancellationToken::new();
            let guard = cancelled.clone().drop_guard();
            self.recovering.insert(request, Some(guard));
            let panicked = Report::Recovered {
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
        let panicked = Report::Settled {
            node: id,
            outcome: Settled::Failed,
        };
        let work = settle::run(self.ctx.clone(), provider, id);
        self.ctx.spawn(id, work, panicked);
    }

    pub(super) fn take_report(&mut self, report: Report, news: &mut News) {
        match report {
            // The nodes follow when the loop catches up, before the next decision.
            Report::Served { request, outcome } => self.served(request, outcome),
            Report::LaunchAccepted { request } => self.world.accept_launch(request),
            Report::LaunchRefused { request } => {
                self.check_cloud_of(request);
                self.world.refuse(request, self.ctx.clock.now());
            }
            Report::Lacking {
                request,
                missing,
                zone,
            } => self.retry(request, &missing, zone.as_ref()),
            Report::IsTooMuch {
                node,
                launched,
                answer,
            } => {
                self.catch_up(news);
                let excess = if launched {
                    self.world.excess(node)
                } else {
                    self.world.tenant_excess(node)
                };
                // Nobody waits for the answer if the request was given up.
                let _ = answer.send(excess);
            }
            Report::Settled { node, outcome } => self.settled(node, outcome, news),
            Report::NotEvicted(node) => self.world.release_eviction(node),
            Report::Recovered { request, outcome } => match outcome {
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
            Report::NodesOf { request, answer } => {
                self.catch_up(news);
                // Nobody waits for the answer if the launcher stops.
                let _ = answer.send(self.world.nodes_of(request).collect());
            }
            Report::Started {
                provider,
                attempt,
                result,
            } => self.started(&provider, attempt, result),
            Report::Inventory(inventory) => {
                self.catch_up(news);
                self.take_inventory(*inventory);
            }
            // Nobody waits for these answers if the launcher stops.
            Report::IsComplete(answer) => {
                let _ = answer.send(self.is_complete());
            }
            Report::Departed(answer) => {
                self.catch_up(news);
                let _ = answer.send(self.world.departed());
            }
            Report::Missing { departed, answer } => {
                self.catch_up(news);
                self.world.nodes_seen(&departed);
                let _ = answer.send(self.missing());
            }
            Report::Asked(asked) => self.asked(asked),
            Report::Ended { request, ended } => self.ended(request, ended),
            Report::CleanedUp(old_locks) => self.old_locks = Some(old_locks),
        }
    }

    fn settled(&mut self, node: NodeId, outcome: Settled, news: &mut News) {
        match outcome {
            Settled::Done | Settled::Busy => {
                self.settling.remove(&node);
                if outcome == Settled::Done {
                    self.failed_deletions.remove(&node);
                }
                self.catch_up(news);
                self.world.suspect(node);
            }
            // It stays in `settling` until then.
            Settled::Failed => {
                let failures = self.failed_deletions.entry(node).or_default();
                let delay = self.ctx.timing.delete_retry;
                let delay = delay.saturating_mul(1 << (*failures).min(10));
                *failures += 1;
                let delay = delay.min(DELETE_PAUSE_MOST);
                self.timers.after(delay, Timer::Settle(node));
            }
        }
    }

    fn served(&mut self, id: RequestId, outcome: Served) {
        let Some(task) = self.serving.remove(&id) else {
            return;
        };
        self.feed_request(id);
        match outcome {
            // The record tells the picture.
            Served::Fulfilled => {}
            Served::Declined | Served::PutBack => self.world.release(&task.pool, id),
            Served::LaunchFailed => {
                self.world.release(&task.pool, id);
                self.poll_cloud(&task.pool.provider, CloudPoll::List);
            }
            Served::Gone | Served::NotAsPlanned | Served::Lost => {
                let setbacks = self.setbacks.entry(id).or_default();
                *setbacks += 1;
                let delay = SETBACK.saturating_mul(1 << (*setbacks).min(10));
                debug!(request = %id, ?outcome, setbacks, "planning request again");
                let timer = Timer::Release(task.pool, id);
                self.timers.after(delay.min(SETBACK_MOST), timer);
            }
        }
        for (pool, order) in task.next {
            self.give(&pool, id, order);
        }
    }

    pub(super) fn release(&mut self, pool: &PoolKey, id: RequestId) {
        self.recover_again(id);
        self.feed_request(id);
        self.world.release(pool, id);
    }

    /// A request whose recovery waits for its timer may be tried again at once.
    pub(super) fn recover_again(&mut self, id: RequestId) {
        if matches!(self.recovering.get(&id), Some(None)) {
            self.recovering.remove(&id);
        }
    }

    /// A request that we hold lacks nodes again.
    fn retry(&mut self, id: RequestId, missing: &[Label], zone: Option<&Zone>) {
        let moment = self.moment();
        let order = if self.is_outdated(id) {
            Order::PutBack("its provider has been replaced")
        } else {
            match self.world.retry(id, missing, zone, moment) {
                Retry::Accept(acceptance) => Order::Accept(acceptance),
                Retry::GiveBack(verdict) => {
                    debug!(request = %id, %verdict, "request waits again");
                    self.timers.within(EXPIRY_PAUSE, Timer::Expiry);
                    Order::GiveBack
                }
                Retry::PutBack => Order::PutBack("it lacks nodes, and its pool is drained or gone"),
            }
        };
        match self.serving.get(&id) {
            Some(task) if task.orders.send(order).is_ok() => {}
            _ => warn!(request = %id, "request that lacks nodes is not being served"),
        }
    }

    /// Whether a request is served by a provider that runs no more. What it launches is finished; what it lacks is for
    /// its successor, which knows another cloud, perhaps.
    fn is_outdated(&self, id: RequestId) -> bool {
        let Some(task) = self.serving.get(&id) else {
            return false;
        };
        let now = self.providers.get(&task.pool.provider);
        now.is_none_or(|running| !Arc::ptr_eq(&running.provider, &task.provider))
    }
}
