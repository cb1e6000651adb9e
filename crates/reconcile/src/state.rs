//! The keys of a queue, and when each is to be run.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key as DelayKey;

use crate::Backoff;

/// The longest delay; [`DelayQueue`] panics at about two years. A key that is due later is run early.
const MAX_DELAY: Duration = Duration::from_secs(30 * 24 * 3600);

/// How a key stands. A key that has nothing to wait for has no status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyStatus {
    pub running_since: Option<Instant>,
    /// When the key is run next; for a running key, when it is run again.
    pub due: Option<Instant>,
    /// Failures in a row.
    pub failures: u32,
    /// The error or panic of the last run; none if it succeeded, or there was none.
    pub last_error: Option<String>,
}

/// The number of keys in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueCounts {
    pub running: usize,
    /// Due, but not running yet.
    pub ready: usize,
    /// Due later.
    pub delayed: usize,
    /// Failed at their last run, whatever they do now.
    pub failing: usize,
}

#[derive(Debug)]
pub(crate) struct State<K> {
    entries: HashMap<K, Entry>,
    /// In the order in which they became due.
    ready: VecDeque<K>,
    delayed: DelayQueue<K>,
    /// Of the loop that runs the keys.
    waker: Option<Waker>,
}

#[derive(Debug)]
struct Entry {
    phase: KeyPhase,
    failures: u32,
    last_error: Option<String>,
}

#[derive(Debug, Clone, Copy)]
enum KeyPhase {
    Ready {
        since: Instant,
    },
    /// Has a place in the delay queue; backing off if the entry has failures.
    Delayed {
        until: Instant,
        place: DelayKey,
    },
    Running {
        since: Instant,
        /// It was added meanwhile, for this time.
        again: Option<Instant>,
    },
}

impl<K> Default for State<K> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            ready: VecDeque::new(),
            delayed: DelayQueue::new(),
            waker: None,
        }
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    /// Schedules a key. The earlier of two times counts, except that a backoff is not cut short.
    pub(crate) fn add(&mut self, key: K, delay: Duration) {
        let at = Instant::now() + delay.min(MAX_DELAY);
        match self.entries.get_mut(&key) {
            None => self.schedule(key, at, 0, None),
            Some(entry) => match &mut entry.phase {
                KeyPhase::Ready { .. } => {}
                KeyPhase::Delayed { until, place } => {
                    if entry.failures == 0 && at < *until {
                        *until = at;
                        self.delayed.reset_at(place, at);
                    }
                }
                KeyPhase::Running { again, .. } => {
                    *again = Some(again.map_or(at, |earlier| earlier.min(at)));
                }
            },
        }
    }

    fn schedule(&mut self, key: K, at: Instant, failures: u32, last_error: Option<String>) {
        let now = Instant::now();
        let phase = if at <= now {
            self.ready.push_back(key.clone());
            if let Some(waker) = self.waker.take() {
                waker.wake();
            }
            KeyPhase::Ready { since: now }
        } else {
            let place = self.delayed.insert_at(key.clone(), at);
            KeyPhase::Delayed { until: at, place }
        };
        let entry = Entry {
            phase,
            failures,
            last_error,
        };
        self.entries.insert(key, entry);
    }

    /// Returns the next key that is due, which is running from now on.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<K> {
        let now = Instant::now();
        while let Poll::Ready(Some(expired)) = self.delayed.poll_expired(cx) {
            let key = expired.into_inner();
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.phase = KeyPhase::Ready { since: now };
                self.ready.push_back(key);
            }
        }
        let Some(key) = self.ready.pop_front() else {
            self.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.phase = KeyPhase::Running {
                since: now,
                again: None,
            };
        }
        Poll::Ready(key)
    }

    /// Schedules a key whose task has succeeded, or forgets it if nothing is due.
    pub(crate) fn succeeded(&mut self, key: K, delay: Option<Duration>) {
        let again = self.entries.remove(&key).and_then(|entry| entry.again());
        let next = delay.map(|delay| Instant::now() + delay.min(MAX_DELAY));
        if let Some(at) = again.into_iter().chain(next).min() {
            self.schedule(key, at, 0, None);
        }
    }

    /// Schedules a key whose task has failed; returns the failures in a row and the delay.
    pub(crate) fn failed(&mut self, key: K, error: String, backoff: Backoff) -> (u32, Duration) {
        let before = self.entries.remove(&key).map_or(0, |entry| entry.failures);
        let failures = before.saturating_add(1);
        let delay = backoff.delay(failures).min(MAX_DELAY);
        self.schedule(key, Instant::now() + delay, failures, Some(error));
        (failures, delay)
    }

    pub(crate) fn status(&self, key: &K) -> Option<KeyStatus> {
        self.entries.get(key).map(Entry::status)
    }

    pub(crate) fn counts(&self) -> QueueCounts {
        let mut counts = QueueCounts::default();
        for entry in self.entries.values() {
            let count = match entry.phase {
                KeyPhase::Ready { .. } => &mut counts.ready,
                KeyPhase::Delayed { .. } => &mut counts.delayed,
                KeyPhase::Running { .. } => &mut counts.running,
            };
            *count += 1;
            counts.failing += usize::from(entry.failures > 0);
        }
        counts
    }

    pub(crate) fn statuses(&self) -> Vec<(K, KeyStatus)> {
        let entries = self.entries.iter();
        entries
            .map(|(key, entry)| (key.clone(), entry.status()))
            .collect()
    }
}

impl Entry {
    fn again(&self) -> Option<Instant> {
        match self.phase {
            KeyPhase::Running { again, .. } => again,
            KeyPhase::Ready { .. } | KeyPhase::Delayed { .. } => None,
        }
    }

    fn status(&self) -> KeyStatus {
        let (running_since, due) = match self.phase {
            KeyPhase::Ready { since } => (None, Some(since)),
            KeyPhase::Delayed { until, .. } => (None, Some(until)),
            KeyPhase::Running { since, again } => (Some(since), again),
        };
        KeyStatus {
            running_since,
            due,
            failures: self.failures,
            last_error: self.last_error.clone(),
        }
    }
}
