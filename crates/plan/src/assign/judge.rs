//! The verdict of one pool on one request.

use std::borrow::Cow;
use std::collections::BTreeMap;

use nodeyard_model::{
    Label, LauncherId, ProviderName, Quantity, RequestId, RequestState, ResourceName, Resources,
    Timestamp,
};

use super::Moment;
use super::accrual::{Accrual, Booking};
use super::recipe::{Recipe, Wanted, recipe};
use crate::setup::{PoolKey, PoolSetup, Readiness, Supply, Zone};
use crate::verdict::{
    Acceptance, AwaitedImage, Decline, Defer, Ledger, Shortage, Skip, Verdict, Yield,
};
use crate::world::queue::{Ask, Stage, Waiting};
use crate::world::registry::Registered;
use crate::world::{OwnPool, World};

/// A request as a pool looks at it.
#[derive(Debug)]
pub(crate) struct Case<'a> {
    pub(crate) request: RequestId,
    pub(crate) waiting: &'a Waiting,
    pub(super) ask: &'a Ask,
    pub(crate) candidates: Cow<'a, [LauncherId]>,
    pub(crate) labels: &'a [Label],
    /// Where the nodes are that it has already.
    pub(crate) zone: Option<&'a Zone>,
    /// The pool of ours that has taken it without having served it.
    pub(crate) held_by: Option<&'a PoolKey>,
}

impl<'a> Case<'a> {
    pub(crate) fn of(world: &'a World, request: RequestId) -> Option<Self> {
        let waiting = world.queue.get(request)?;
        let (ask, candidates) = match world.queue.line_of(request) {
            Some(line) => (&*line.ask, Cow::Borrowed(&*line.route.candidates)),
            None => {
                let ask = &*waiting.ask;
                let candidates = world.registry.candidates(&ask.labels, &ask.declined_by);
                (ask, Cow::Owned(candidates))
            }
        };
        Some(Self {
            request,
            waiting,
            ask,
            candidates,
            labels: &ask.labels,
            zone: None,
            held_by: ask.held_by.as_ref(),
        })
    }
}

/// Where the pools are that come first.
#[derive(Debug, Clone, Copy)]
enum Nearness<'a> {
    Provider(&'a ProviderName),
    Cluster(&'a str),
    Anywhere,
}

impl Nearness<'_> {
    fn holds(&self, pool: &Registered) -> bool {
        match self {
            Self::Provider(name) => pool.key.provider == **name,
            Self::Cluster(cluster) => pool.cluster.as_deref() == Some(cluster),
            Self::Anywhere => true,
        }
    }
}

/// A verdict, and what follows from it while the request waits.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) verdict: Verdict,
    pub(crate) wait: Option<Wait>,
}

/// A request that is stopped by a shortage.
#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) booking: Booking,
    pub(crate) patient_until: Timestamp,
    /// It would not fit even if nothing was kept for others.
    pub(crate) pool_is_short: bool,
}

impl From<Verdict> for Judged {
    fn from(verdict: Verdict) -> Self {
        let wait = None;
        Self { verdict, wait }
    }
}

impl World {
    /// `accrual` is what is kept for requests before this one.
    pub(crate) fn judge(
        &self,
        key: &PoolKey,
        case: &Case<'_>,
        accrual: &Accrual,
        at: Moment,
    ) -> Judged {
        let Some(pool) = self.own.get(key) else {
            return Verdict::Skip(Skip::NotRegistered).into();
        };
        if let Some(verdict) = self.not_here(pool, case) {
            return verdict.into();
        }
        if let Some(reason) = self.never(pool, case) {
            return Verdict::Decline(reason).into();
        }
        if let Some(image) = self.awaited_image(pool, case, at) {
            return Verdict::Defer(Defer::Image(Box::new(image))).into();
        }
        let recipe = recipe(
            &self.fleet,
            &pool.setup,
            &Wanted {
                labels: case.labels,
                reuse: case.ask.reuse,
                zone: case.zone,
                kept: &accrual.nodes,
                seed: at.seed,
            },
        );
        if recipe.launches > 0
            && let Some(reason) = pool.setup.unreachable()
        {
            return while_unreachable(case, reason).into();
        }
        let refused = pool.refusal(at).filter(|_| recipe.launches > 0);
        if refused.is_some()
            && let Some(to) = self.refuge(pool, case)
        {
            return Verdict::Yield(Yield::Refused { to }).into();
        }
        if let Some(defer) = self.not_now(key, case, &recipe, accrual) {
            return self.wait(pool, case, defer, recipe);
        }
        if let Some(defer) = refused {
            return Verdict::Defer(defer).into();
        }
        Verdict::Accept(Acceptance {
            pool: key.clone(),
            steps: recipe.steps,
            zone: recipe.zone,
        })
        .into()
    }

    /// Checks 1 to 5: whether the request is this pool's business.
    fn not_here(&self, pool: &OwnPool, case: &Case<'_>) -> Option<Verdict> {
        let setup = &pool.setup;
        let Some(registered) = self.registry.get(&setup.id) else {
            return Some(Verdict::Skip(Skip::NotRegistered));
        };
        let provider = self.providers.get(&setup.key.provider);
        if provider.is_some_and(|provider| provider.max_launches == Some(0)) {
            return Some(Verdict::Skip(Skip::Ignoring));
        }
        if let Some(holder) = case.held_by {
            if *holder != setup.key {
                let by = holder.clone();
                return Some(Verdict::Skip(Skip::Taken { by }));
            }
            let scope = self.drains.on(&setup.key, case.labels);
            return scope.map(drained);
        }
        if let Stage::Taken(by) = &case.waiting.stage {
            return Some(Verdict::Skip(Skip::Taken { by: by.clone() }));
        }
        if case.ask.declined_by.contains(&setup.id) {
            let reason = self.never(pool, case);
            return Some(Verdict::Skip(Skip::AlreadyDeclined { reason }));
        }
        if case.waiting.state != RequestState::Requested {
            let state = case.waiting.state;
            return Some(Verdict::Skip(Skip::NotWaiting { state }));
        }
        if let Some(scope) = self.drains.of_labels(case.labels) {
            return Some(drained(scope));
        }
        let yields = self.yields(setup, registered.priority, case);
        match self.drains.pools.get(&setup.key) {
            Some(scope) if yields.is_some() => Some(drained(scope)),
            Some(scope) => Some(self.while_drained(pool, case, scope)),
            None => yields.map(Verdict::Yield),
        }
    }

    /// A drained pool takes nothing. What it can never serve it declines all the same: a request fails only when every
    /// pool has declined.
    fn while_drained(&self, pool: &OwnPool, case: &Case<'_>, scope: &str) -> Verdict {
        match self.never(pool, case) {
            Some(reason) if reason.outlasts_drain() => Verdict::Decline(reason),
            _ if case.ask.min_ready => Verdict::Decline(Decline::DrainedForMinReady {
                scope: scope.into(),
            }),
            _ => drained(scope),
        }
    }

    fn yields(&self, setup: &PoolSetup, own: i64, case: &Case<'_>) -> Option<Yield> {
        let mut candidates = case
            .candidates
            .iter()
            .filter_map(|id| Some((id, self.registry.get(id)?)));
        let nearness = self.nearness(case);
        if let Some(provider) = &case.ask.provider
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
        // Pools elsewhere leave the request to us: leaving it to them would be for ever.
        let rivals = self.registry.precedes(own).then(|| candidates.clone());
        let first = rivals
            .into_iter()
            .flatten()
            .filter(|(_, pool)| nearness.holds(pool))
            .filter(|(id, pool)| pool.priority < own && !self.is_paused(id, &pool.key, pool.paused))
            .filter(|(id, pool)| !self.lacks_image(id, &pool.key, case))
            .min_by_key(|(_, pool)| pool.priority);
        if let Some((to, pool)) = first {
            return Some(Yield::Priority {
                own,
                theirs: pool.priority,
                to: to.clone(),
            });
        }
        let missing: Vec<Label> = missing_labels(setup, case.labels).cloned().collect();
        if !missing.is_empty()
            && let Some((to, _)) = candidates.find(|(id, _)| **id != setup.id)
        {
            let to = to.clone();
            return Some(Yield::Labels { missing, to });
        }
        None
    }

    /// Which of the pools that can serve a request come first because of the provider that it names.
    fn nearness<'a>(&'a self, case: &'a Case<'_>) -> Nearness<'a> {
        let Some(provider) = &case.ask.provider else {
            return Nearness::Anywhere;
        };
        let there = Nearness::Provider(provider);
        let cluster = self.registry.cluster_of(provider).flatten();
        let around = cluster.map_or(Nearness::Anywhere, Nearness::Cluster);
        let candidates = || (case.candidates.iter()).filter_map(|id| self.registry.get(id));
        let mut near = [there, around].into_iter();
        near.find(|near| candidates().any(|pool| near.holds(pool)))
            .unwrap_or(Nearness::Anywhere)
    }

    fn is_near(&self, setup: &PoolSetup, nearness: &Nearness<'_>) -> bool {
        let registered = self.registry.get(&setup.id);
        registered.is_some_and(|pool| nearness.holds(pool))
    }

    /// The provider that a request names, if this pool must not take its place.
    fn kept_from(&self, pool: &OwnPool, case: &Case<'_>) -> Option<ProviderName> {
        let own = &pool.setup.key.provider;
        let named = case.ask.provider.as_ref().filter(|named| *named != own)?;
        if !self.providers.get(own)?.keeps_to_cluster {
            return None;
        }
        let kept = match self.registry.cluster_of(named) {
            // It is in no cluster, so nothing of it is out of reach here.
            Some(None) => false,
            Some(theirs) => theirs != self.registry.cluster_of(own).flatten(),
            // Nobody can say where it is.
            None => true,
        };
        kept.then(|| named.clone())
    }

    /// While the cloud of a pool refuses launches: another pool that takes what this one would have to launch.
    fn refuge(&self, pool: &OwnPool, case: &Case<'_>) -> Option<LauncherId> {
        let asked_for = case.ask.provider.as_ref() == Some(&pool.setup.key.provider);
        if case.held_by.is_some() || asked_for {
            return None;
        }
        let nearness = self.nearness(case);
        let mut others = case.candidates.iter().filter(|id| **id != pool.setup.id);
        let open = others.find(|id| {
            let registered = self.registry.get(id);
            registered.is_some_and(|other| {
                nearness.holds(other)
                    && !self.is_paused(id, &other.key, other.paused)
                    && !self.lacks_image(id, &other.key, case)
            })
        });
        open.cloned()
    }

    /// Of our own pools we know it before the registry does.
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

    /// Check 6: what no waiting helps against.
    pub(super) fn never(&self, pool: &OwnPool, case: &Case<'_>) -> Option<Decline> {
        let setup = &pool.setup;
        if let Some(provider) = self.kept_from(pool, case) {
            return Some(Decline::OtherCluster { provider });
        }
        let servers = setup.limits.get(&ResourceName::INSTANCES);
        if servers.is_some_and(|limit| limit <= Quantity::ZERO) {
            return Some(Decline::NoServers);
        }
        let labels: Vec<Label> = missing_labels(setup, case.labels).cloned().collect();
        if !labels.is_empty() {
            return Some(Decline::UnknownLabels { labels });
        }
        let mut wanted: BTreeMap<&Label, usize> = BTreeMap::new();
        for label in case.labels {
            *wanted.entry(label).or_default() += 1;
        }
        let mut need = Resources::default();
        for label in case.labels {
            let of = setup.labels.get(label)?;
            match &of.readiness {
                // How much it needs is not known, nor whether it fits.
                Readiness::Ready | Readiness::Unreachable { .. } => {}
                Readiness::ImageMissing {
                    pending: Some(_), ..
                } if self.waits_for_image(case, label) => {}
                Readiness::ImageMissing { image, reason, .. } => {
                    return Some(Decline::ImageMissing {
                        label: label.clone(),
                        image: image.clone(),
                        reason: reason.clone(),
                    });
                }
                Readiness::Broken { reason } => {
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

    /// Whether a request for this label waits for an image that is being made.
    fn waits_for_image(&self, case: &Case<'_>, label: &Label) -> bool {
        let asked_for = case.ask.waits_for_image || self.labels_that_wait.contains(label);
        asked_for && !case.ask.min_ready
    }

    /// The first image that has to be made before a pool can serve a request which waits for it.
    fn awaited_image(&self, pool: &OwnPool, case: &Case<'_>, at: Moment) -> Option<AwaitedImage> {
        case.labels.iter().find_map(|label| {
            let setup = pool.setup.labels.get(label)?;
            let Readiness::ImageMissing {
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

    /// Whether a pool of ours lets the request wait for an image. Of pools of others it is not known.
    fn lacks_image(&self, id: &LauncherId, key: &PoolKey, case: &Case<'_>) -> bool {
        let own = self.own.get(key).filter(|own| own.setup.id == *id);
        let is_pending = |own: &OwnPool, label: &Label| {
            own.setup.labels.get(label).is_some_and(|setup| {
                matches!(
                    &setup.readiness,
                    Readiness::ImageMissing {
                        pending: Some(_),
                        ..
                    }
                )
            })
        };
        own.is_some_and(|own| {
            let mut labels = case.labels.iter();
            labels.any(|label| is_pending(own, label) && self.waits_for_image(case, label))
        })
    }

    fn too_large(&self, key: &PoolKey, need: &Resources) -> Option<Decline> {
        let decline = |(resource, limit): (ResourceName, Quantity), ledger| Decline::TooLarge {
            ledger,
            needed: need.get(&resource),
            resource,
            limit,
        };
        let pool = self.fleet.pool(key)?.account.impossible(need);
        if let Some(exceeded) = pool {
            return Some(decline(exceeded, Ledger::Pool(key.clone())));
        }
        let provider = self.fleet.provider(&key.provider)?;
        let exceeded = provider.account.impossible(need)?;
        Some(decline(exceeded, Ledger::Provider(key.provider.clone())))
    }

    /// Checks 9 to 11: what there is too little of at the moment.
    fn not_now(
        &self,
        key: &PoolKey,
        case: &Case<'_>,
        recipe: &Recipe,
        accrual: &Accrual,
    ) -> Option<Defer> {
        if let Some(missing) = &recipe.missing {
            return Some(Defer::Shortage(missing.clone()));
        }
        let tenant = || {
            let tenant = case.ask.tenant.as_ref()?;
            let need = recipe.tenant_cost();
            let ledger = || Ledger::Tenant(tenant.clone());
            let account = self.fleet.tenant(tenant)?;
            account.shortage(accrual.tenant(tenant), &need, ledger)
        };
        let pool = || {
            let account = &self.fleet.pool(key)?.account;
            let ledger = || Ledger::Pool(key.clone());
            account.shortage(&accrual.pool, &recipe.launch_cost, ledger)
        };
        let provider = || {
            let account = &self.fleet.provider(&key.provider)?.account;
            let ledger = || Ledger::Provider(key.provider.clone());
            account.shortage(&accrual.provider, &recipe.launch_cost, ledger)
        };
        tenant()
            .or_else(pool)
            .or_else(provider)
            .map(|sum| Defer::Shortage(Shortage::Quota(sum)))
            .or_else(|| self.launching_enough(key, recipe, accrual))
    }

    fn launching_enough(&self, key: &PoolKey, recipe: &Recipe, accrual: &Accrual) -> Option<Defer> {
        let max_concurrency = self.providers.get(&key.provider)?.max_launches?;
        let launching = self.fleet.provider(&key.provider)?.launches();
        let enough = recipe.launches > 0 && launching + accrual.launches >= max_concurrency;
        enough.then_some(Defer::Launching {
            launching,
            kept: accrual.launches,
            max_concurrency,
        })
    }

    fn has_room(&self, key: &PoolKey, need: &Resources) -> bool {
        let nothing = Resources::default();
        let pool = self.fleet.pool(key);
        let provider = self.fleet.provider(&key.provider);
        pool.is_none_or(|book| book.account.has_room(&nothing, need))
            && provider.is_none_or(|book| book.account.has_room(&nothing, need))
    }

    fn wait(&self, pool: &OwnPool, case: &Case<'_>, defer: Defer, recipe: Recipe) -> Judged {
        if case.ask.min_ready
            && let Defer::Shortage(shortage) = defer
        {
            return Verdict::Decline(Decline::NoRoomForMinReady { shortage }).into();
        }
        let tenant = case.ask.tenant.as_ref();
        let tenant = tenant.map(|tenant| (tenant.clone(), recipe.tenant_cost()));
        let (room, nodes) = if defer.is_at_tenant() {
            Default::default()
        } else {
            (recipe.launch_cost, recipe.reused)
        };
        let pool_is_short = !defer.is_at_tenant() && !self.has_room(&pool.setup.key, &room);
        let since = case.waiting.known_since;
        let wait = Wait {
            booking: Booking {
                request: case.request,
                order: case.waiting.order,
                provider: pool.setup.key.provider.clone(),
                room,
                launches: usize::from(matches!(defer, Defer::Launching { .. })),
                tenant,
                nodes,
            },
            patient_until: since + self.policy.patience,
            pool_is_short,
        };
        let here_only = case.held_by.is_some() || *case.candidates == [pool.setup.id.clone()];
        let verdict = match defer {
            Defer::Shortage(shortage) if here_only && shortage.is_of_room() => {
                Verdict::Reserve(shortage)
            }
            defer => Verdict::Defer(defer),
        };
        Judged {
            verdict,
            wait: Some(wait),
        }
    }
}

impl OwnPool {
    /// Why no request may launch here at the moment.
    pub(super) fn refusal(&self, at: Moment) -> Option<Defer> {
        if self.backoff.allows(at.now) {
            return None;
        }
        let resumes = self.backoff.resumes(at.now);
        let retry_in = resumes.map(|resumes| seconds_between(at.now, resumes));
        Some(Defer::Refused { retry_in })
    }
}

impl Recipe {
    /// What it adds to the tenant.
    fn tenant_cost(&self) -> Resources {
        [&self.launch_cost, &self.reuse_cost].into_iter().sum()
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the cast saturates, and parts of seconds are of no use"
)]
fn seconds_between(from: Timestamp, to: Timestamp) -> i64 {
    (to.as_secs() - from.as_secs()).round() as i64
}

/// A request waits until the provider of a pool starts. A node that nobody waits for is made elsewhere.
fn while_unreachable(case: &Case<'_>, reason: &str) -> Verdict {
    let reason = reason.into();
    if case.ask.min_ready {
        Verdict::Decline(Decline::UnreachableForMinReady { reason })
    } else {
        Verdict::Defer(Defer::Unreachable { reason })
    }
}

fn drained(scope: &str) -> Verdict {
    Verdict::Skip(Skip::Drained {
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
