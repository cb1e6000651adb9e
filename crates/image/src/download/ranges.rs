//! Which bytes of a file are there.

use serde::{Deserialize, Serialize};

/// Bytes from `start` up to, and without, `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Span {
    pub(super) fn length(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// Spans in their order, none of which touches another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Span>", into = "Vec<Span>")]
pub(super) struct Ranges(Vec<Span>);

impl Ranges {
    pub(super) fn add(&mut self, span: Span) {
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

    /// How many bytes there are from the beginning without a gap.
    pub(super) fn prefix(&self) -> u64 {
        match self.0.first() {
            Some(Span { start: 0, end }) => *end,
            _ => 0,
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(Span::length).sum()
    }

    /// What is missing of a file of this size, in pieces of at most `piece` bytes.
    pub(super) fn missing(&self, size: u64, piece: u64) -> Vec<Span> {
        let piece = piece.max(1);
        let mut missing = Vec::new();
        let mut at = 0;
        let known = self.0.iter().copied();
        let end = Span {
            start: size,
            end: size,
        };
        for span in known.chain([end]) {
            while at < span.start.min(size) {
                let end = (at + piece).min(span.start).min(size);
                missing.push(Span { start: at, end });
                at = end;
            }
            at = at.max(span.end);
        }
        missing
    }
}

impl From<Vec<Span>> for Ranges {
    fn from(spans: Vec<Span>) -> Self {
        let mut ranges = Self::default();
        for span in spans {
            ranges.add(span);
        }
        ranges
    }
}

impl From<Ranges> for Vec<Span> {
    fn from(ranges: Ranges) -> Self {
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
            let mut ranges = Ranges::default();
            for (start, length) in spans {
                ranges.add(Span { start, end: start + length });
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
