//! A cache of rendered pages, valid for one second.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;

pub(super) const MAX_AGE: Duration = Duration::from_secs(1);

/// The maximum number of cached pages; clients choose the keys, so it must be bounded.
const PAGES: usize = 64;

/// A rendered page and when it was rendered.
#[derive(Debug, Clone)]
pub(super) struct CachedPage {
    pub(super) body: Bytes,
    pub(super) made: SystemTime,
}

#[derive(Debug)]
pub(super) struct Cache<K>(HashMap<K, (Instant, CachedPage)>);

impl<K> Default for Cache<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> Cache<K> {
    pub(super) fn get(&mut self, key: &K, now: Instant) -> Option<CachedPage> {
        self.0.retain(|_, (since, _)| now < *since + MAX_AGE);
        self.0.get(key).map(|(_, page)| page.clone())
    }

    pub(super) fn put(&mut self, key: K, page: CachedPage, now: Instant) {
        if self.0.len() < PAGES {
            self.0.insert(key, (now, page));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_pages_expire_and_are_bounded() {
        let page = CachedPage {
            body: Bytes::new(),
            made: SystemTime::UNIX_EPOCH,
        };
        let start = Instant::now();
        let mut cache = Cache::default();
        for key in 0..1000 {
            cache.put(key, page.clone(), start);
        }
        assert_eq!(cache.0.len(), PAGES);
        assert!(cache.get(&0, start + MAX_AGE / 2).is_some());
        assert!(cache.get(&999, start).is_none());
        assert!(cache.get(&0, start + MAX_AGE).is_none());
        assert!(cache.0.is_empty());
    }
}
