//! Evaluates one request for one pool.

use std::borrow::Cow;
use std::collections::BTreeMap;

use nodeyard_model::{
    Label, LauncherId, ProviderName, Quantity, RequestId, RequestState, ResourceName, Resources,
    Timestamp,
};

use super::DecisionInputs;
use super::bookings::{BookedRoom, Booking};
use super::recipe::{Recipe, RecipeInput, recipe};
use crate::scheduler::queue::{QueuedRequest, RequestSpec, Stage};
use crate::scheduler::registry::RegisteredPool;
use crate::scheduler::{OwnPool, RequestScheduler};
use crate::setup::{LabelReadiness, PoolKey, PoolSetup, Supply, ZoneName};
use crate::verdict::{
    Acceptance, AwaitedImage, CapacityShortage, Decline, Defer, QuotaScope, RequestVerdict, Skip,
    Yield,
};

/// A request with everything an evaluation needs.
#[derive(Debug)]
pub(crate) struct RequestContext<'a> {
    pub(crate) request: RequestId,
    pub(crate) waiting: &'a QueuedRequest,
    pub(super) spec: &'a RequestSpec,
    pub(crate) candidates: Cow<'a, [LauncherId]>,
    pub(crate) labels: &'a [Label],
    /// The zone of the nodes that it has already.
    pub(crate) zone: Option<&'a ZoneName>,
    /// The pool of ours that has reserved it.
    pub(crate) held_by: Option<&'a PoolKey>,
}

impl<'a> RequestContext<'a> {
    pub(crate) fn of(scheduler: &'a RequestScheduler, request: RequestId) -> Option<Self> {
        let waiting = scheduler.queue.get(request)?;
        let (spec, candidates) = match scheduler.queue.line_of(request) {
            Some(line) => (&*line.spec, Cow::Borrowed(&*line.route.candidates)),
            None => {
                let spec = &*waiting.spec;
                let candidates = scheduler
                    .registry
                    .candidates(&spec.labels, &spec.declined_by);
                (spec, Cow::Owned(candidates))
            }
        };
        Some(Self {
            request,
            waiting,
            spec,
            candidates,
            labels: &spec.labels,
            zone: None,
            held_by: spec.held_by.as_ref(),
        })
    }
}

/// The set of pools that a request prefers.
#[derive(Debug, Clone, Copy)]
enum Nearness<'a> {
    Provider(&'a ProviderName),
    Cluster(&'a str),
    Anywhere,
}

impl Nearness<'_> {
    fn holds(&self, pool: &RegisteredPool) -> bool {
        match self {
            Self::Provider(name) => pool.key.provider == **name,
            Self::Cluster(cluster) => pool.cluster.as_deref() == Some(cluster),
            Self::Anywhere => true,
        }
    }
}

/// A verdict, and the booking if the request waits for room.
#[derive(Debug)]
pub(crate) struct Evaluation {
    pub(crate) verdict: RequestVerdict,
    pub(crate) wait: Option<BlockedRequest>,
}

/// A request that waits for room.
#[derive(Debug)]
pub(crate) struct BlockedRequest {
    pub(crate) booking: Booking,
    pub(crate) patient_until: Timestamp,
    /// It would not fit without bookings either.
    pub(crate) pool_is_short: bool,
}

impl From<RequestVerdict> for Evaluation {
    fn from(verdict: RequestVerdict) -> Self {
        let wait = None;
        Self { verdict, wait }
    }
}

impl RequestScheduler {
    /// Evaluates a request. `booked` is the room that is kept for requests before it.
    pub(crate) fn evaluate(
        &self,
        key: &PoolKey,
        ctx: &RequestContext<'_>,
        booked: &BookedRoom,
        at: DecisionInputs,
    ) -> Evaluation {
        let Some(pool) = self.own.get(key) else {
            return RequestVerdict::Skip(Skip::NotRegistered).into();
        };
        if let Some(verdict) = self.check_eligibility(pool, ctx) {
            return verdict.into();
        }
        if let Some(reason) = self.permanent_decline(pool, ctx) {
            return RequestVerdict::Decline(reason).into();
        }
        if let Some(image) = self.awaited_image(pool, ctx, at) {
            return RequestVerdict::Defer(Defer::Image(Box::new(image))).into();
        }
        let recipe = recipe(
            &self.node_index,
            &pool.setup,
            &RecipeInput {
                labels: ctx.labels,
                reuse: ctx.spec.reuse,
                zone: ctx.zone,
                kept: &booked.nodes,
                seed: at.seed,
            },
        );
        if recipe.launches > 0
            && let Some(reason) = pool.setup.unreachable()
        {
            return while_unreachable(ctx, reason).into();
        }
        let refused = pool.launch_pause(at).filter(|_| recipe.launches > 0);
        if refused.is_some()
            && let Some(to) = self.find_alternative(pool, ctx)
        {
            return RequestVerdict::Yield(Yield::Refused { to }).into();
        }
        if let Some(defer) = self.find_shortage(key, ctx, &recipe, booked) {
            return self.wait(pool, ctx, defer, recipe);
        }
        if let Some(defer) = refused {
            return RequestVerdict::Defer(defer).into();
        }
        RequestVerdict::Accept(Acceptance {
            pool: key.clone(),
            steps: recipe.steps,
            zone: recipe.zone,
        })
        .into()
    }

    /// Runs checks 1 to 5. Returns a verdict if this pool does not handle the request.
    fn check_eligibility(
        &self,
        pool: &OwnPool,
        ctx: &RequestContext<'_>,
    ) -> Option<RequestVerdict> {
        let setup = &pool.setup;
        let Some(registered) = self.registry.get(&setup.id) else {
            return Some(RequestVerdict::Skip(Skip::NotRegistered));
        };
        let provider = self.providers.get(&setup.key.provider);
        if provider.is_some_and(|provider| provider.max_launches == Some(0)) {
            return Some(RequestVerdict::Skip(Skip::Ignoring));
        }
        if let Some(holder) = ctx.held_by {
            if *holder != setup.key {
                let by = holder.clone();
                return Some(RequestVerdict::Skip(Skip::Taken { by }));
            }
            let scope = self.drains.on(&setup.key, ctx.labels);
            return scope.map(drained);
        }
        if let Stage::Taken(by) = &ctx.waiting.stage {
            return Some(RequestVerdict::Skip(Skip::Taken { by: by.clone() }));
        }
        if ctx.spec.declined_by.contains(&setup.id) {
            let reason = self.permanent_decline(pool, ctx);
            return Some(RequestVerdict::Skip(Skip::AlreadyDeclined { reason }));
        }
        if ctx.waiting.state != RequestState::Requested {
            let state = ctx.waiting.state;
            return Some(RequestVerdict::Skip(Skip::NotWaiting { state }));
        }
        if let Some(scope) = self.drains.of_labels(ctx.labels) {
            return Some(drained(scope));
        }
        let yields = self.find_yield(setup, registered.priority, ctx);
        match self.drains.pools.get(&setup.key) {
            Some(scope) if yields.is_some() => Some(drained(scope)),
            Some(scope) => Some(self.while_drained(pool, ctx, scope)),
            None => yields.map(RequestVerdict::Yield),
        }
    }

    /// Returns the verdict of a drained pool. It declines what it can never serve, since a request fails only when
    /// every pool has declined.
    fn while_drained(
        &self,
        pool: &OwnPool,
        ctx: &RequestContext<'_>,
        scope: &str,
    ) -> RequestVerdict {
        match self.permanent_decline(pool, ctx) {
            Some(reason) if reason.outlasts_drain() => RequestVerdict::Decline(reason),
            _ if ctx.spec.min_ready => RequestVerdict::Decline(Decline::DrainedForMinReady {
                scope: scope.into(),
            }),
            _ => drained(scope),
        }
    }

    fn find_yield(&self, setup: &PoolSetup, own: i64, ctx: &RequestContext<'_>) -> Option<Yield> {
        let mut candidates = ctx
            .candidates
            .iter()
            .filter_map(|id| Some((id, self.registry.get(id)?)));
        let nearness = self.nearness(ctx);
        if let Some(provider) = &ctx.spec.provider
            && let Some((to, pool)) = candidates.clone().find(|(_, pool)| nearness.holds(pool))
            && !self.is_near(setup, &nearness)
        {
            let (provider, to) = (provider.clone(), to.clone());
            return Some(if pool.key.provider == provider {
                Yield::Affinity { provider, to }
            } else {
                Yield::Cluster { provider, to }
            });
        }
        // Pools in other clusters yield to us, so yielding to them would never end.
        let rivals = self.registry.precedes(own).then(|| candidates.clone());
        let first = rivals
            .into_iter()
            .flatten()
            .filter(|(_, pool)| nearness.holds(pool))
            .filter(|(id, pool)| pool.priority < own && !self.is_paused(id, &pool.key, pool.paused))
            .filter(|(id, pool)| !self.lacks_image(id, &pool.key, ctx))
            .min_by_key(|(_, pool)| pool.priority);
        if let Some((to, pool)) = first {
            return Some(Yield::Priority {
                own,
                theirs: pool.priority,
                to: to.clone(),
            });
        }
        let missing: Vec<Label> = missing_labels(setup, ctx.labels).cloned().collect();
        if !missing.is_empty()
            && let Some((to, _)) = candidates.find(|(id, _)| **id != setup.id)
        {
            let to = to.clone();
            return Some(Yield::Labels { missing, to });
        }
        None
    }

    /// Returns which candidates come first because of the provider that the request names.
    fn nearness<'a>(&'a self, ctx: &'a RequestContext<'_>) -> Nearness<'a> {
        let Some(provider) = &ctx.spec.provider else {
            return Nearness::Anywhere;
        };
        let there = Nearness::Provider(provider);
        let cluster = self.registry.cluster_of(provider).flatten();
        let around = cluster.map_or(Nearness::Anywhere, Nearness::Cluster);
        let candidates = || (ctx.candidates.iter()).filter_map(|id| self.registry.get(id));
        let mut near = [there, around].into_iter();
        near.find(|near| candidates().any(|pool| near.holds(pool)))
            .unwrap_or(Nearness::Anywhere)
    }

    fn is_near(&self, setup: &PoolSetup, nearness: &Nearness<'_>) -> bool {
        let registered = self.registry.get(&setup.id);
        registered.is_some_and(|pool| nearness.holds(pool))
    }

    /// Returns the provider that a request names if this pool must not serve it instead.
    fn excluded_by_cluster(
        &self,
        pool: &OwnPool,
        ctx: &RequestContext<'_>,
    ) -> Option<ProviderName> {
        let own = &pool.setup.key.provider;
        let named = ctx.spec.provider.as_ref().filter(|named| *named != own)?;
        if !self.providers.get(own)?.keeps_to_cluster {
            return None;
        }
        let kept = match self.registry.cluster_of(named) {
            // It is in no cluster, so everything is reachable from here.
            Some(None) => false,
            Some(theirs) => theirs != self.registry.cluster_of(own).flatten(),
            // Its cluster is unknown.
            None => true,
        };
        kept.then(|| named.clone())
    }

    /// Returns another pool that can serve the request while the cloud of this one refuses launches.
    fn find_alternative(&self, pool: &OwnPool, ctx: &RequestContext<'_>) -> Option<LauncherId> {
        let asked_for = ctx.spec.provider.as_ref() == Some(&pool.setup.key.provider);
        if ctx.held_by.is_some() || asked_for {
            return None;
        }
        let nearness = self.nearness(ctx);
        let mut others = ctx.candidates.iter().filter(|id| **id != pool.setup.id);
        let open = others.find(|id| {
            let registered = self.registry.get(id);
            registered.is_some_and(|other| {
                nearness.holds(other)
                    && !self.is_paused(id, &other.key, other.paused)
                    && !self.lacks_image(id, &other.key, ctx)
            })
        });
        open.cloned()
    }

    /// Returns whether a pool is paused. The state of our own pools is newer than the registry.
    fn is_paused(&self, id: &LauncherId, key: &PoolKey, registered: bool) -> bool {
        match self.own.get(key) {
            Some(own) if own.setup.id == *id => {
                own.paused
                    || self.drains.pools.contains_key(key)
                    || own.setup.unreachable().is_some()
            }
            _ => registered,
        }
    }

    /// Runs check 6. Returns the reason if the request can never be served here.
    pub(super) fn permanent_decline(
        &self,
        pool: &OwnPool,
        ctx: &RequestContext<'_>,
    ) -> Option<Decline> {
        let setup = &pool.setup;
        if let Some(provider) = self.excluded_by_cluster(pool, ctx) {
            return Some(Decline::OtherCluster { provider });
        }
        let servers = setup.limits.get(&ResourceName::INSTANCES);
        if servers.is_some_and(|limit| limit <= Quantity::ZERO) {
            return Some(Decline::NoServers);
        }
        let labels: Vec<Label> = missing_labels(setup, ctx.labels).cloned().collect();
        if !labels.is_empty() {
            return Some(Decline::UnknownLabels { labels });
        }
        let mut wanted: BTreeMap<&Label, usize> = BTreeMap::new();
        for label in ctx.labels {
            *wanted.entry(label).or_default() += 1;
        }
        let mut need = Resources::default();
        for label in ctx.labels {
            let of = setup.labels.get(label)?;
            match &of.readiness {
                // Its cost is unknown, so whether it fits is, too.
                LabelReadiness::Ready | LabelReadiness::Unreachable { .. } => {}
                LabelReadiness::ImageMissing {
                    pending: Some(_), ..
                } if self.waits_for_image(ctx, label) => {}
                LabelReadiness::ImageMissing { image, reason, .. } => {
                    return Some(Decline::ImageMissing {
                        label: label.clone(),
                        image: image.clone(),
                        reason: reason.clone(),
                    });
                }
                LabelReadiness::Broken { reason } => {
                    return Some(Decline::BrokenLabel {
                        label: label.clone(),
                        reason: reason.clone(),
                    });
                }
            }
            let needed = wanted.get(label).copied().unwrap_or(0);
            match of.supply {
                Supply::Fixed(exist) if needed > exist => {
                    return Some(Decline::TooFewMachines {
                        label: label.clone(),
                        exist,
                        needed,
                    });
                }
                Supply::Fixed(_) => {}
                Supply::Launched => need += &of.cost,
            }
        }
        self.too_large(&setup.key, &need)
    }

    /// Returns whether a request for this label waits for an image that is being made.
    fn waits_for_image(&self, ctx: &RequestContext<'_>, label: &Label) -> bool {
        let asked_for = ctx.spec.waits_for_image || self.labels_that_wait.contains(label);
        asked_for && !ctx.spec.min_ready
    }

    /// Returns the first image that a waiting request needs and that is being made.
    fn awaited_image(
        &self,
        pool: &OwnPool,
        ctx: &RequestContext<'_>,
        at: DecisionInputs,
    ) -> Option<AwaitedImage> {
        ctx.labels.iter().find_map(|label| {
            let setup = pool.setup.labels.get(label)?;
            let LabelReadiness::ImageMissing {
                image,
                pending: Some(pending),
                ..
            } = &setup.readiness
            else {
                return None;
            };
            let expected = pending.expected();
            Some(AwaitedImage {
                image: image.clone(),
                label: label.clone(),
                provider: pool.setup.key.provider.clone(),
                stage: pending.stage.clone(),
                percent: None,
                remaining: expected.map(|expected| seconds_between(at.now, expected)),
                at: at.now,
            })
        })
    }

    /// Returns whether a pool of ours defers the request for an image. Unknown for pools of others.
    fn lacks_image(&self, id: &LauncherId, key: &PoolKey, ctx: &RequestContext<'_>) -> bool {
        let own = self.own.get(key).filter(|own| own.setup.id == *id);
        let is_pending = |own: &OwnPool, label: &Label| {
            own.setup.labels.get(label).is_some_and(|setup| {
                matches!(
                    &setup.readiness,
                    LabelReadiness::ImageMissing {
                        pending: Some(_),
                        ..
                    }
                )
            })
        };
        own.is_some_and(|own| {
            let mut labels = ctx.labels.iter();
            labels.any(|label| is_pending(own, label) && self.waits_for_image(ctx, label))
        })
    }

    fn too_large(&self, key: &PoolKey, need: &Resources) -> Option<Decline> {
        let decline = |(resource, limit): (ResourceName, Quantity), scope| Decline::TooLarge {
            scope,
            needed: need.get(&resource),
            resource,
            limit,
        };
        let pool = self.node_index.pool(key)?.account.impossible(need);
        if let Some(exceeded) = pool {
            return Some(decline(exceeded, QuotaScope::Pool(key.clone())));
        }
        let provider = self.node_index.provider(&key.provider)?;
        let exceeded = provider.account.impossible(need)?;
        Some(decline(
            exceeded,
            QuotaScope::Provider(key.provider.clone()),
        ))
    }

    /// Runs checks 9 to 11. Returns what the request lacks at the moment.
    fn find_shortage(
        &self,
        key: &PoolKey,
        ctx: &RequestContext<'_>,
        recipe: &Recipe,
        booked: &BookedRoom,
    ) -> Option<Defer> {
        if let Some(missing) = &recipe.missing {
            return Some(Defer::Shortage(missing.clone()));
        }
        let tenant = || {
            let tenant = ctx.spec.tenant.as_ref()?;
            let need = recipe.tenant_cost();
            let scope = || QuotaScope::Tenant(tenant.clone());
            let account = self.node_index.tenant(tenant)?;
            account.shortage(booked.tenant(tenant), &need, scope)
        };
        let pool = || {
            let account = &self.node_index.pool(key)?.account;
            let scope = || QuotaScope::Pool(key.clone());
            account.shortage(&booked.pool, &recipe.launch_cost, scope)
        };
        let provider = || {
            let account = &self.node_index.provider(&key.provider)?.account;
            let scope = || QuotaScope::Provider(key.provider.clone());
            account.shortage(&booked.provider, &recipe.launch_cost, scope)
        };
        tenant()
            .or_else(pool)
            .or_else(provider)
            .map(|sum| Defer::Shortage(CapacityShortage::Quota(sum)))
            .or_else(|| self.launching_enough(key, recipe, booked))
    }

    fn launching_enough(
        &self,
        key: &PoolKey,
        recipe: &Recipe,
        booked: &BookedRoom,
    ) -> Option<Defer> {
        let max_concurrency = self.providers.get(&key.provider)?.max_launches?;
        let launching = self.node_index.provider(&key.provider)?.launches();
        let enough = recipe.launches > 0 && launching + booked.launches >= max_concurrency;
        enough.then_some(Defer::Launching {
            launching,
            kept: booked.launches,
            max_concurrency,
        })
    }

    fn has_room(&self, key: &PoolKey, need: &Resources) -> bool {
        let nothing = Resources::default();
        let pool = self.node_index.pool(key);
        let provider = self.node_index.provider(&key.provider);
        pool.is_none_or(|usage| usage.account.has_room(&nothing, need))
            && provider.is_none_or(|usage| usage.account.has_room(&nothing, need))
    }

    fn wait(
        &self,
        pool: &OwnPool,
        ctx: &RequestContext<'_>,
        defer: Defer,
        recipe: Recipe,
    ) -> Evaluation {
        if ctx.spec.min_ready
            && let Defer::Shortage(shortage) = defer
        {
            return RequestVerdict::Decline(Decline::NoRoomForMinReady { shortage }).into();
        }
        let tenant = ctx.spec.tenant.as_ref();
        let tenant = tenant.map(|tenant| (tenant.clone(), recipe.tenant_cost()));
        let (room, nodes) = if defer.is_at_tenant() {
            Default::default()
        } else {
            (recipe.launch_cost, recipe.reused)
        };
        let pool_is_short = !defer.is_at_tenant() && !self.has_room(&pool.setup.key, &room);
        let since = ctx.waiting.known_since;
        let wait = BlockedRequest {
            booking: Booking {
                request: ctx.request,
                order: ctx.waiting.order,
                provider: pool.setup.key.provider.clone(),
                room,
                launches: usize::from(matches!(defer, Defer::Launching { .. })),
                tenant,
                nodes,
            },
            patient_until: since + self.policy.patience,
            pool_is_short,
        };
        let here_only = ctx.held_by.is_some() || *ctx.candidates == [pool.setup.id.clone()];
        let verdict = match defer {
            Defer::Shortage(shortage) if here_only && shortage.is_of_room() => {
                RequestVerdict::Reserve(shortage)
            }
            defer => RequestVerdict::Defer(defer),
        };
        Evaluation {
            verdict,
            wait: Some(wait),
        }
    }
}

impl OwnPool {
    /// Returns why no request may launch here at the moment.
    pub(super) fn launch_pause(&self, at: DecisionInputs) -> Option<Defer> {
        if self.backoff.allows(at.now) {
            return None;
        }
        let resumes = self.backoff.resumes(at.now);
        let retry_in = resumes.map(|resumes| seconds_between(at.now, resumes));
        Some(Defer::Refused { retry_in })
    }
}

impl Recipe {
    /// Returns what the recipe adds to the tenant.
    fn tenant_cost(&self) -> Resources {
        [&self.launch_cost, &self.reuse_cost].into_iter().sum()
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the cast saturates, and fractions of seconds are not needed"
)]
fn seconds_between(from: Timestamp, to: Timestamp) -> i64 {
    (to.as_secs() - from.as_secs()).round() as i64
}

/// Returns the verdict while the provider of a pool has not started. Min-ready requests are declined.
fn while_unreachable(ctx: &RequestContext<'_>, reason: &str) -> RequestVerdict {
    let reason = reason.into();
    if ctx.spec.min_ready {
        RequestVerdict::Decline(Decline::UnreachableForMinReady { reason })
    } else {
        RequestVerdict::Defer(Defer::Unreachable { reason })
    }
}

fn drained(scope: &str) -> RequestVerdict {
    RequestVerdict::Skip(Skip::Drained {
        scope: scope.into(),
    })
}

fn missing_labels<'a>(
    setup: &'a PoolSetup,
    labels: &'a [Label],
) -> impl Iterator<Item = &'a Label> {
    labels
        .iter()
        .filter(|label| !setup.labels.contains_key(*label))
}
