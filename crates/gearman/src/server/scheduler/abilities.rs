//! Workers' registered functions, selecting a worker's next job, and waking sleeping workers.
//!
//! # Selecting a job
//!
//! 200 workers may share 10,000 functions, so neither a grab nor a wake may scan all of a worker's functions. Each worker
//! has a heap of [`Hints`](super::hints::Hints): functions that may have jobs, ordered by the key (priority, age) of
//! their first job. Invariant: for every function with waiting jobs, each awake worker that registered it holds a hint
//! whose key is not greater than that of the function's first job. Hints are added when a function's first key
//! decreases, typically when a job enters an empty queue; stale hints are corrected when they reach the top of a heap.
//! A woken worker's hints are rebuilt from the functions that have waiting jobs, which are few while any worker sleeps.
//!
//! # Waking workers
//!
//! Each job wakes one sleeping worker. If that worker takes another job, disconnects or does not grab within
//! [`SchedulerOptions::wake_timeout`](super::SchedulerOptions), others are woken.

use std::time::Duration;

use super::{ConnectionId, FunctionId, QueueKey, Scheduler, SleepState};
use crate::codec::Packet;

impl Scheduler {
    pub(super) fn can_do(&mut self, from: ConnectionId, name: &[u8], timeout: Option<Duration>) {
        if self
            .rights(from)
            .is_some_and(|rights| !rights.may_register(name))
        {
            self.counters.denied += 1;
            return;
        }
        let Some(id) = self.find_or_add_function(name) else {
            return self.send_error(
                from,
                "TOO_MANY_FUNCTIONS",
                "the server holds as many functions as it may",
            );
        };
        let Some(Some(function)) = self.functions.get_mut(id.0) else {
            return;
        };
        let Some(connection) = self.connections.get_mut(&from) else {
            return;
        };
        let ability = function.workers.entry(from).or_default();
        ability.timeout = timeout;
        connection.functions.insert(id);
        if let Some(first) = function.queue.first().copied() {
            if connection.sleep == SleepState::Asleep {
                return self.wake(from, id);
            }
            connection.hints.add(ability, first, id);
        }
        self.limit_hints(from);
    }

    pub(super) fn cant_do(&mut self, from: ConnectionId, id: FunctionId) {
        if let Some(connection) = self.connections.get_mut(&from) {
            connection.functions.swap_remove(&id);
        }
        if let Some(function) = self.function_mut(id) {
            function.workers.swap_remove(&from);
        }
    }

    pub(super) fn reset_abilities(&mut self, from: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&from) else {
            return;
        };
        connection.hints.clear();
        for id in std::mem::take(&mut connection.functions) {
            self.cant_do(from, id);
        }
    }

    /// Rebuilds the hints when most of them must be stale.
    fn limit_hints(&mut self, worker: ConnectionId) {
        if self
            .connections
            .get(&worker)
            .is_some_and(|c| c.hints.len() > 4 * self.ready.len() + 64)
        {
            self.rebuild_hints(worker);
        }
    }

    fn rebuild_hints(&mut self, worker: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&worker) else {
            return;
        };
        connection.hints.clear();
        let candidates = if self.ready.len() < connection.functions.len() {
            &self.ready
        } else {
            &connection.functions
        };
        for id in candidates {
            let Some(Some(function)) = self.functions.get_mut(id.0) else {
                continue;
            };
            if let (Some(first), Some(ability)) =
                (function.queue.first(), function.workers.get_mut(&worker))
            {
                connection.hints.add(ability, *first, *id);
            }
        }
    }

    pub(super) fn set_sleep(&mut self, id: ConnectionId, sleep: SleepState) -> Option<SleepState> {
        let connection = self.connections.get_mut(&id)?;
        let before = std::mem::replace(&mut connection.sleep, sleep);
        match (before == SleepState::Asleep, sleep == SleepState::Asleep) {
            (false, true) => {
                self.asleep += 1;
                connection.hints.clear();
            }
            (true, false) => {
                self.asleep -= 1;
                self.rebuild_hints(id);
            }
            _ => {}
        }
        Some(before)
    }

    pub(super) fn wake(&mut self, worker: ConnectionId, function: FunctionId) {
        self.set_sleep(worker, SleepState::Woken(function));
        self.counters.wakes += 1;
        self.send(worker, Packet::Noop);
    }

    /// Wakes one sleeping worker that registered this function. Returns false if there is none.
    pub(super) fn wake_one(&mut self, id: FunctionId) -> bool {
        if self.asleep == 0 {
            return false;
        }
        let Some(Some(function)) = self.functions.get_mut(id.0) else {
            return false;
        };
        let workers = function.workers.len();
        for step in 0..workers {
            let index = (function.wake_cursor + step) % workers;
            let Some((worker, _)) = function.workers.get_index(index) else {
                continue;
            };
            if self
                .connections
                .get(worker)
                .is_some_and(|c| c.sleep == SleepState::Asleep)
            {
                function.wake_cursor = index + 1;
                let worker = *worker;
                self.wake(worker, id);
                return true;
            }
        }
        false
    }

    /// Wakes another worker after the one woken for this function did not take its job.
    pub(super) fn wake_replacement(&mut self, id: FunctionId) {
        if self
            .function(id)
            .is_some_and(|function| !function.queue.is_empty())
        {
            self.wake_one(id);
        }
    }

    /// Puts a worker to sleep, or wakes it at once if a job arrived since its last grab.
    pub(super) fn pre_sleep(&mut self, from: ConnectionId) {
        self.set_sleep(from, SleepState::Awake);
        match self.next_job(from) {
            Some((_, function)) => self.wake(from, function),
            None => {
                self.set_sleep(from, SleepState::Asleep);
            }
        }
    }

    /// Returns the next job for this worker, correcting stale hints on the way.
    pub(super) fn next_job(&mut self, worker: ConnectionId) -> Option<(QueueKey, FunctionId)> {
        self.limit_hints(worker);
        let connection = self.connections.get_mut(&worker)?;
        loop {
            let (hint, id) = connection.hints.first()?;
            let function = self.functions.get_mut(id.0).and_then(Option::as_mut);
            let (ability, first) = match function {
                Some(function) => (
                    function.workers.get_mut(&worker),
                    function.queue.first().copied(),
                ),
                None => (None, None),
            };
            match first {
                Some(first) if ability.is_some() && first <= hint => return Some((first, id)),
                _ => connection.hints.replace_first(ability, first),
            }
        }
    }
}
