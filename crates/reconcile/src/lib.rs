//! A keyed work queue for reconcilers.
//!
//! ```text
//!   events, timers ──add──►  WorkQueue  ──►  run: one task per key, at most `concurrency` at once
//!                               ▲                        │
//!                               └── due time, backoff ───┘
//! ```
//!
//! A key says what to reconcile, never what has changed: a task reads the state for itself, so any number of events is one
//! run. A key that is added while its task runs is run again afterwards.
//!
//! A task that returns an error or panics is run again after a backoff that doubles with each failure in a row. Unlike in
//! controller-runtime, [`add`](WorkQueue::add) does not cut the backoff short: a task that writes a record and then fails
//! would be woken by the event of its own write.

mod queue;
mod state;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use queue::{CountKeys, WorkQueue};
pub use state::{KeyStatus, QueueCounts};

/// How a [`WorkQueue`] runs its tasks.
#[derive(Debug, Clone)]
pub struct Options {
    /// What the queue is called in logs.
    pub name: &'static str,
    /// The largest number of tasks at once.
    pub concurrency: usize,
    pub backoff: Backoff,
    /// How long running tasks may take to end after a stop before they are aborted.
    pub grace: Duration,
}

/// The delay before a failed key is run again: doubled with each failure in a row, without jitter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    pub first: Duration,
    pub max: Duration,
}

impl Backoff {
    /// Returns the delay after so many failures in a row.
    pub fn delay(&self, failures: u32) -> Duration {
        let factor = 2_u32.saturating_pow(failures.saturating_sub(1));
        self.first.saturating_mul(factor).min(self.max)
    }
}
