//! Explains why requests wait: on demand, and sampled periodically for the history.

use std::collections::BTreeSet;
use std::time::Duration;

use nodeyard_model::{RequestId, RequestState};
use nodeyard_plan::explain::{AssignmentExplanation, PoolMessage};

use super::{Dispatcher, Timer};

/// The interval between two samples of waiting requests.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);
/// Requests per sample; the next sample continues where this one ended.
const SAMPLE_SIZE: usize = 50;

impl Dispatcher {
    /// Explains a request. None if it does not exist.
    pub(super) fn explain(&self, id: RequestId) -> Option<AssignmentExplanation> {
        self.scheduler.explain(id, self.decision_inputs())
    }

    /// Schedules a sample of the waiting requests.
    pub(super) fn schedule_sample(&mut self) {
        if !self.sample_scheduled {
            self.sample_scheduled = true;
            self.timers.after(SAMPLE_INTERVAL, Timer::Sample);
        }
    }

    pub(super) fn sample_waiting(&mut self) {
        let mut waiting = BTreeSet::new();
        self.ctx.requests.for_each(|request| {
            if request.value.state == RequestState::Requested {
                waiting.insert(request.id);
            }
        });
        self.sample_scheduled = false;
        if waiting.is_empty() {
            return;
        }
        self.schedule_sample();
        let (before, after): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .partition(|id| self.last_sampled.is_some_and(|last| *id <= last));
        for id in after.into_iter().chain(before).take(SAMPLE_SIZE) {
            self.last_sampled = Some(id);
            let record = self.ctx.requests.get(&id);
            let (Some(record), Some(explanation)) = (record, self.explain(id)) else {
                continue;
            };
            let says = explanation.pools.into_iter().map(|view| PoolMessage {
                message: view.verdict.to_string(),
                pool: view.pool,
            });
            self.ctx.history.sampled(id, record.value, says.collect());
        }
    }
}
