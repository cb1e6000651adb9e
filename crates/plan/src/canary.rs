//! Which upload of an image a launch uses: the newest, unless it is still on trial, was taken back, or somebody says
//! otherwise.
//!
//! On trial, a new build serves a share of the launches until enough of them have succeeded; the rest goes on with the
//! build before it. If too many fail, it is taken back by itself. Both is opt-in. A person can pin an image to a
//! build, or take the newest one back, with or without a trial.
//!
//! A build that was taken back is used only where there is nothing else, so that an image never disappears.

use std::collections::BTreeMap;

use nodeyard_model::{BuildId, Timestamp};
use serde::{Deserialize, Serialize};

/// One failure may be anything.
const FEWEST_FAILURES: u32 = 2;

/// How builds of an image are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CanaryPolicy {
    /// Launches in a hundred that use the build on trial.
    pub share: u32,
    /// Launches that have to succeed.
    pub successes: u32,
    /// Failures in a hundred launches above which it is taken back.
    pub failure_limit: u32,
}

/// What is known of an image's builds, and kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct CanaryState {
    /// The build that a person wants to be used.
    pub pinned: Option<BuildId>,
    pub trials: BTreeMap<BuildId, Trial>,
}

/// How a build does.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Trial {
    pub succeeded: u32,
    pub failed: u32,
    pub ended: Option<Ended>,
}

/// How a trial has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    Passed { at: Timestamp },
    TakenBack { at: Timestamp, reason: String },
}

impl CanaryState {
    fn is_taken_back(&self, build: BuildId) -> bool {
        let ended = self
            .trials
            .get(&build)
            .and_then(|trial| trial.ended.as_ref());
        matches!(ended, Some(Ended::TakenBack { .. }))
    }

    fn has_passed(&self, build: BuildId) -> bool {
        let ended = self
            .trials
            .get(&build)
            .and_then(|trial| trial.ended.as_ref());
        matches!(ended, Some(Ended::Passed { .. }))
    }

    /// A launch from a build has ended. Returns how its trial has ended, if that is now.
    ///
    /// `others` are the other builds that could be used: without one there is nothing to go back to.
    pub fn record(
        &mut self,
        build: BuildId,
        failure: Option<&str>,
        others: usize,
        policy: &CanaryPolicy,
        now: Timestamp,
    ) -> Option<&Ended> {
        let trial = self.trials.entry(build).or_default();
        if trial.ended.is_some() {
            return None;
        }
        match failure {
            None => trial.succeeded = trial.succeeded.saturating_add(1),
            Some(_) => trial.failed = trial.failed.saturating_add(1),
        }
        let Trial {
            succeeded, failed, ..
        } = *trial;
        let (failed_wide, all) = (u64::from(failed), u64::from(failed) + u64::from(succeeded));
        let too_many = failed_wide * 100 > u64::from(policy.failure_limit) * all;
        if failed >= FEWEST_FAILURES && too_many && others > 0 {
            trial.ended = Some(Ended::TakenBack {
                at: now,
                reason: format!(
                    "{failed} of {all} launches failed, the last one with: {}",
                    failure.unwrap_or("another reason")
                ),
            });
        } else if succeeded >= policy.successes {
            trial.ended = Some(Ended::Passed { at: now });
        }
        trial.ended.as_ref()
    }

    /// A person takes a build back.
    pub fn take_back(&mut self, build: BuildId, reason: &str, now: Timestamp) {
        self.trials.entry(build).or_default().ended = Some(Ended::TakenBack {
            at: now,
            reason: reason.to_owned(),
        });
    }

    /// Forgets what a person has said, and that builds were taken back.
    pub fn unpin(&mut self) {
        self.pinned = None;
        let taken_back = |trial: &Trial| matches!(trial.ended, Some(Ended::TakenBack { .. }));
        self.trials.retain(|_, trial| !taken_back(trial));
    }

    /// Forgets a build that is gone.
    pub fn forget(&mut self, build: BuildId) {
        self.trials.remove(&build);
        self.pinned = self.pinned.filter(|pinned| *pinned != build);
    }
}

/// The place of the build to use among `newest_first`, which are the builds that have an upload. `dice` is at least 0
/// and less than 1.
pub fn choose(
    newest_first: &[BuildId],
    policy: Option<&CanaryPolicy>,
    state: &CanaryState,
    dice: f64,
) -> Option<usize> {
    if let Some(pinned) = state.pinned
        && let Some(place) = newest_first.iter().position(|build| *build == pinned)
    {
        return Some(place);
    }
    let mut usable = newest_first
        .iter()
        .enumerate()
        .filter(|(_, build)| !state.is_taken_back(**build));
    let Some((newest, build)) = usable.next() else {
        return (!newest_first.is_empty()).then_some(0);
    };
    let Some(policy) = policy.filter(|_| !state.has_passed(*build)) else {
        return Some(newest);
    };
    // A build that was never tried is as good as one that has passed when it is the older one.
    let before = usable.find(|(_, other)| *other != build);
    match before {
        Some((before, _)) if dice * 100.0 >= f64::from(policy.share) => Some(before),
        _ => Some(newest),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICY: CanaryPolicy = CanaryPolicy {
        share: 25,
        successes: 3,
        failure_limit: 20,
    };

    fn id(number: u128) -> BuildId {
        BuildId::from_u128(number)
    }

    fn now() -> Timestamp {
        Timestamp::from_secs(1000.0).unwrap()
    }

    fn choose_at(state: &CanaryState, dice: f64) -> Option<usize> {
        choose(&[id(3), id(2), id(1)], Some(&POLICY), state, dice)
    }

    #[test]
    fn a_new_build_gets_its_share_until_it_has_passed() {
        let mut state = CanaryState::default();
        assert_eq!(choose_at(&state, 0.24), Some(0));
        assert_eq!(choose_at(&state, 0.25), Some(1));
        assert_eq!(choose(&[id(3)], Some(&POLICY), &state, 0.99), Some(0));
        assert_eq!(choose(&[id(3), id(2)], None, &state, 0.99), Some(0));
        assert_eq!(choose(&[], Some(&POLICY), &state, 0.0), None);
        for _ in 0..2 {
            assert_eq!(state.record(id(3), None, 1, &POLICY, now()), None);
        }
        let ended = state.record(id(3), None, 1, &POLICY, now());
        assert!(matches!(ended, Some(Ended::Passed { .. })));
        assert_eq!(choose_at(&state, 0.99), Some(0));
    }

    #[test]
    fn a_build_that_fails_is_taken_back_by_itself_and_stays_so() {
        let mut state = CanaryState::default();
        assert_eq!(state.record(id(3), Some("no ssh"), 1, &POLICY, now()), None);
        let ended = state
            .record(id(3), Some("no ssh"), 1, &POLICY, now())
            .cloned();
        let Some(Ended::TakenBack { reason, .. }) = ended else {
            panic!("{ended:?}");
        };
        assert!(
            reason.contains("2 of 2") && reason.contains("no ssh"),
            "{reason}"
        );
        assert_eq!(choose_at(&state, 0.0), Some(1));
        for _ in 0..9 {
            state.record(id(3), None, 1, &POLICY, now());
        }
        assert_eq!(choose_at(&state, 0.0), Some(1));
        // It is still better than nothing, and where there is nothing else it is not even taken back.
        assert_eq!(choose(&[id(3)], Some(&POLICY), &state, 0.5), Some(0));
        let mut alone = CanaryState::default();
        for _ in 0..9 {
            assert_eq!(alone.record(id(3), Some("x"), 0, &POLICY, now()), None);
        }
    }

    #[test]
    fn a_person_decides() {
        let mut state = CanaryState {
            pinned: Some(id(1)),
            ..CanaryState::default()
        };
        assert_eq!(choose_at(&state, 0.0), Some(2));
        state.pinned = Some(id(9));
        assert_eq!(choose_at(&state, 0.0), Some(0));
        state.take_back(id(3), "somebody said so", now());
        assert_eq!(choose(&[id(3), id(2)], None, &state, 0.0), Some(1));
        state.unpin();
        assert_eq!(choose(&[id(3), id(2)], None, &state, 0.0), Some(0));
    }

    proptest! {
        #[test]
        fn an_image_with_an_upload_never_disappears(
            builds in 1u128..5, taken_back in proptest::collection::vec(0u128..5, 0..5),
            pinned in proptest::option::of(0u128..7), dice in 0.0..1.0, tried in any::<bool>(),
        ) {
            let newest_first: Vec<BuildId> = (0..builds).rev().map(id).collect();
            let mut state = CanaryState { pinned: pinned.map(id), ..CanaryState::default() };
            for build in taken_back {
                state.take_back(id(build), "x", now());
            }
            let policy = tried.then_some(&POLICY);
            let place = choose(&newest_first, policy, &state, dice);
            prop_assert!(place.is_some_and(|place| place < newest_first.len()));
        }
    }
}
