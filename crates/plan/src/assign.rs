//! Assignment: which pool serves which request, with what.
//!
//! One *pass* of a pool evaluates the requests in their order of service (precedence, then relative priority,
//! then age) and returns a [`RequestVerdict`] on each. A pass is all or nothing per request: either every label
//! of it is served now, or the request waits without any nodes. So requests never deadlock on each other,
//! and a more urgent one that arrives later is served next.
//!
//! # The checks, in order
//!
//! 1. The pool is registered and its provider takes requests (`max-concurrency` is not 0).
//! 2. The request waits, and this pool has not declined it. While the pool is drained, only check 6 applies,
//!    except for reasons that may not hold after the drain.
//! 3. It names a provider where a capable pool is left, or else one in the same cluster: leave it to that one.
//! 4. A capable pool with a lower priority number is neither paused nor drained, and if it is ours it has the images:
//!    leave it to that one.
//! 5. This pool lacks a label and another capable pool is left: leave it to that one.
//! 6. It can never be served here (it names another cluster's provider and this one keeps to its own; no servers, label
//!    unknown or broken, larger than the empty cloud; image missing, unless it is being made and the request waits for
//!    images): decline. This comes before everything that passes with time, so that a temporary limit does not delay the
//!    response.
//! 7. An image that it needs is being made: defer. It keeps no room meanwhile.
//! 8. The cloud refuses launches, the request needs one, and another capable pool is not paused: leave it to
//!    that one.
//! 9. A label that is not launched has too few free machines: defer.
//! 10. The tenant's limit, the pool's, the provider's: defer, or reserve.
//! 11. `max-concurrency` launches are under way: defer.
//! 12. The cloud refuses launches, and the request needs one: defer.
//! 13. Accept.
//!
//! Limits count records, promises of this and earlier passes, and the use by others; what is accepted is
//! promised at once. So a burst of requests never exceeds a limit.
//!
//! # Large and small requests
//!
//! A request that is stopped by a shortage waits with *patience*: for [`Policy::patience`] after it
//! was first seen, later requests may take room that it could use. After that the pool *books* its need: room
//! and free nodes that it could use are kept, later requests see only what is left beside it. Resources and
//! labels that it does not need are not affected. What is kept only grows while the nodes in use come
//! back one by one, so after a finite time the request is served. Only requests that come first in the order
//! of service can delay it further.
//!
//! A request stopped by its tenant's limit books at the tenant only, so that a tenant at its limit
//! does not block a pool.
//!
//! Where this pool is the only one that can serve such a request, it *reserves*: it takes the request (`pending`
//! on the wire, its lock held), as Nodepool does, one at a time. Elsewhere the request stays
//! `requested`, and whichever pool has room first gets it.
//!
//! A pool says that it is *paused*, so that others stop leaving requests to it, while some request finds no room
//! even without counting what is kept. If what is kept counted, two pools could alternate between paused and not paused
//! for ever. It is also paused while its cloud refuses launches for lack of quota
//! ([`RequestScheduler::record_quota_refusal`]), since then it has less room than it knows. All its requests wait for the same retry then, and
//! probe the cloud in the order of service.
//!
//! [`Policy::patience`]: crate::setup::Policy::patience

pub(crate) mod backoff;
pub(crate) mod bookings;
pub(crate) mod evaluate;
mod recipe;
mod room;

use std::collections::BTreeSet;

use nodeyard_model::{Label, RequestId, RequestOrder, Timestamp};

use crate::scheduler::queue::{LineId, RequestLine, Stage};
use crate::scheduler::{Full, RequestScheduler};
use crate::setup::{PoolKey, Supply, ZoneName};
use crate::verdict::{Acceptance, Defer, RequestVerdict, Skip};
use bookings::{BookedRoom, Booking};
use evaluate::{Evaluation, RequestContext};
pub use room::Eviction;

/// The time and the random seed of a decision.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecisionInputs {
    pub now: Timestamp,
    /// Selects one of several equally good zones.
    pub seed: u64,
}

/// The result of a pass: what the pool has to do.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pass {
    /// Accept, decline and reserve, in the order of service. Everything else waits.
    pub decisions: Vec<Decision>,
    pub evictions: Vec<Eviction>,
    /// The pause flag of the pool's component: some request waits for room here, or the cloud refuses launches.
    pub paused: bool,
    /// When patience or a pause of launches ends, and another pass is due without any event.
    pub again_at: Option<Timestamp>,
}

impl Pass {
    fn schedule_recheck(&mut self, at: Timestamp) {
        self.again_at = Some(self.again_at.map_or(at, |again| again.min(at)));
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub request: RequestId,
    pub verdict: RequestVerdict,
}

/// How to continue with an accepted request that lacks nodes again.
#[derive(Debug, Clone, PartialEq)]
pub enum Retry {
    /// Get these nodes as well.
    Accept(Acceptance),
    /// Unassign its nodes. It stays reserved by the pool and waits.
    Unassign(RequestVerdict),
    /// Its pool is drained or removed: unassign its nodes and requeue the request for any pool. No pool considers it
    /// until [`RequestScheduler::release`] is called.
    Requeue,
}

/// The state of a pass.
#[derive(Debug, Default)]
struct PassState {
    pass: Pass,
    /// What is booked for the requests so far, and for those before them in other pools.
    booked: BookedRoom,
    bookings: Vec<Booking>,
    /// Some request waits for room, or because the cloud refuses launches.
    blocked: bool,
    /// Some request waits until the cloud accepts launches again.
    refused: bool,
    /// The request at which the pass ended because the pool is full.
    full_at: Option<RequestOrder>,
    /// Idle nodes have been evicted for the first request that needs room.
    room_made: bool,
}

impl RequestScheduler {
    /// Runs one pass of one of our pools.
    ///
    /// Execute each decision, then put in the records as they are written, or call [`release`](Self::release) if the
    /// request could not be locked.
    pub fn assign(&mut self, key: &PoolKey, at: DecisionInputs) -> Pass {
        self.unmark_stale(key);
        let mut state = PassState::default();
        if self.drains.pools.contains_key(key) {
            self.decline_unservable(key, &mut state, at);
            return self.end_pass(key, state, at);
        }
        if self.is_still_full(key, at) {
            state.pass.paused = self.own.get(key).is_some_and(|pool| pool.paused);
            self.decline_unservable(key, &mut state, at);
            return state.pass;
        }
        let mut elsewhere = self.bookings_elsewhere(key).into_iter().peekable();
        let mut last = None;
        while let Some(head) = self.queue.next_head(key, last) {
            last = Some(head);
            while let Some(booking) = elsewhere.next_if(|booking| booking.order < head.0) {
                state.booked.book_elsewhere(&booking, &key.provider);
            }
            self.evaluate_line(key, head.1, &mut state, at);
            if state.blocked && self.is_full(key, &state, at) {
                state.full_at = Some(head.0);
                self.decline_unservable(key, &mut state, at);
                break;
            }
        }
        self.end_pass(key, state, at)
    }

    /// Stores the bookings of the pool and whether it is paused or full.
    fn end_pass(&mut self, key: &PoolKey, state: PassState, at: DecisionInputs) -> Pass {
        let PassState {
            mut pass,
            bookings,
            refused,
            full_at,
            ..
        } = state;
        if let Some(pool) = self.own.get_mut(key) {
            pool.backoff.end_if_unused(at.now, refused);
            pass.paused |= pool.backoff.is_active();
            if let Some(resumes) = pool.backoff.resumes(at.now) {
                pass.schedule_recheck(resumes);
            }
            let reopened = pass.paused != std::mem::replace(&mut pool.paused, pass.paused);
            let mut dropped = std::mem::replace(&mut pool.bookings, bookings);
            dropped.retain(|old| !pool.bookings.contains(old));
            self.wake_sharing_pools(key, &dropped);
            if !dropped.is_empty() {
                self.ready.pools.insert(key.clone());
            }
            if reopened {
                self.wake_all();
                self.unmark_stale(key);
            }
        }
        if let Some(pool) = self.own.get_mut(key) {
            let until = pass.again_at;
            pool.full = full_at.map(|order| Full { order, until });
        }
        pass
    }

    /// Returns whether a pass would end where the last one did.
    fn is_still_full(&self, key: &PoolKey, at: DecisionInputs) -> bool {
        let full = self.own.get(key).and_then(|pool| pool.full.as_ref());
        full.is_some_and(|full| full.until.is_none_or(|until| at.now < until))
    }

    /// Decides on the head of a line.
    fn evaluate_line(
        &mut self,
        key: &PoolKey,
        line: LineId,
        state: &mut PassState,
        at: DecisionInputs,
    ) {
        let Some(request) = self.queue.line(line).and_then(RequestLine::head) else {
            return;
        };
        let Some(ctx) = RequestContext::of(self, request) else {
            return;
        };
        let held = ctx.held_by.is_some();
        let Evaluation { verdict, wait } = self.evaluate(key, &ctx, &state.booked, at);
        let verdict = match verdict {
            RequestVerdict::Reserve(shortage) if !held && self.holds_another(key) => {
                RequestVerdict::Defer(Defer::Shortage(shortage))
            }
            verdict => verdict,
        };
        if let Some(wait) = wait {
            let PassState { pass, booked, .. } = state;
            pass.paused |= wait.pool_is_short;
            if is_short_of_room(&verdict) && !std::mem::replace(&mut state.room_made, true) {
                let Booking { room, nodes, .. } = &wait.booking;
                pass.evictions = self.make_room(key, request, room, booked, nodes, at.now);
            }
            if wait.patient_until <= at.now {
                booked.book_here(&wait.booking);
                state.bookings.push(wait.booking);
            } else {
                pass.schedule_recheck(wait.patient_until);
            }
            state.blocked = true;
        }
        if let RequestVerdict::Defer(Defer::Refused { .. }) = verdict {
            state.refused = true;
            state.blocked = true;
        }
        if matches!(
            verdict,
            RequestVerdict::Accept(_) | RequestVerdict::Defer(_) | RequestVerdict::Reserve(_)
        ) {
            self.queue.mark_checked(key, line);
        }
        if self.apply_verdict(key, request, &verdict, held) {
            state.pass.decisions.push(Decision { request, verdict });
        }
    }

    /// Returns whether every further request has to wait: no node is idle, and the smallest does not fit.
    fn is_full(&self, key: &PoolKey, state: &PassState, at: DecisionInputs) -> bool {
        let (Some(own), Some(pool)) = (self.own.get(key), self.node_index.pool(key)) else {
            return true;
        };
        let Some(provider) = self.node_index.provider(&key.provider) else {
            return true;
        };
        if !pool.idle.is_empty() {
            return false;
        }
        if !own.backoff.allows(at.now) {
            return true;
        }
        let booked = &state.booked;
        if state.pass.paused && self.lacks_room(key, &booked.pool, &booked.provider) {
            return true;
        }
        let mut labels = own.setup.labels.values();
        labels.all(|label| {
            // A pool without room is paused, so the first request without room must be evaluated.
            label.supply != Supply::Launched
                || state.pass.paused
                    && !(pool.account.has_room(&booked.pool, &label.cost)
                        && provider.account.has_room(&booked.provider, &label.cost))
        })
    }

    /// Declines what a full or drained pool can never serve.
    fn decline_unservable(&mut self, key: &PoolKey, state: &mut PassState, at: DecisionInputs) {
        for line in self.queue.unchecked(key) {
            while let Some(request) = self.queue.line(line).and_then(RequestLine::head) {
                let Some(ctx) = RequestContext::of(self, request) else {
                    break;
                };
                let held = ctx.held_by.is_some();
                if self.can_serve(key, &ctx) {
                    self.queue.mark_checked(key, line);
                    break;
                }
                let verdict = self.evaluate(key, &ctx, &state.booked, at).verdict;
                match verdict {
                    RequestVerdict::Decline(_) => {
                        self.apply_verdict(key, request, &verdict, held);
                        state.pass.decisions.push(Decision { request, verdict });
                    }
                    RequestVerdict::Skip(Skip::Drained { .. }) => {
                        self.queue.mark_checked(key, line);
                        break;
                    }
                    RequestVerdict::Skip(_) | RequestVerdict::Yield(_) => break,
                    _ => {
                        self.queue.mark_checked(key, line);
                        break;
                    }
                }
            }
        }
    }

    /// Returns whether a pool may serve a request at some time.
    fn can_serve(&self, key: &PoolKey, ctx: &RequestContext<'_>) -> bool {
        let pool = self.own.get(key);
        !ctx.spec.min_ready && pool.is_some_and(|pool| self.permanent_decline(pool, ctx).is_none())
    }

    /// Records a verdict. Returns whether the launcher has to act on it.
    fn apply_verdict(
        &mut self,
        key: &PoolKey,
        request: RequestId,
        verdict: &RequestVerdict,
        held: bool,
    ) -> bool {
        match verdict {
            RequestVerdict::Accept(acceptance) => {
                self.grant(request, acceptance);
                true
            }
            RequestVerdict::Decline(_) => {
                self.note_decline(key, request);
                true
            }
            RequestVerdict::Reserve(_) if !held => {
                if let Some(pool) = self.own.get_mut(key) {
                    pool.held = Some(request);
                }
                self.set_stage(request, Stage::Held(key.clone()));
                true
            }
            _ => false,
        }
    }

    fn note_decline(&mut self, key: &PoolKey, request: RequestId) {
        let own = self.own.get(key).map(|pool| pool.setup.id.clone());
        let mut by = match self.queue.get(request).map(|request| &request.stage) {
            Some(Stage::Declined(by)) => by.clone(),
            _ => BTreeSet::new(),
        };
        by.extend(own);
        self.set_stage(request, Stage::declined(by));
    }

    fn grant(&mut self, request: RequestId, acceptance: &Acceptance) {
        let tenant = self.queue.get(request).and_then(|r| r.spec.tenant.clone());
        self.node_index
            .promise(request, tenant.as_ref(), acceptance);
        if let Some(pool) = self.own.get_mut(&acceptance.pool)
            && acceptance.launched().next().is_some()
        {
            pool.backoff.probe(request);
        }
        self.set_stage(request, Stage::Taken(acceptance.pool.clone()));
    }

    fn holds_another(&self, key: &PoolKey) -> bool {
        let held = self.own.get(key).and_then(|pool| pool.held);
        let held = held.and_then(|request| self.queue.get(request));
        held.is_some_and(|request| request.stage == Stage::Held(key.clone()))
    }

    /// Decides on an accepted request that lacks `missing` again, because launches hit a quota or a node was lost.
    /// `zone` is the zone of its other nodes.
    pub fn retry(
        &mut self,
        request: RequestId,
        missing: &[Label],
        zone: Option<&ZoneName>,
        at: DecisionInputs,
    ) -> Retry {
        let (Some(waiting), Some(mut ctx)) =
            (self.queue.get(request), RequestContext::of(self, request))
        else {
            return Retry::Requeue;
        };
        let Stage::Taken(key) = waiting.stage.clone() else {
            return Retry::Requeue;
        };
        let is_drained = self.drains.on(&key, &waiting.spec.labels).is_some();
        if is_drained || !self.own.contains_key(&key) {
            return Retry::Requeue;
        }
        let booked = self.booked_before(&key, waiting.order);
        ctx.held_by = Some(&key);
        ctx.labels = missing;
        ctx.zone = zone;
        // While the cloud refuses launches, freed room is for the first request in the order of service.
        let refused = self.own.get(&key).and_then(|pool| pool.launch_pause(at));
        let verdict = match refused {
            Some(defer) => RequestVerdict::Defer(defer),
            None => self.evaluate(&key, &ctx, &booked, at).verdict,
        };
        match verdict {
            RequestVerdict::Accept(acceptance) => {
                self.grant(request, &acceptance);
                Retry::Accept(acceptance)
            }
            verdict => {
                self.node_index.revoke_promise(request);
                self.forget_probe(request);
                self.set_stage(request, Stage::Held(key.clone()));
                self.wake_all();
                Retry::Unassign(verdict)
            }
        }
    }
}

fn is_short_of_room(verdict: &RequestVerdict) -> bool {
    match verdict {
        RequestVerdict::Reserve(_) => true,
        RequestVerdict::Defer(Defer::Shortage(shortage)) => shortage.is_of_room(),
        _ => false,
    }
}
