//! Assignment: which pool serves which request, with what.
//!
//! One *pass* of a pool looks at the requests in their order of service (precedence, then relative priority,
//! then age) and gives a [`Verdict`] on each. A pass is all or nothing per request: either every label
//! of it is served now, or the request waits empty-handed. So no two requests ever wait for what the other one
//! holds, and a more urgent one that arrives later is simply next.
//!
//! # The checks, in order
//!
//! 1. The pool is registered and its provider takes requests (`max-concurrency` is not 0).
//! 2. The request waits, and this pool has not declined it. While the pool is drained, it goes no further: what check 6
//!    says is declined all the same, unless it may be otherwise after the drain.
//! 3. It names a provider where a capable pool is left, or else one in the same cluster: leave it to that one.
//! 4. A capable pool with a lower priority number is neither paused nor drained, and if it is ours it has the images:
//!    leave it to that one.
//! 5. This pool lacks a label and another capable pool is left: leave it to that one.
//! 6. It can never be served here (it names another cluster's provider and this one keeps to its own; no servers, label
//!    unknown or broken, larger than the empty cloud; image missing, unless it is being made and the request waits for
//!    images): decline. This comes before everything that passes with time, so that a momentary limit does not delay the
//!    news.
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
//! even without counting what is kept. If what is kept counted, two pools could talk each other into
//! and out of a pause for ever. It is also paused while its cloud refuses launches for lack of quota
//! ([`World::refuse`]), since then it has less room than it knows. All its requests wait for the same retry then, and
//! probe the cloud in the order of service.
//!
//! [`Policy::patience`]: crate::setup::Policy::patience

pub(crate) mod accrual;
pub(crate) mod backoff;
pub(crate) mod judge;
mod recipe;
mod room;

use std::collections::BTreeSet;

use nodeyard_model::{Label, RequestId, RequestOrder, Timestamp};

use crate::setup::{PoolKey, Supply, Zone};
use crate::verdict::{Acceptance, Defer, Skip, Verdict};
use crate::world::queue::{Line, LineId, Stage};
use crate::world::{Full, World};
use accrual::{Accrual, Booking};
use judge::{Case, Judged};
pub use room::Eviction;

/// What a decision needs from outside.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moment {
    pub now: Timestamp,
    /// Chooses between zones that are as good as each other. The same seed chooses the same.
    pub seed: u64,
}

/// What a pool has to do after a look at the requests.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pass {
    /// Accept, decline and reserve, in the order of service. Everything else waits.
    pub decisions: Vec<Decision>,
    pub evictions: Vec<Eviction>,
    /// What the pool's component should say: some request waits for room here, or the cloud refuses launches.
    pub paused: bool,
    /// When patience or a pause of launches ends, and the pool may decide otherwise without any event.
    pub again_at: Option<Timestamp>,
}

impl Pass {
    fn look_again(&mut self, at: Timestamp) {
        self.again_at = Some(self.again_at.map_or(at, |again| again.min(at)));
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub request: RequestId,
    pub verdict: Verdict,
}

/// What becomes of a request that was accepted and lacks nodes again.
#[derive(Debug, Clone, PartialEq)]
pub enum Retry {
    /// Get these in addition.
    Accept(Acceptance),
    /// Give back the nodes it has: it waits empty-handed, held by the pool.
    GiveBack(Verdict),
    /// Its pool is drained or gone: give back the nodes, and the request as well, so that any pool may take it. No pool
    /// looks at it until [`World::release`] says that this is done.
    PutBack,
}

/// A pass under way.
#[derive(Debug, Default)]
struct Look {
    pass: Pass,
    /// What is kept for the requests that were looked at, and those before them elsewhere.
    accrual: Accrual,
    bookings: Vec<Booking>,
    /// Some request was stopped by a shortage, or because the cloud refuses launches.
    blocked: bool,
    /// Some request waits until the cloud accepts launches again.
    refused: bool,
    /// Where it ended because the pool is full.
    full_at: Option<RequestOrder>,
    /// Idle nodes make room for the first request that needs it.
    room_made: bool,
}

impl World {
    /// One pass of one of our pools.
    ///
    /// Carry out each decision, and tell the picture: the records as they are written, or
    /// [`release`](Self::release) if the request's lock could not be had.
    pub fn assign(&mut self, key: &PoolKey, at: Moment) -> Pass {
        self.unmark_stale(key);
        let mut look = Look::default();
        if self.drains.pools.contains_key(key) {
            self.only_decline(key, &mut look, at);
            return self.end_pass(key, look, at);
        }
        if self.is_still_full(key, at) {
            look.pass.paused = self.own.get(key).is_some_and(|pool| pool.paused);
            self.only_decline(key, &mut look, at);
            return look.pass;
        }
        let mut elsewhere = self.bookings_elsewhere(key).into_iter().peekable();
        let mut last = None;
        while let Some(head) = self.queue.next_head(key, last) {
            last = Some(head);
            while let Some(booking) = elsewhere.next_if(|booking| booking.order < head.0) {
                look.accrual.keep_elsewhere(&booking, &key.provider);
            }
            self.look_at(key, head.1, &mut look, at);
            if look.blocked && self.is_full(key, &look, at) {
                look.full_at = Some(head.0);
                self.only_decline(key, &mut look, at);
                break;
            }
        }
        self.end_pass(key, look, at)
    }

    /// Takes note of what the pool keeps, and of whether it has room.
    fn end_pass(&mut self, key: &PoolKey, look: Look, at: Moment) -> Pass {
        let Look {
            mut pass,
            bookings,
            refused,
            full_at,
            ..
        } = look;
        if let Some(pool) = self.own.get_mut(key) {
            pool.backoff.end_if_unused(at.now, refused);
            pass.paused |= pool.backoff.is_active();
            if let Some(resumes) = pool.backoff.resumes(at.now) {
                pass.look_again(resumes);
            }
            let reopened = pass.paused != std::mem::replace(&mut pool.paused, pass.paused);
            let mut dropped = std::mem::replace(&mut pool.bookings, bookings);
            dropped.retain(|old| !pool.bookings.contains(old));
            self.wake_sharers(key, &dropped);
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

    /// Whether a pass would end where the last one did.
    fn is_still_full(&self, key: &PoolKey, at: Moment) -> bool {
        let full = self.own.get(key).and_then(|pool| pool.full.as_ref());
        full.is_some_and(|full| full.until.is_none_or(|until| at.now < until))
    }

    /// Judges the head of a line.
    fn look_at(&mut self, key: &PoolKey, line: LineId, look: &mut Look, at: Moment) {
        let Some(request) = self.queue.line(line).and_then(Line::head) else {
            return;
        };
        let Some(case) = Case::of(self, request) else {
            return;
        };
        let held = case.held_by.is_some();
        let Judged { verdict, wait } = self.judge(key, &case, &look.accrual, at);
        let verdict = match verdict {
            Verdict::Reserve(shortage) if !held && self.holds_another(key) => {
                Verdict::Defer(Defer::Shortage(shortage))
            }
            verdict => verdict,
        };
        if let Some(wait) = wait {
            let Look { pass, accrual, .. } = look;
            pass.paused |= wait.pool_is_short;
            if is_short_of_room(&verdict) && !std::mem::replace(&mut look.room_made, true) {
                let Booking { room, nodes, .. } = &wait.booking;
                pass.evictions = self.make_room(key, request, room, accrual, nodes, at.now);
            }
            if wait.patient_until <= at.now {
                accrual.keep_here(&wait.booking);
                look.bookings.push(wait.booking);
            } else {
                pass.look_again(wait.patient_until);
            }
            look.blocked = true;
        }
        if let Verdict::Defer(Defer::Refused { .. }) = verdict {
            look.refused = true;
            look.blocked = true;
        }
        if matches!(
            verdict,
            Verdict::Accept(_) | Verdict::Defer(_) | Verdict::Reserve(_)
        ) {
            self.queue.vet(key, line);
        }
        if self.carry_out(key, request, &verdict, held) {
            look.pass.decisions.push(Decision { request, verdict });
        }
    }

    /// Nothing is idle, and not even the smallest node fits: every further request has to wait.
    fn is_full(&self, key: &PoolKey, look: &Look, at: Moment) -> bool {
        let (Some(own), Some(pool)) = (self.own.get(key), self.fleet.pool(key)) else {
            return true;
        };
        let Some(provider) = self.fleet.provider(&key.provider) else {
            return true;
        };
        if !pool.idle.is_empty() {
            return false;
        }
        if !own.backoff.allows(at.now) {
            return true;
        }
        let accrual = &look.accrual;
        if look.pass.paused && self.lacks_room(key, &accrual.pool, &accrual.provider) {
            return true;
        }
        let mut labels = own.setup.labels.values();
        labels.all(|label| {
            // A pool without room is paused, so the first request that says so must be seen.
            label.supply != Supply::Launched
                || look.pass.paused
                    && !(pool.account.has_room(&accrual.pool, &label.cost)
                        && provider.account.has_room(&accrual.provider, &label.cost))
        })
    }

    /// A full pool still has to say what it can never serve, and so has a drained one.
    fn only_decline(&mut self, key: &PoolKey, look: &mut Look, at: Moment) {
        for line in self.queue.unvetted(key) {
            while let Some(request) = self.queue.line(line).and_then(Line::head) {
                let Some(case) = Case::of(self, request) else {
                    break;
                };
                let held = case.held_by.is_some();
                if self.can_serve(key, &case) {
                    self.queue.vet(key, line);
                    break;
                }
                let verdict = self.judge(key, &case, &look.accrual, at).verdict;
                match verdict {
                    Verdict::Decline(_) => {
                        self.carry_out(key, request, &verdict, held);
                        look.pass.decisions.push(Decision { request, verdict });
                    }
                    Verdict::Skip(Skip::Drained { .. }) => {
                        self.queue.vet(key, line);
                        break;
                    }
                    Verdict::Skip(_) | Verdict::Yield(_) => break,
                    _ => {
                        self.queue.vet(key, line);
                        break;
                    }
                }
            }
        }
    }

    /// Whether a pool does not decline a request, whatever time brings.
    fn can_serve(&self, key: &PoolKey, case: &Case<'_>) -> bool {
        let pool = self.own.get(key);
        !case.ask.min_ready && pool.is_some_and(|pool| self.never(pool, case).is_none())
    }

    /// Notes a decision; true if there is something to do about it.
    fn carry_out(
        &mut self,
        key: &PoolKey,
        request: RequestId,
        verdict: &Verdict,
        held: bool,
    ) -> bool {
        match verdict {
            Verdict::Accept(acceptance) => {
                self.grant(request, acceptance);
                true
            }
            Verdict::Decline(_) => {
                self.note_decline(key, request);
                true
            }
            Verdict::Reserve(_) if !held => {
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
        let tenant = self.queue.get(request).and_then(|r| r.ask.tenant.clone());
        self.fleet.promise(request, tenant.as_ref(), acceptance);
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

    /// An accepted request lacks `missing` again, because launches hit a quota or a node was lost. `zone` is
    /// where its other nodes are.
    pub fn retry(
        &mut self,
        request: RequestId,
        missing: &[Label],
        zone: Option<&Zone>,
        at: Moment,
    ) -> Retry {
        let (Some(waiting), Some(mut case)) = (self.queue.get(request), Case::of(self, request))
        else {
            return Retry::PutBack;
        };
        let Stage::Taken(key) = waiting.stage.clone() else {
            return Retry::PutBack;
        };
        let is_drained = self.drains.on(&key, &waiting.ask.labels).is_some();
        if is_drained || !self.own.contains_key(&key) {
            return Retry::PutBack;
        }
        let accrual = self.kept_before(&key, waiting.order);
        case.held_by = Some(&key);
        case.labels = missing;
        case.zone = zone;
        // While the cloud refuses launches, what others have given back is for the first in the order of service.
        let refused = self.own.get(&key).and_then(|pool| pool.refusal(at));
        let verdict = match refused {
            Some(defer) => Verdict::Defer(defer),
            None => self.judge(&key, &case, &accrual, at).verdict,
        };
        match verdict {
            Verdict::Accept(acceptance) => {
                self.grant(request, &acceptance);
                Retry::Accept(acceptance)
            }
            verdict => {
                self.fleet.break_promise(request);
                self.forget_probe(request);
                self.set_stage(request, Stage::Held(key.clone()));
                self.wake_all();
                Retry::GiveBack(verdict)
            }
        }
    }
}

fn is_short_of_room(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Reserve(_) => true,
        Verdict::Defer(Defer::Shortage(shortage)) => shortage.is_of_room(),
        _ => false,
    }
}
