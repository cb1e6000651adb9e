//! Backoff of launches after the cloud refused one for lack of quota.
//!
//! After a refusal the pool launches nothing for a pause that doubles with every refusal in a row. Then requests probe
//! the cloud in their order of service: one at first, and one more for each launch that the cloud accepts, until no
//! request waits for a launch or the cloud refuses again.

use std::collections::BTreeSet;
use std::time::Duration;

use nodeyard_model::{RequestId, Timestamp};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct LaunchBackoff {
    /// Refusals since the cloud last accepted a launch.
    refusals: u32,
    /// When the pause ends or ended; none while launches are not limited.
    until: Option<Timestamp>,
    /// How many requests may probe the cloud at once after the pause.
    window: usize,
    /// Requests whose launches the cloud has not answered yet.
    probing: BTreeSet<RequestId>,
}

impl LaunchBackoff {
    /// Returns whether launches are limited, during the pause and after it.
    pub(crate) fn is_active(&self) -> bool {
        self.until.is_some()
    }

    /// Returns whether one more request may launch.
    pub(crate) fn allows(&self, now: Timestamp) -> bool {
        !self.is_active() || self.resumes(now).is_none() && self.probing.len() < self.window
    }

    /// Returns when the pause ends, if there is one.
    pub(crate) fn resumes(&self, now: Timestamp) -> Option<Timestamp> {
        // A pause that is longer than the longest possible one was set before the clock was changed.
        let is_pause = |until: &Timestamp| *until > now && *until <= now + LONGEST_PAUSE;
        self.until.filter(is_pause)
    }

    /// Records a refusal. Refusals of other launches in the same pause do not lengthen it.
    pub(crate) fn record_quota_refusal(&mut self, now: Timestamp) {
        if self.resumes(now).is_some() {
            return;
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << self.refusals.min(10));
        self.refusals = self.refusals.saturating_add(1);
        self.until = Some(now + pause.min(LONGEST_PAUSE));
        self.window = 1;
        self.probing.clear();
    }

    /// Records that a request launches.
    pub(crate) fn probe(&mut self, request: RequestId) {
        if self.is_active() {
            self.probing.insert(request);
        }
    }

    /// Records that the cloud accepts a launch for a request. Returns whether more requests may launch now.
    pub(crate) fn accept(&mut self, request: RequestId) -> bool {
        let probed = self.probing.remove(&request);
        if probed {
            self.window += 1;
        }
        if probed || !self.is_active() {
            self.refusals = 0;
        }
        probed
    }

    /// Forgets a request that launches no more. Returns whether another may launch in its place.
    pub(crate) fn forget(&mut self, request: RequestId) -> bool {
        self.probing.remove(&request)
    }

    /// Ends the limit after the pause if no request waits for it. The length of the next pause is kept.
    pub(crate) fn end_if_unused(&mut self, now: Timestamp, is_used: bool) {
        if !is_used && self.probing.is_empty() && self.resumes(now).is_none() {
            self.until = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Timestamp {
        Timestamp::from_secs(seconds).unwrap()
    }

    fn id(number: u32) -> RequestId {
        format!("200-{number:010}").parse().unwrap()
    }

    #[test]
    fn pauses_double_and_those_of_one_burst_count_once() {
        let mut backoff = LaunchBackoff::default();
        let mut now = 100.0;
        for pause in [1.0, 2.0, 4.0, 8.0, 10.0, 10.0] {
            assert!(backoff.allows(at(now)));
            for _ in 0..3 {
                backoff.record_quota_refusal(at(now));
            }
            assert_eq!(backoff.resumes(at(now)), Some(at(now + pause)));
            assert!(!backoff.allows(at(now + pause - 0.1)));
            now += pause;
        }
        // The clock was set back.
        assert!(backoff.allows(at(1.0)));
    }

    #[test]
    fn every_launch_that_is_accepted_admits_one_more() {
        let mut backoff = LaunchBackoff::default();
        backoff.record_quota_refusal(at(100.0));
        backoff.probe(id(1));
        assert!(!backoff.allows(at(101.0)));
        assert!(backoff.accept(id(1)));
        for next in [2, 3] {
            assert!(backoff.allows(at(101.0)));
            backoff.probe(id(next));
        }
        assert!(!backoff.allows(at(101.0)));
        assert!(!backoff.accept(id(9)), "it was launched before the pause");
        assert!(backoff.forget(id(2)));
        assert!(backoff.allows(at(101.0)));
        // A request waits, or the cloud has not responded.
        backoff.end_if_unused(at(101.0), true);
        backoff.end_if_unused(at(101.0), false);
        assert!(backoff.is_active());
        assert!(backoff.accept(id(3)));
        backoff.end_if_unused(at(101.0), false);
        assert!(!backoff.is_active());
        backoff.record_quota_refusal(at(102.0));
        assert_eq!(
            backoff.resumes(at(102.0)),
            Some(at(103.0)),
            "it begins anew"
        );
    }
}
