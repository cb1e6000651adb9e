//! What workers can do, and which of them are asked to do it.
//!
//! # Why a grab is cheap
//!
//! A worker may have registered 10,000 functions and 200 workers may share them, so neither a grab nor a wake
//! may look at all of a worker's functions. Each worker has a heap of *hints*: functions that may have work,
//! ordered by the key (priority, age) of their oldest job. The rule is: whenever a function has waiting jobs,
//! each worker able to do it holds a hint with a key not above that of the function's first job. Keeping it
//! costs something only when a function's first job changes to a smaller key, typically when an empty queue
//! gets its first job; hints that have become stale are corrected when they reach the top of a heap.
//!
//! # Who is woken
//!
//! One sleeping worker per job. If that worker takes another job instead, vanishes, or does not ask within
//! [`Settings::wake_patience`], others are woken, so that a dead worker cannot hold a job back.

use std::cmp::Reverse;
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
            if ability.hint.is_none_or(|hint| hint > first) {
                ability.hint = Some(first);
                connection.hints.push(Reverse((first, id)));
            }
            if connection.sleep == Sleep::Asleep {
                self.wake(from, id);
            }
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

    /// Keeps a worker that registers and withdraws the same functions for ever from piling up stale hints.
    fn bound_hints(&mut self, from: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&from) else {
            return;
        };
        if connection.hints.len() <= 4 * connection.functions.len() + 64 {
            return;
        }
        connection.hints.clear();
        for id in &connection.functions {
            let Some(Some(function)) = self.functions.get_mut(id.0) else {
                continue;
            };
            let first = function.queue.first().copied();
            if let Some(ability) = function.able.get_mut(&from) {
                ability.hint = first;
                connection
                    .hints
                    .extend(first.map(|key| Reverse((key, *id))));
            }
        }
    }

    // Sleeping and waking

    pub(super) fn set_sleep(&mut self, id: ConnectionId, sleep: Sleep) -> Option<Sleep> {
        let connection = self.connections.get_mut(&id)?;
        let before = std::mem::replace(&mut connection.sleep, sleep);
        self.asleep += usize::from(sleep == Sleep::Asleep);
        self.asleep -= usize::from(before == Sleep::Asleep);
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
        self.set_sleep(from, Sleep::Asleep);
        if let Some((_, function)) = self.first_hint(from) {
            self.wake(from, function);
        }
    }

    /// The job this worker should do next: corrects its hints until the top one is true.
    pub(super) fn first_hint(&mut self, worker: ConnectionId) -> Option<(Key, FunctionId)> {
        let connection = self.connections.get_mut(&worker)?;
        loop {
            let Reverse((hint, id)) = *connection.hints.peek()?;
            let function = self.functions.get_mut(id.0).and_then(Option::as_mut);
            let ability = function.and_then(|f| {
                let first = f.queue.first().copied();
                f.able.get_mut(&worker).map(|ability| (ability, first))
            });
            match ability {
                Some((_, Some(first))) if first <= hint => return Some((first, id)),
                Some((ability, first)) => {
                    connection.hints.pop();
                    // A newer hint for the same function, if there is one, must not be doubled.
                    if ability.hint == Some(hint) {
                        ability.hint = first;
                        connection.hints.extend(first.map(|key| Reverse((key, id))));
                    }
                }
                None => {
                    connection.hints.pop();
                }
            }
        }
    }
}
