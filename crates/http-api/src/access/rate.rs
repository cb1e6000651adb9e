//! How often a caller may ask: a bucket of turns for each, filled at the configured rate.
//!
//! There are as many tokens as the configuration has, but strangers choose their addresses, so what is kept of those is
//! bounded. They are kept in two generations: whoever comes is in the newer one, and when that is full it becomes the
//! older one, and those who did not come meanwhile are forgotten. That costs the same however many there are.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::problem::Problem;

/// A bucket holds the turns of so many seconds.
const BURST: f64 = 5.0;

/// Strangers of one generation.
const STRANGERS: usize = 10_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Key {
    Token(Arc<str>),
    Stranger(Stranger),
}

/// Where somebody without a token comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Stranger {
    /// An address of IPv4, or what one subscriber has of IPv6: 64 bits of network.
    Network(IpAddr),
    Unknown,
}

impl Stranger {
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

#[derive(Debug, Default)]
pub(super) struct Buckets(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    tokens: HashMap<Arc<str>, Bucket>,
    newer: HashMap<Stranger, Bucket>,
    older: HashMap<Stranger, Bucket>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    turns: f64,
    at: Instant,
}

impl Kept {
    /// Whoever is not known has a `full` one.
    fn bucket(&mut self, key: Key, full: Bucket) -> &mut Bucket {
        let stranger = match key {
            Key::Token(name) => return self.tokens.entry(name).or_insert(full),
            Key::Stranger(stranger) => stranger,
        };
        let known = self.older.remove(&stranger);
        if self.newer.len() >= STRANGERS && !self.newer.contains_key(&stranger) {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.entry(stranger).or_insert(known.unwrap_or(full))
    }
}

impl Buckets {
    /// Takes a turn; `rate` is per second, and zero is without limit.
    pub(super) fn take(&self, key: Key, rate: u64) -> Result<(), Problem> {
        self.take_at(key, rate, Instant::now())
            .map_err(Problem::too_many_requests)
    }

    /// Or says after how many seconds there is one.
    fn take_at(&self, key: Key, rate: u64, now: Instant) -> Result<(), u64> {
        if rate == 0 {
            return Ok(());
        }
        let rate = rate as f64;
        let size = (rate * BURST).max(1.0);
        let full = Bucket {
            turns: size,
            at: now,
        };
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = kept.bucket(key, full);
        let since = now.saturating_duration_since(bucket.at).as_secs_f64();
        let turns = (bucket.turns + since * rate).min(size);
        if turns < 1.0 {
            return Err((((1.0 - turns) / rate).ceil() as u64).max(1));
        }
        *bucket = Bucket {
            turns: turns - 1.0,
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
    fn a_burst_and_then_the_rate() {
        let buckets = Buckets::default();
        let start = Instant::now();
        let alice = Key::Token("alice".into());
        for _ in 0..10 {
            buckets.take_at(alice.clone(), 2, start).unwrap();
        }
        assert_eq!(buckets.take_at(alice.clone(), 2, start), Err(1));
        // Others are not concerned.
        let nobody = Key::Stranger(Stranger::Unknown);
        buckets.take_at(nobody, 2, start).unwrap();
        let later = start + Duration::from_millis(500);
        buckets.take_at(alice.clone(), 2, later).unwrap();
        assert!(buckets.take_at(alice.clone(), 2, later).is_err());
        for _ in 0..1000 {
            buckets.take_at(alice.clone(), 0, later).unwrap();
        }
    }

    fn stranger(address: &str) -> Key {
        Key::Stranger(Stranger::at(address.parse().unwrap()))
    }

    #[test]
    fn strangers_do_not_fill_the_memory() {
        let buckets = Buckets::default();
        let now = Instant::now();
        let (alice, regular) = (Key::Token("alice".into()), stranger("192.0.2.1"));
        for key in [&alice, &regular] {
            while buckets.take_at(key.clone(), 1, now).is_ok() {}
        }
        // All at once, so that no bucket fills up meanwhile.
        for number in 0..5 * STRANGERS as u32 {
            let key = Key::Stranger(Stranger::at(number.to_be_bytes().into()));
            buckets.take_at(key, 1, now).unwrap();
            if number % 1000 == 0 {
                assert!(buckets.take_at(regular.clone(), 1, now).is_err());
            }
        }
        let kept = buckets.0.lock().unwrap();
        assert!(kept.newer.len() + kept.older.len() <= 2 * STRANGERS);
        drop(kept);
        // Whoever keeps coming, and whoever has a token, is not forgotten over that.
        for key in [alice, regular] {
            assert!(buckets.take_at(key, 1, now).is_err());
        }
    }

    #[test]
    fn a_subscriber_is_one_stranger_whatever_its_address() {
        assert_eq!(stranger("2001:db8::1"), stranger("2001:db8::ffff:0:0:2"));
        assert_ne!(stranger("2001:db8::1"), stranger("2001:db8:0:1::1"));
        assert_ne!(stranger("192.0.2.1"), stranger("192.0.2.2"));
        // As a socket for both shows them.
        assert_eq!(stranger("::ffff:192.0.2.1"), stranger("192.0.2.1"));
        assert_ne!(stranger("::ffff:192.0.2.1"), stranger("::ffff:192.0.2.2"));
    }
}
