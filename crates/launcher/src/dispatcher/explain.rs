//! Why requests wait: told when somebody asks, and noted now and then for those who ask later.

use std::collections::BTreeSet;
use std::time::Duration;

use nodeyard_model::{RequestId, RequestState};
use nodeyard_plan::explain::{Explanation, Remark};

use super::{Dispatcher, Timer};

/// Between two looks at requests that wait.
const LOOK: Duration = Duration::from_secs(5);
/// Requests of one look; with more waiting, the next look goes on where this one ended.
const LOOK_MOST: usize = 50;

impl Dispatcher {
    /// None if there is no such request.
    pub(super) fn explain(&self, id: RequestId) -> Option<Explanation> {
        self.world.explain(id, self.moment())
    }

    /// Some request waits now, and may still do so after a while.
    pub(super) fn look_later(&mut self) {
        if !self.looking {
            self.looking = true;
            self.timers.after(LOOK, Timer::Look);
        }
    }

    pub(super) fn look_at_waiting(&mut self) {
        let mut waiting = BTreeSet::new();
        self.ctx.requests.for_each(|request| {
            if request.value.state == RequestState::Requested {
                waiting.insert(request.id);
            }
        });
        self.looking = false;
        if waiting.is_empty() {
            return;
        }
        self.look_later();
        let (before, after): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .partition(|id| self.looked_at.is_some_and(|last| *id <= last));
        for id in after.into_iter().chain(before).take(LOOK_MOST) {
            self.looked_at = Some(id);
            let record = self.ctx.requests.get(&id);
            let (Some(record), Some(explanation)) = (record, self.explain(id)) else {
                continue;
            };
            let says = explanation.pools.into_iter().map(|opinion| Remark {
                says: opinion.says.to_string(),
                pool: opinion.pool,
            });
            self.ctx.history.looked(id, record.value, says.collect());
        }
    }
}
