//! A worker's priority queue of functions that may have waiting jobs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Ability, FunctionId, QueueKey};

/// Functions that may have waiting jobs, most urgent first. Not maintained while the worker sleeps.
#[derive(Debug, Default)]
pub(super) struct Hints {
    heap: BinaryHeap<Reverse<(QueueKey, FunctionId)>>,
    /// Incremented by [`Self::clear`], which invalidates the hint stored in every [`Ability`].
    round: u64,
}

impl Hints {
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(super) fn clear(&mut self) {
        self.heap.clear();
        self.round += 1;
    }

    /// Adds a hint that a function's first job has this key, unless there is one.
    pub(super) fn add(&mut self, ability: &mut Ability, key: QueueKey, function: FunctionId) {
        let known = ability
            .hint
            .is_some_and(|(round, hint)| round == self.round && hint <= key);
        if !known {
            ability.hint = Some((self.round, key));
            self.heap.push(Reverse((key, function)));
        }
    }

    pub(super) fn first(&self) -> Option<(QueueKey, FunctionId)> {
        self.heap.peek().map(|Reverse(hint)| *hint)
    }

    /// Replaces the first hint, which is stale, by one with the function's current first key.
    pub(super) fn replace_first(&mut self, ability: Option<&mut Ability>, key: Option<QueueKey>) {
        let Some(Reverse((stale, function))) = self.heap.pop() else {
            return;
        };
        // Not if there is already a newer hint for the function.
        if let Some(ability) = ability.filter(|ability| ability.hint == Some((self.round, stale))) {
            ability.hint = None;
            if let Some(key) = key {
                self.add(ability, key, function);
            }
        }
    }
}
