//! Where a worker may find work.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Ability, FunctionId, Key};

/// Functions that may have waiting jobs, the most urgent first. Worthless while their worker sleeps.
#[derive(Debug, Default)]
pub(super) struct Hints {
    heap: BinaryHeap<Reverse<(Key, FunctionId)>>,
    /// Grows whenever all hints are dropped, so that abilities need not be told.
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

    /// Notes that a function's first job has this key, unless a hint says so already.
    pub(super) fn add(&mut self, ability: &mut Ability, key: Key, function: FunctionId) {
        let known = ability
            .hint
            .is_some_and(|(round, hint)| round == self.round && hint <= key);
        if !known {
            ability.hint = Some((self.round, key));
            self.heap.push(Reverse((key, function)));
        }
    }

    pub(super) fn first(&self) -> Option<(Key, FunctionId)> {
        self.heap.peek().map(|Reverse(hint)| *hint)
    }

    /// Replaces the first hint, which has turned out to be stale, by what is true of its function.
    pub(super) fn correct_first(&mut self, ability: Option<&mut Ability>, key: Option<Key>) {
        let Some(Reverse((stale, function))) = self.heap.pop() else {
            return;
        };
        // A newer hint for the same function, if there is one, must not be doubled.
        if let Some(ability) = ability.filter(|ability| ability.hint == Some((self.round, stale))) {
            ability.hint = None;
            if let Some(key) = key {
                self.add(ability, key, function);
            }
        }
    }
}
