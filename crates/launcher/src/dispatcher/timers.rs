//! What is to be done at a certain time.

use std::collections::BTreeMap;
use std::time::Duration;

use nodeyard_model::{NodeId, ProviderName, RequestId};
use nodeyard_plan::PoolKey;
use tokio::time::{Instant, sleep_until};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Timer {
    /// Plan a request anew.
    Release(PoolKey, RequestId),
    Settle(NodeId),
    Recover(RequestId),
    Start(ProviderName),
    /// Patience or a pause of launches ends.
    Assign(PoolKey),
    /// A look at everything.
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
    Look,
    /// Judge anew which images are available.
    Images,
}

/// The longest time until a timer fires. Records and the configuration may say any number of seconds, and the clock
/// cannot represent all of them.
const LONGEST_DELAY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Returns the time after `delay`, or after [`LONGEST_DELAY`] if that is sooner.
fn deadline(delay: Duration) -> Instant {
    Instant::now() + delay.min(LONGEST_DELAY)
}

#[derive(Debug, Default)]
pub(super) struct Timers {
    queue: BTreeMap<(Instant, u64), Timer>,
    count: u64,
}

impl Timers {
    pub(super) fn after(&mut self, delay: Duration, timer: Timer) {
        self.count += 1;
        self.queue.insert((deadline(delay), self.count), timer);
    }

    /// As [`Timers::after`], unless the same is to be done before that anyway.
    pub(super) fn within(&mut self, delay: Duration, timer: Timer) {
        let at = deadline(delay);
        let sooner = |(when, _): &(Instant, u64)| *when <= at;
        if !self
            .queue
            .iter()
            .any(|(when, other)| sooner(when) && *other == timer)
        {
            self.after(delay, timer);
        }
    }

    /// The next one, when its time has come. Nothing is lost if the future is dropped.
    pub(super) async fn next(&mut self) -> Timer {
        loop {
            let Some(entry) = self.queue.first_entry() else {
                std::future::pending::<()>().await;
                continue;
            };
            let at = entry.key().0;
            if at <= Instant::now() {
                return entry.remove();
            }
            sleep_until(at).await;
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
        timers.within(Duration::ZERO, Timer::Look);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            assert_eq!(timers.next().await, Timer::Look);
            assert_eq!(timers.next().now_or_never(), None);
        });
    }
}
