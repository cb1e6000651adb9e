//! Which of our pools a change concerns: those for which a pass may decide something new.

use std::collections::BTreeSet;

use nodeyard_model::{ProviderName, RequestId, Resources, TenantName};

use super::fleet::Freed;
use super::{Full, OwnPool, World};
use crate::assign::accrual::Booking;
use crate::setup::PoolKey;

impl World {
    /// Takes a pool off the list of those that need a pass.
    pub(crate) fn unmark_stale(&mut self, key: &PoolKey) {
        self.stale.remove(key);
    }

    /// Drops what pools kept for a request. Those that may give it to others look again: not those that are full even
    /// without it.
    pub(super) fn drop_bookings(&mut self, id: RequestId) {
        let mut dropped = Vec::new();
        for pool in self.own.values_mut() {
            let place = pool.bookings.iter().position(|of| of.request == id);
            dropped.extend(place.map(|place| pool.bookings.remove(place)));
        }
        if dropped.iter().any(|booking| self.is_limiting(booking)) {
            self.wake_all();
            return;
        }
        let providers: BTreeSet<&ProviderName> = dropped.iter().map(|of| &of.provider).collect();
        let keys = self.own.keys();
        let keys = keys.filter(|key| providers.contains(&key.provider) && !self.is_exhausted(key));
        for key in keys.cloned().collect::<Vec<_>>() {
            self.wake_pool(&key);
        }
    }

    /// Whether a pool has no room for the smallest node that it launches, even if nothing is kept for anybody.
    pub(crate) fn is_exhausted(&self, key: &PoolKey) -> bool {
        let nothing = Resources::default();
        self.lacks_room(key, &nothing, &nothing)
    }

    /// Whether a pool has no room for the smallest node that it launches beside what is kept in it and at its provider.
    pub(crate) fn lacks_room(
        &self,
        key: &PoolKey,
        in_pool: &Resources,
        at_provider: &Resources,
    ) -> bool {
        let Some(least) = self.own.get(key).and_then(|pool| pool.least.as_ref()) else {
            return false;
        };
        let pool = self.fleet.pool(key);
        let provider = self.fleet.provider(&key.provider);
        pool.is_some_and(|book| !book.account.has_room(in_pool, least))
            || provider.is_some_and(|book| !book.account.has_room(at_provider, least))
    }

    /// A pool keeps less for others than before: those that share a limit with it may go on.
    pub(crate) fn wake_sharers(&mut self, key: &PoolKey, dropped: &[Booking]) {
        if dropped.iter().any(|booking| self.is_limiting(booking)) {
            self.wake_all();
        } else if !dropped.is_empty() {
            self.wake_provider(&key.provider);
        }
        self.unmark_stale(key);
    }

    /// Whether a booking takes room at a tenant with limits, which all pools share.
    pub(crate) fn is_limiting(&self, booking: &Booking) -> bool {
        let tenant = booking.tenant.as_ref();
        tenant.is_some_and(|(tenant, _)| self.is_limited(tenant))
    }

    pub(super) fn is_limited(&self, tenant: &TenantName) -> bool {
        let account = self.fleet.tenant(tenant);
        account.is_some_and(|account| account.limits.iter().next().is_some())
    }

    pub(super) fn wake_freed(&mut self, freed: &Freed) {
        if let Some(provider) = &freed.provider {
            self.wake_provider(provider);
        }
        if freed
            .tenant
            .as_ref()
            .is_some_and(|tenant| self.is_limited(tenant))
        {
            self.wake_all();
        }
    }

    pub(super) fn wake_provider(&mut self, name: &ProviderName) {
        self.wake_pools(|pool| pool.setup.key.provider == *name);
    }

    /// Has every pool look at everything again, whether or not something has changed.
    pub fn wake_all(&mut self) {
        self.wake_pools(|_| true);
    }

    pub(super) fn wake_pools(&mut self, concerns: impl Fn(&OwnPool) -> bool) {
        for (key, pool) in &mut self.own {
            if concerns(pool) {
                pool.full = None;
                self.stale.insert(key.clone());
                self.ready.pools.insert(key.clone());
            }
        }
    }

    pub(super) fn wake_pool(&mut self, key: &PoolKey) {
        if let Some(pool) = self.own.get_mut(key) {
            pool.full = None;
            self.stale.insert(key.clone());
            self.ready.pools.insert(key.clone());
        }
    }

    /// Pools look at the first request of each line only. One that is full has to say of those that come later only
    /// whether it can ever serve them.
    pub(super) fn wake_concerned(&mut self, id: RequestId) {
        let (Some(line), Some(request)) = (self.queue.line_of(id), self.queue.get(id)) else {
            return;
        };
        if line.head() != Some(id) {
            return;
        }
        for key in &line.route.concerned {
            let Some(pool) = self.own.get_mut(key) else {
                continue;
            };
            let is_later = |full: &Full| full.order < request.order;
            pool.full = pool.full.take().filter(is_later);
            self.stale.insert(key.clone());
        }
    }
}
