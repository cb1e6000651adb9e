//! How long things took.

use std::time::Duration;

/// Upper bounds in seconds: from a ready node at hand to a day when the cloud is full.
const OF_NODES: [f64; 17] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0,
    3600.0,
];

/// From a small image on this host to one that is built or uploaded all night.
const OF_IMAGES: [f64; 12] = [
    1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0,
];

#[derive(Debug, Clone)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    /// Those not above each bound, and above the one before.
    within: Box<[u64]>,
    count: u64,
    sum: f64,
}

/// For nodes.
impl Default for Histogram {
    fn default() -> Self {
        Self::with(&OF_NODES)
    }
}

impl Histogram {
    pub(crate) fn of_images() -> Self {
        Self::with(&OF_IMAGES)
    }

    fn with(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            within: vec![0; bounds.len()].into(),
            count: 0,
            sum: 0.0,
        }
    }

    pub(crate) fn observe(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        self.count += 1;
        self.sum += seconds;
        let buckets = self.bounds.iter().zip(&mut self.within);
        if let Some((_, bucket)) = buckets.into_iter().find(|(bound, _)| seconds <= **bound) {
            *bucket += 1;
        }
    }

    /// Each bound with how many were not above it.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        self.bounds
            .iter()
            .zip(&self.within)
            .scan(0, |sum, (bound, count)| {
                *sum += count;
                Some((*bound, *sum))
            })
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn sum(&self) -> f64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_add_up() {
        let mut histogram = Histogram::default();
        for milliseconds in [5, 6, 1000, 1001, 86_400_000] {
            histogram.observe(Duration::from_millis(milliseconds));
        }
        let at = |bound| histogram.buckets().find(|(b, _)| *b == bound).unwrap().1;
        assert_eq!(
            [at(0.005), at(0.01), at(1.0), at(2.5), at(3600.0)],
            [1, 2, 3, 4, 4]
        );
        assert_eq!((histogram.count(), histogram.sum()), (5, 86_402.012));
    }
}
