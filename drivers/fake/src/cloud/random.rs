//! Random numbers from one seed: the same calls at the same times give the same cloud.

use std::time::Duration;

use crate::simulate::Span;

/// A SplitMix64 generator.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number in [0, 1).
    pub(super) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(super) fn duration(&mut self, span: Span) -> Duration {
        if span.max <= span.min {
            return span.min;
        }
        span.min + (span.max - span.min).mul_f64(self.fraction())
    }

    /// Returns 32 hexadecimal digits.
    pub(super) fn id(&mut self) -> String {
        format!("{:016x}{:016x}", self.next(), self.next())
    }

    pub(super) fn pick<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        let index = (self.fraction() * all.len() as f64) as usize;
        all.get(index)
    }
}
