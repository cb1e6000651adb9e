//! What is to be done at a certain time.

use std::collections::BTreeMap;
use std::time::Duration;

use nodeyard_model::{Label, NodeId, ProviderName, RequestId};
use nodeyard_plan::{PoolKey, Zone};
use tokio::time::{Instant, sleep_until};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Timer {
    /// Plan a request anew.
    Release(PoolKey, RequestId),
    /// A request lacks these since a cloud has refused them.
    Retry {
        request: RequestId,
        missing: Vec<Label>,
        zone: Option<Zone>,
    },
    Settle(NodeId),
    Recover(RequestId),
    Start(ProviderName),
    /// Patience ends.
    Assign(PoolKey),
    /// A look at everything.
    Pass,
    Cleanup,
    CloudCheck,
    Expiry,
    /// Ask for ready nodes again.
    KeepReady,
    /// End a request for ready nodes.
    End(RequestId),
    /// Note what requests wait for.
    Look,
}

#[derive(Debug, Default)]
pub(super) struct Timers {
    queue: BTreeMap<(Instant, u64), Timer>,
    count: u64,
}

impl Timers {
    pub(super) fn after(&mut self, delay: Duration, timer: Timer) {
        self.count += 1;
        self.queue
            .insert((Instant::now() + delay, self.count), timer);
    }

    /// As [`Timers::after`], unless the same is to be done before that anyway.
    pub(super) fn within(&mut self, delay: Duration, timer: Timer) {
        let at = Instant::now() + delay;
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
