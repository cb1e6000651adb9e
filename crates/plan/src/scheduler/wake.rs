//! Marks our pools as stale after changes for which a pass may decide differently.

use std::collections::BTreeSet;

use nodeyard_model::{ProviderName, RequestId, Resources, TenantName};

use super::node_index::Freed;
use super::{Full, OwnPool, RequestScheduler};
use crate::assign::bookings::Booking;
use crate::setup::PoolKey;

impl RequestScheduler {
    /// Marks a pool as up to date.
    pub(crate) fn unmark_stale(&mut self, key: &PoolKey) {
        self.stale.remove(key);
    }

    /// Drops the bookings of a request, and wakes the pools that may use their room. Pools that are full without them
    /// are not woken.
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

    /// Returns whether a pool has no room for the smallest node that it launches, bookings aside.
    pub(crate) fn is_exhausted(&self, key: &PoolKey) -> bool {
        let nothing = Resources::default();
        self.lacks_room(key, &nothing, &nothing)
    }

    /// Returns whether a pool has no room for the smallest node that it launches beside these bookings of the pool and
    /// of its provider.
    pub(crate) fn lacks_room(
        &self,
        key: &PoolKey,
        in_pool: &Resources,
        at_provider: &Resources,
    ) -> bool {
        let Some(least) = self.own.get(key).and_then(|pool| pool.least.as_ref()) else {
            return false;
        };
        let pool = self.node_index.pool(key);
        let provider = self.node_index.provider(&key.provider);
        pool.is_some_and(|usage| !usage.account.has_room(in_pool, least))
            || provider.is_some_and(|usage| !usage.account.has_room(at_provider, least))
    }

    /// Wakes the pools that share a limit with dropped bookings of a pool.
    pub(crate) fn wake_sharing_pools(&mut self, key: &PoolKey, dropped: &[Booking]) {
        if dropped.iter().any(|booking| self.is_limiting(booking)) {
            self.wake_all();
        } else if !dropped.is_empty() {
            self.wake_provider(&key.provider);
        }
        self.unmark_stale(key);
    }

    /// Returns whether a booking is for a tenant with limits, which all pools share.
    pub(crate) fn is_limiting(&self, booking: &Booking) -> bool {
        let tenant = booking.tenant.as_ref();
        tenant.is_some_and(|(tenant, _)| self.is_limited(tenant))
    }

    pub(super) fn is_limited(&self, tenant: &TenantName) -> bool {
        let account = self.node_index.tenant(tenant);
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

    /// Wakes every pool, whether or not something has changed.
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

    /// Wakes the pools that have to evaluate a request. Only the head of a line matters. A full pool only has to
    /// decide whether it can ever serve later ones.
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
