//! Timers of the dispatcher.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use nodeyard_model::{NodeId, ProviderName, RequestId};
use nodeyard_plan::PoolKey;
use tokio::time::{Instant, sleep_until};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Timer {
    /// Plan a request anew.
    Release(PoolKey, RequestId),
    Settle(NodeId),
    Recover(RequestId),
    Start(ProviderName),
    /// Patience or a pause of launches ends.
    Assign(PoolKey),
    /// A full check.
    Pass,
    Cleanup,
    CloudCheck,
    Expiry,
    /// Fail the requests that every registered pool has declined.
    FailDeclined,
    /// Ask for ready nodes again.
    KeepReady,
    /// End a request for ready nodes.
    End(RequestId),
    /// Note what requests wait for.
    Sample,
    /// Evaluate again which images are available.
    Images,
}

/// The longest time until a timer fires. Records and the configuration may say any number of seconds, and the clock
/// cannot represent all of them.
const LONGEST_DELAY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Returns the time after `delay`, or after [`LONGEST_DELAY`] if that is sooner.
fn deadline(delay: Duration) -> Instant {
    Instant::now() + delay.min(LONGEST_DELAY)
}

/// When a timer fires; the number makes it unique.
type TimerKey = (Instant, u64);

#[derive(Debug, Default)]
pub(super) struct Timers {
    queue: BTreeMap<TimerKey, Timer>,
    /// The same by timer.
    keys: HashMap<Timer, BTreeSet<TimerKey>>,
    count: u64,
}

impl Timers {
    pub(super) fn after(&mut self, delay: Duration, timer: Timer) {
        self.count += 1;
        let key = (deadline(delay), self.count);
        self.keys.entry(timer.clone()).or_default().insert(key);
        self.queue.insert(key, timer);
    }

    /// Sets a timer like [`Timers::after`], unless the same timer is due earlier.
    pub(super) fn within(&mut self, delay: Duration, timer: Timer) {
        let at = deadline(delay);
        let first = self.keys.get(&timer).and_then(BTreeSet::first);
        if first.is_none_or(|(when, _)| *when > at) {
            self.after(delay, timer);
        }
    }

    /// Returns the next timer when it is due. Cancel-safe.
    pub(super) async fn next(&mut self) -> Timer {
        loop {
            let Some(entry) = self.queue.first_entry() else {
                std::future::pending::<()>().await;
                continue;
            };
            let key = *entry.key();
            if key.0 <= Instant::now() {
                let timer = entry.remove();
                self.forget(&timer, key);
                return timer;
            }
            sleep_until(key.0).await;
        }
    }

    fn forget(&mut self, timer: &Timer, key: TimerKey) {
        if let Some(keys) = self.keys.get_mut(timer) {
            keys.remove(&key);
            if keys.is_empty() {
                self.keys.remove(timer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_delay_of_any_length_does_not_panic() {
        let mut timers = Timers::default();
        for seconds in [1 << 62, i64::MAX.unsigned_abs(), u64::MAX] {
            timers.after(Duration::from_secs(seconds), Timer::Pass);
            timers.within(Duration::from_secs(seconds), Timer::Expiry);
        }
        timers.after(Duration::MAX, Timer::Cleanup);
        timers.within(Duration::ZERO, Timer::Sample);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            assert_eq!(timers.next().await, Timer::Sample);
            assert_eq!(timers.next().now_or_never(), None);
        });
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_to_be_done_anyway_is_not_queued_again() {
        let mut timers = Timers::default();
        let second = Duration::from_secs(1);
        timers.within(3 * second, Timer::Pass);
        timers.within(5 * second, Timer::Pass);
        assert_eq!(timers.queue.len(), 1);
        timers.within(second, Timer::Pass);
        timers.within(2 * second, Timer::Sample);
        assert_eq!(timers.next().await, Timer::Pass);
        assert_eq!(timers.next().await, Timer::Sample);
        // The one that was queued first is still there.
        timers.within(2 * second, Timer::Pass);
        assert_eq!(timers.queue.len(), 1);
        assert_eq!(timers.next().await, Timer::Pass);
        assert!(timers.keys.is_empty());
        timers.within(second, Timer::Pass);
        assert_eq!(timers.queue.len(), 1);
    }
}
