//! Rate limits: a token bucket for each caller, filled at the configured rate.
//!
//! API tokens are as many as the configuration has, but anonymous peers choose their addresses, so the number of their
//! buckets is bounded. They are kept in two generations: a peer that sends a request is moved to the newer one; when
//! that is full, it becomes the older one, and the previous older one is dropped. The cost is constant.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::problem::ApiProblem;

/// The capacity of a bucket, in seconds of the rate.
const BURST: f64 = 5.0;

/// The maximum number of anonymous peers in a generation.
const GENERATION_SIZE: usize = 10_000;

/// What a rate limit applies to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RateKey {
    Token(Arc<str>),
    Anonymous(AnonymousPeer),
}

/// The origin of a request without a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum AnonymousPeer {
    /// An IPv4 address, or the /64 network of an IPv6 address, which is what one subscriber has.
    Network(IpAddr),
    Unknown,
}

impl AnonymousPeer {
    pub(super) fn at(address: IpAddr) -> Self {
        Self::Network(match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
            address => address,
        })
    }
}

/// Limits the rate of each caller.
#[derive(Debug, Default)]
pub(super) struct ApiRateLimiter(Mutex<BucketMap>);

/// The buckets of all callers, and two generations of those of anonymous peers.
#[derive(Debug, Default)]
struct BucketMap {
    tokens: HashMap<Arc<str>, TokenBucket>,
    newer: HashMap<AnonymousPeer, TokenBucket>,
    older: HashMap<AnonymousPeer, TokenBucket>,
}

/// The remaining requests at a point in time.
#[derive(Debug, Clone, Copy)]
struct TokenBucket {
    permits: f64,
    at: Instant,
}

impl BucketMap {
    /// Returns the bucket of a caller, `full` if it is new.
    fn bucket(&mut self, key: RateKey, full: TokenBucket) -> &mut TokenBucket {
        let peer = match key {
            RateKey::Token(name) => return self.tokens.entry(name).or_insert(full),
            RateKey::Anonymous(peer) => peer,
        };
        let known = self.older.remove(&peer);
        if self.newer.len() >= GENERATION_SIZE && !self.newer.contains_key(&peer) {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.entry(peer).or_insert(known.unwrap_or(full))
    }
}

impl ApiRateLimiter {
    /// Counts a request against the limit of `rate` per second; zero means unlimited.
    pub(super) fn acquire(&self, key: RateKey, rate: u64) -> Result<(), ApiProblem> {
        self.acquire_at(key, rate, Instant::now())
            .map_err(ApiProblem::too_many_requests)
    }

    /// Returns the number of seconds to wait if the limit is reached.
    fn acquire_at(&self, key: RateKey, rate: u64, now: Instant) -> Result<(), u64> {
        if rate == 0 {
            return Ok(());
        }
        let rate = rate as f64;
        let size = (rate * BURST).max(1.0);
        let full = TokenBucket {
            permits: size,
            at: now,
        };
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = state.bucket(key, full);
        let since = now.saturating_duration_since(bucket.at).as_secs_f64();
        let permits = (bucket.permits + since * rate).min(size);
        if permits < 1.0 {
            return Err((((1.0 - permits) / rate).ceil() as u64).max(1));
        }
        *bucket = TokenBucket {
            permits: permits - 1.0,
            at: now,
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_is_allowed_and_then_the_rate() {
        let buckets = ApiRateLimiter::default();
        let start = Instant::now();
        let alice = RateKey::Token("alice".into());
        for _ in 0..10 {
            buckets.acquire_at(alice.clone(), 2, start).unwrap();
        }
        assert_eq!(buckets.acquire_at(alice.clone(), 2, start), Err(1));
        // Other callers are not affected.
        let nobody = RateKey::Anonymous(AnonymousPeer::Unknown);
        buckets.acquire_at(nobody, 2, start).unwrap();
        let later = start + Duration::from_millis(500);
        buckets.acquire_at(alice.clone(), 2, later).unwrap();
        assert!(buckets.acquire_at(alice.clone(), 2, later).is_err());
        for _ in 0..1000 {
            buckets.acquire_at(alice.clone(), 0, later).unwrap();
        }
    }

    fn peer(address: &str) -> RateKey {
        RateKey::Anonymous(AnonymousPeer::at(address.parse().unwrap()))
    }

    #[test]
    fn the_number_of_anonymous_buckets_is_bounded() {
        let buckets = ApiRateLimiter::default();
        let now = Instant::now();
        let (alice, regular) = (RateKey::Token("alice".into()), peer("192.0.2.1"));
        for key in [&alice, &regular] {
            while buckets.acquire_at(key.clone(), 1, now).is_ok() {}
        }
        // All at the same time, so that no bucket is refilled meanwhile.
        for number in 0..5 * GENERATION_SIZE as u32 {
            let key = RateKey::Anonymous(AnonymousPeer::at(number.to_be_bytes().into()));
            buckets.acquire_at(key, 1, now).unwrap();
            if number % 1000 == 0 {
                assert!(buckets.acquire_at(regular.clone(), 1, now).is_err());
            }
        }
        let state = buckets.0.lock().unwrap();
        assert!(state.newer.len() + state.older.len() <= 2 * GENERATION_SIZE);
        drop(state);
        // Peers that keep sending requests, and tokens, stay limited.
        for key in [alice, regular] {
            assert!(buckets.acquire_at(key, 1, now).is_err());
        }
    }

    #[test]
    fn an_ipv6_network_is_one_peer() {
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:0:0:2"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_ne!(peer("192.0.2.1"), peer("192.0.2.2"));
        // IPv4 addresses as a dual-stack socket shows them.
        assert_eq!(peer("::ffff:192.0.2.1"), peer("192.0.2.1"));
        assert_ne!(peer("::ffff:192.0.2.1"), peer("::ffff:192.0.2.2"));
    }
}
