//! What workers can do, and which of them are asked to do it.
//!
//! # Why a grab is cheap
//!
//! A worker may have registered 10,000 functions and 200 workers may share them, so neither a grab nor a wake
//! may look at all of a worker's functions. Each worker has a heap of hints: functions that may have work, ordered by
//! the key (priority, age) of their oldest job. The rule is: whenever a function has waiting jobs, each worker that
//! is able to do it and not asleep holds a hint with a key not above that of the function's first job. Keeping it
//! costs something only when a function's first job changes to a smaller key, typically when an empty queue
//! gets its first job; hints that have become stale are corrected when they reach the top of a heap. A worker that
//! is woken gets its hints from the functions that have waiting jobs at that time, of which there are few as long
//! as anybody sleeps.
//!
//! # Who is woken
//!
//! One sleeping worker per job. If that worker takes another job instead, vanishes, or does not ask within
//! [`Settings::wake_patience`], others are woken, so that a dead worker cannot hold a job back.

use std::time::Duration;

use super::{ConnectionId, Core, FunctionId, Key, Sleep};
use crate::codec::Packet;

impl Core {
    pub(super) fn can_do(&mut self, from: ConnectionId, name: &[u8], timeout: Option<Duration>) {
        if self
            .rights(from)
            .is_some_and(|rights| !rights.may_register(name))
        {
            self.counters.denied += 1;
            return;
        }
        let Some(id) = self.intern(name) else {
            return self.refuse(
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
        let ability = function.able.entry(from).or_default();
        ability.timeout = timeout;
        connection.functions.insert(id);
        if let Some(first) = function.queue.first().copied() {
            if connection.sleep == Sleep::Asleep {
                return self.wake(from, id);
            }
            connection.hints.add(ability, first, id);
        }
        self.bound_hints(from);
    }

    pub(super) fn cant_do(&mut self, from: ConnectionId, id: FunctionId) {
        if let Some(connection) = self.connections.get_mut(&from) {
            connection.functions.swap_remove(&id);
        }
        if let Some(function) = self.function_mut(id) {
            function.able.swap_remove(&from);
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

    /// Starts over when most hints must be stale.
    fn bound_hints(&mut self, worker: ConnectionId) {
        if self
            .connections
            .get(&worker)
            .is_some_and(|c| c.hints.len() > 4 * self.ready.len() + 64)
        {
            self.renew_hints(worker);
        }
    }

    fn renew_hints(&mut self, worker: ConnectionId) {
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
                (function.queue.first(), function.able.get_mut(&worker))
            {
                connection.hints.add(ability, *first, *id);
            }
        }
    }

    pub(super) fn set_sleep(&mut self, id: ConnectionId, sleep: Sleep) -> Option<Sleep> {
        let connection = self.connections.get_mut(&id)?;
        let before = std::mem::replace(&mut connection.sleep, sleep);
        match (before == Sleep::Asleep, sleep == Sleep::Asleep) {
            (false, true) => {
                self.asleep += 1;
                connection.hints.clear();
            }
            (true, false) => {
                self.asleep -= 1;
                self.renew_hints(id);
            }
            _ => {}
        }
        Some(before)
    }

    pub(super) fn wake(&mut self, worker: ConnectionId, function: FunctionId) {
        self.set_sleep(worker, Sleep::Woken(function));
        self.counters.wakes += 1;
        self.send(worker, Packet::Noop);
    }

    /// Wakes one sleeping worker able to do this function. False if there is none.
    pub(super) fn wake_one(&mut self, id: FunctionId) -> bool {
        if self.asleep == 0 {
            return false;
        }
        let Some(Some(function)) = self.functions.get_mut(id.0) else {
            return false;
        };
        let workers = function.able.len();
        for step in 0..workers {
            let index = (function.next_wake + step) % workers;
            let Some((worker, _)) = function.able.get_index(index) else {
                continue;
            };
            if self
                .connections
                .get(worker)
                .is_some_and(|c| c.sleep == Sleep::Asleep)
            {
                function.next_wake = index + 1;
                let worker = *worker;
                self.wake(worker, id);
                return true;
            }
        }
        false
    }

    /// The worker that was woken for this function did not take its job.
    pub(super) fn wake_again(&mut self, id: FunctionId) {
        if self
            .function(id)
            .is_some_and(|function| !function.queue.is_empty())
        {
            self.wake_one(id);
        }
    }

    /// A worker about to sleep is told at once if there is work after all: the job came while it asked.
    pub(super) fn pre_sleep(&mut self, from: ConnectionId) {
        self.set_sleep(from, Sleep::Awake);
        match self.first_hint(from) {
            Some((_, function)) => self.wake(from, function),
            None => {
                self.set_sleep(from, Sleep::Asleep);
            }
        }
    }

    /// The job this worker should do next: corrects its hints until the first is true.
    pub(super) fn first_hint(&mut self, worker: ConnectionId) -> Option<(Key, FunctionId)> {
        self.bound_hints(worker);
        let connection = self.connections.get_mut(&worker)?;
        loop {
            let (hint, id) = connection.hints.first()?;
            let function = self.functions.get_mut(id.0).and_then(Option::as_mut);
            let (ability, first) = match function {
                Some(function) => (
                    function.able.get_mut(&worker),
                    function.queue.first().copied(),
                ),
                None => (None, None),
            };
            match first {
                Some(first) if ability.is_some() && first <= hint => return Some((first, id)),
                _ => connection.hints.correct_first(ability, first),
            }
        }
    }
}
