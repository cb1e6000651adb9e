//! Histograms of durations.

use std::time::Duration;

/// Bucket bounds in seconds for launches and requests: from a node that is ready already to a full cloud.
const OF_NODES: [f64; 17] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0,
    3600.0,
];

/// Bucket bounds in seconds for builds and uploads of images.
const OF_IMAGES: [f64; 12] = [
    1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0,
];

/// A Prometheus histogram with fixed bounds.
#[derive(Debug, Clone)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    /// The number of values within each bound and above the previous one.
    within: Box<[u64]>,
    count: u64,
    sum: f64,
}

/// With the bounds for nodes.
impl Default for Histogram {
    fn default() -> Self {
        Self::with(&OF_NODES)
    }
}

impl Histogram {
    /// Returns a histogram with the bounds for images.
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

    /// Returns each bound with the number of values that do not exceed it.
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
