//! Bookings: room that is kept for requests that come first in the order of service.

use std::collections::{HashMap, HashSet};

use nodeyard_model::{NodeId, ProviderName, RequestId, RequestOrder, Resources, TenantName};

use crate::scheduler::RequestScheduler;
use crate::setup::PoolKey;

/// The room that one pool keeps for a request that does not fit yet.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Booking {
    pub(crate) request: RequestId,
    pub(crate) order: RequestOrder,
    pub(crate) provider: ProviderName,
    /// Of the pool and the provider. Nothing while the tenant's limit is what stops the request: a tenant at
    /// its limit must not block the pool for others.
    pub(crate) room: Resources,
    /// Launches under `max-concurrency`.
    pub(crate) launches: usize,
    pub(crate) tenant: Option<(TenantName, Resources)>,
    pub(crate) nodes: Vec<NodeId>,
}

/// The sum of bookings, as one pool sees it.
#[derive(Debug, Default)]
pub(crate) struct BookedRoom {
    pub(crate) pool: Resources,
    pub(crate) provider: Resources,
    /// Launches under the provider's `max-concurrency`.
    pub(crate) launches: usize,
    tenants: HashMap<TenantName, Resources>,
    pub(crate) nodes: HashSet<NodeId>,
    requests: HashSet<RequestId>,
    nothing: Resources,
}

impl BookedRoom {
    pub(crate) fn tenant(&self, tenant: &TenantName) -> &Resources {
        self.tenants.get(tenant).unwrap_or(&self.nothing)
    }

    pub(crate) fn book_here(&mut self, booking: &Booking) {
        self.pool += &booking.room;
        self.nodes.extend(&booking.nodes);
        self.keep(booking, true);
    }

    /// Adds a booking of another pool of ours. Provider and tenant may be shared with it.
    pub(crate) fn book_elsewhere(&mut self, booking: &Booking, provider: &ProviderName) {
        self.keep(booking, booking.provider == *provider);
    }

    fn keep(&mut self, booking: &Booking, same_provider: bool) {
        if !self.requests.insert(booking.request) {
            return;
        }
        if same_provider {
            self.provider += &booking.room;
            self.launches += booking.launches;
        }
        if let Some((tenant, need)) = &booking.tenant {
            *self.tenants.entry(tenant.clone()).or_default() += need;
        }
    }
}

impl RequestScheduler {
    /// Returns bookings of other pools of ours that affect this one, in order of service.
    pub(crate) fn bookings_elsewhere(&self, key: &PoolKey) -> Vec<Booking> {
        let others = self.own.iter().filter(|(other, _)| *other != key);
        let bookings = others.flat_map(|(_, pool)| &pool.bookings);
        let shared = |of: &&Booking| of.provider == key.provider || self.is_limiting(of);
        let mut bookings: Vec<Booking> = bookings.filter(shared).cloned().collect();
        bookings.sort_by_key(|booking| booking.order);
        bookings
    }

    /// Returns what is booked for requests before `order` after the last passes.
    pub(crate) fn booked_before(&self, key: &PoolKey, order: RequestOrder) -> BookedRoom {
        let mut booked = BookedRoom::default();
        for (pool, own) in &self.own {
            for booking in own.bookings.iter().filter(|b| b.order < order) {
                if pool == key {
                    booked.book_here(booking);
                } else {
                    booked.book_elsewhere(booking, &key.provider);
                }
            }
        }
        booked
    }
}
