//! Sets of byte ranges.

use serde::{Deserialize, Serialize};

/// The bytes from `start` to `end`, exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ByteRange {
    pub(super) start: u64,
    pub(super) end: u64,
}

impl ByteRange {
    pub(super) fn length(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// Ordered ranges that neither overlap nor touch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<ByteRange>", into = "Vec<ByteRange>")]
pub(super) struct ByteRangeSet(Vec<ByteRange>);

impl ByteRangeSet {
    pub(super) fn add(&mut self, span: ByteRange) {
        if span.start >= span.end {
            return;
        }
        let before = self.0.partition_point(|known| known.end < span.start);
        let touching = self.0.iter().skip(before);
        let touching = touching.take_while(|known| known.start <= span.end).count();
        let mut merged = span;
        for known in self.0.drain(before..before + touching) {
            merged.start = merged.start.min(known.start);
            merged.end = merged.end.max(known.end);
        }
        self.0.insert(before, merged);
    }

    /// Returns the length of the contiguous data at the start.
    pub(super) fn prefix(&self) -> u64 {
        match self.0.first() {
            Some(ByteRange { start: 0, end }) => *end,
            _ => 0,
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(ByteRange::length).sum()
    }

    /// Returns the missing ranges of a file of this size, split into at most `piece` bytes.
    pub(super) fn missing(&self, size: u64, piece: u64) -> Vec<ByteRange> {
        let piece = piece.max(1);
        let mut missing = Vec::new();
        let mut at = 0;
        let known = self.0.iter().copied();
        let end = ByteRange {
            start: size,
            end: size,
        };
        for span in known.chain([end]) {
            while at < span.start.min(size) {
                let end = (at + piece).min(span.start).min(size);
                missing.push(ByteRange { start: at, end });
                at = end;
            }
            at = at.max(span.end);
        }
        missing
    }
}

impl From<Vec<ByteRange>> for ByteRangeSet {
    fn from(spans: Vec<ByteRange>) -> Self {
        let mut ranges = Self::default();
        for span in spans {
            ranges.add(span);
        }
        ranges
    }
}

impl From<ByteRangeSet> for Vec<ByteRange> {
    fn from(ranges: ByteRangeSet) -> Self {
        ranges.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_know_each_byte(spans in proptest::collection::vec((0u64..40, 0u64..10), 0..12), size in 0u64..60) {
            let mut bytes = [false; 64];
            let mut ranges = ByteRangeSet::default();
            for (start, length) in spans {
                ranges.add(ByteRange { start, end: start + length });
                bytes.iter_mut().skip(start as usize).take(length as usize).for_each(|byte| *byte = true);
            }
            prop_assert_eq!(ranges.total(), bytes.iter().filter(|byte| **byte).count() as u64);
            prop_assert_eq!(ranges.prefix(), bytes.iter().take_while(|byte| **byte).count() as u64);
            let mut missing = [false; 64];
            for span in ranges.missing(size, 3) {
                prop_assert!(span.length() <= 3 && span.length() > 0);
                for byte in &mut missing[span.start as usize..span.end as usize] {
                    prop_assert!(!*byte);
                    *byte = true;
                }
            }
            for at in 0..size as usize {
                prop_assert_eq!(missing[at], !bytes[at]);
            }
        }
    }
}
