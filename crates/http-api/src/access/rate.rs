//! How often a caller may ask: a bucket of turns for each, filled at the configured rate.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::problem::Problem;

/// A bucket holds the turns of so many seconds.
const BURST: f64 = 5.0;

/// Callers choose their addresses; full buckets are forgotten when there are more than this.
const BUCKETS: usize = 10_000;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Token(Arc<str>),
    Address(IpAddr),
    Unknown,
}

#[derive(Debug, Default)]
pub(super) struct Buckets(Mutex<HashMap<Key, Bucket>>);

#[derive(Debug, Clone, Copy)]
struct Bucket {
    turns: f64,
    at: Instant,
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
        let filled = |bucket: &Bucket| {
            let since = now.saturating_duration_since(bucket.at).as_secs_f64();
            (bucket.turns + since * rate).min(size)
        };
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= BUCKETS && !buckets.contains_key(&key) {
            buckets.retain(|_, bucket| filled(bucket) < size);
        }
        let full = Bucket {
            turns: size,
            at: now,
        };
        let bucket = buckets.entry(key).or_insert(full);
        let turns = filled(bucket);
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
        buckets.take_at(Key::Unknown, 2, start).unwrap();
        let later = start + Duration::from_millis(500);
        buckets.take_at(alice.clone(), 2, later).unwrap();
        assert!(buckets.take_at(alice.clone(), 2, later).is_err());
        for _ in 0..1000 {
            buckets.take_at(alice.clone(), 0, later).unwrap();
        }
    }

    #[test]
    fn strangers_do_not_fill_the_memory() {
        let buckets = Buckets::default();
        let start = Instant::now();
        for address in 0..BUCKETS as u32 + 10 {
            let now = start + Duration::from_secs(u64::from(address));
            let key = Key::Address(IpAddr::from(address.to_be_bytes()));
            buckets.take_at(key, 1, now).unwrap();
        }
        assert!(buckets.0.lock().unwrap().len() < 100);
    }
}
