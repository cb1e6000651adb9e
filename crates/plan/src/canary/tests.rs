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

fn ids(numbers: &[u128]) -> Vec<BuildId> {
    numbers.iter().copied().map(id).collect()
}

fn now() -> Timestamp {
    Timestamp::from_secs(1000.0).unwrap()
}

/// What launches use where all these builds are, and why.
fn used(state: &CanaryState, policy: Option<&CanaryPolicy>, here: &[u128]) -> LaunchBuilds {
    let builds = ids(here);
    let uploaded = Uploaded {
        anywhere: &builds,
        here: &builds,
    };
    state.launches(uploaded, policy).unwrap()
}

fn by(launches: &LaunchBuilds) -> (BuildId, WhyUsed, Option<BuildId>) {
    let tried = launches.trial.map(|trial| trial.build);
    (launches.build, launches.why, tried)
}

fn launch(
    state: &mut CanaryState,
    here: &[u128],
    build: u128,
    works: bool,
) -> Option<TrialOutcome> {
    let builds = ids(here);
    let uploaded = Uploaded {
        anywhere: &builds,
        here: &builds,
    };
    let launch = CanaryLaunch {
        build: id(build),
        failure: (!works).then_some("no ssh"),
    };
    state.record(launch, uploaded, &POLICY, now()).cloned()
}

fn passed() -> Trial {
    Trial {
        ended: Some(TrialOutcome::Passed { at: now() }),
        ..Trial::default()
    }
}

#[test]
fn a_new_build_gets_its_share_until_it_has_passed() {
    let mut state = CanaryState::default();
    let launches = used(&state, Some(&POLICY), &[2, 1]);
    assert_eq!(by(&launches), (id(1), WhyUsed::Oldest, Some(id(2))));
    assert_eq!(launches.pick(0.24), id(2));
    assert_eq!(launches.pick(0.25), id(1));
    let alone = used(&state, Some(&POLICY), &[2]);
    assert_eq!(by(&alone), (id(2), WhyUsed::Newest, None));
    let untried = used(&state, None, &[2, 1]);
    assert_eq!(by(&untried), (id(2), WhyUsed::Newest, None));
    for _ in 0..2 {
        assert_eq!(launch(&mut state, &[2, 1], 2, true), None);
    }
    let ended = launch(&mut state, &[2, 1], 2, true);
    assert_eq!(ended, Some(TrialOutcome::Passed { at: now() }));
    let launches = used(&state, Some(&POLICY), &[2, 1]);
    assert_eq!(by(&launches), (id(2), WhyUsed::Newest, None));
}

#[test]
fn a_build_that_fails_is_rolled_back_automatically_and_stays_so() {
    let mut state = CanaryState::default();
    assert_eq!(launch(&mut state, &[2, 1], 2, false), None);
    let ended = launch(&mut state, &[2, 1], 2, false);
    let Some(TrialOutcome::RolledBack { reason, .. }) = ended else {
        panic!("{ended:?}");
    };
    assert!(
        reason.contains("2 of 2") && reason.contains("no ssh"),
        "{reason}"
    );
    for _ in 0..9 {
        launch(&mut state, &[2, 1], 2, true);
    }
    let launches = used(&state, Some(&POLICY), &[2, 1]);
    assert_eq!(by(&launches), (id(1), WhyUsed::NotRolledBack, None));
    // It is used where there is no other, and is not rolled back there.
    let alone = used(&state, Some(&POLICY), &[2]);
    assert_eq!(by(&alone), (id(2), WhyUsed::NothingElse, None));
    let mut alone = CanaryState::default();
    for _ in 0..9 {
        assert_eq!(launch(&mut alone, &[2], 2, false), None);
    }
}

#[test]
fn the_build_in_use_is_not_judged_while_another_is_on_trial() {
    let mut state = CanaryState::default();
    for _ in 0..9 {
        assert_eq!(launch(&mut state, &[2, 1], 1, false), None);
    }
    assert_eq!(state, CanaryState::default());
    let launches = used(&state, Some(&POLICY), &[2, 1]);
    assert_eq!(by(&launches), (id(1), WhyUsed::Oldest, Some(id(2))));
}

#[test]
fn a_rolled_back_build_is_no_fallback() {
    let mut state = CanaryState::default();
    state.roll_back(id(1), "x", now());
    for _ in 0..9 {
        assert_eq!(launch(&mut state, &[2, 1], 2, false), None);
    }
    assert!(!state.is_rolled_back(id(2)));
}

#[test]
fn a_build_that_was_overtaken_on_trial_does_not_serve_for_those_that_have_passed() {
    let mut state = CanaryState::default();
    state.trials.insert(id(1), passed());
    launch(&mut state, &[2, 1], 2, true);
    let launches = used(&state, Some(&POLICY), &[3, 2, 1]);
    assert_eq!(by(&launches), (id(1), WhyUsed::Proven, Some(id(3))));
    // Where the build on trial has not come yet, the one that was overtaken is not tried in its place.
    let uploaded = Uploaded {
        anywhere: &ids(&[3, 2, 1]),
        here: &ids(&[2, 1]),
    };
    let launches = state.launches(uploaded, Some(&POLICY)).unwrap();
    assert_eq!(by(&launches), (id(1), WhyUsed::Proven, None));
}

#[test]
fn if_all_were_rolled_back_the_newest_that_had_passed_its_trial_serves() {
    let mut state = CanaryState::default();
    state.trials.insert(id(2), passed());
    for build in [4, 3, 2, 1] {
        state.roll_back(id(build), "x", now());
    }
    let launches = used(&state, Some(&POLICY), &[4, 3, 2, 1]);
    assert_eq!(by(&launches), (id(2), WhyUsed::NothingElse, None));
    let launches = used(&state, None, &[4, 3, 1]);
    assert_eq!(by(&launches), (id(1), WhyUsed::NothingElse, None));
    // Unpinned, it has passed its trial as before.
    state.unpin();
    let launches = used(&state, Some(&POLICY), &[4, 3, 2, 1]);
    assert_eq!(by(&launches), (id(2), WhyUsed::Proven, Some(id(4))));
}

#[test]
fn a_person_decides() {
    let mut state = CanaryState {
        pinned: Some(id(1)),
        ..CanaryState::default()
    };
    let launches = used(&state, Some(&POLICY), &[3, 2, 1]);
    assert_eq!(by(&launches), (id(1), WhyUsed::Pinned, None));
    let elsewhere = used(&state, None, &[3, 2]);
    assert_eq!(elsewhere.missing, Some(id(1)));
    assert_eq!(
        elsewhere.to_string(),
        format!(
            "{}, the newest; {}, which the image is pinned to, has no upload there",
            id(3),
            id(1)
        )
    );
    state.roll_back(id(3), "an operator said so", now());
    assert_eq!(used(&state, None, &[3, 2]).build, id(2));
    state.unpin();
    assert_eq!(state, CanaryState::default());
}

#[test]
fn records_of_before_are_read() {
    let text = r#"{"pinned":null,"trials":{"00000000000000000000000000000001":
        {"succeeded":1,"failed":2,"ended":{"taken-back":{"at":1000.0,"reason":"x"}}}}}"#;
    let state: CanaryState = serde_json::from_str(text).unwrap();
    assert!(state.is_rolled_back(id(1)));
}

fn trials() -> impl Strategy<Value = Option<Trial>> {
    let ended = prop::option::of((any::<bool>(), any::<bool>()).prop_map(|(back, before)| {
        let at = now();
        if back {
            TrialOutcome::RolledBack {
                at,
                reason: "x".to_owned(),
                passed: before.then_some(at),
            }
        } else {
            TrialOutcome::Passed { at }
        }
    }));
    let trial = (0..5u32, 0..5u32, ended).prop_map(|(succeeded, failed, ended)| Trial {
        succeeded,
        failed,
        ended,
    });
    prop::option::of(trial)
}

/// Builds of which some are here, newest first, with trials in any state.
fn worlds() -> impl Strategy<Value = (CanaryState, Vec<BuildId>, Vec<BuildId>)> {
    let builds = prop::collection::vec((trials(), any::<bool>()), 1..6);
    (builds, prop::option::of(0u128..8)).prop_map(|(builds, pinned)| {
        let mut state = CanaryState {
            pinned: pinned.map(id),
            ..CanaryState::default()
        };
        let (mut anywhere, mut here) = (Vec::new(), Vec::new());
        for ((trial, is_here), number) in builds.into_iter().zip(0..) {
            anywhere.insert(0, id(number));
            if is_here {
                here.insert(0, id(number));
            }
            if let Some(trial) = trial {
                state.trials.insert(id(number), trial);
            }
        }
        (state, anywhere, here)
    })
}

proptest! {
    #[test]
    fn an_image_with_an_upload_never_disappears_and_uses_the_best_there_is(
        (state, anywhere, here) in worlds(), dice in 0.0..1.0, tried in any::<bool>(),
    ) {
        let uploaded = Uploaded { anywhere: &anywhere, here: &here };
        let policy = tried.then_some(&POLICY);
        let Some(launches) = state.launches(uploaded, policy) else {
            prop_assert!(here.is_empty());
            return Ok(());
        };
        let build = launches.pick(dice);
        prop_assert!(here.contains(&build));
        let is_pinned = state.pinned == Some(build);
        let others = here.iter().filter(|other| !state.is_rolled_back(**other));
        prop_assert!(is_pinned || !state.is_rolled_back(build) || others.count() == 0);
        // A build that has not passed its trial exceeds its share only where none has, or without a trial.
        let usable = |build: &&BuildId| !state.is_rolled_back(**build) || launches.why == WhyUsed::NothingElse;
        let proven = here.iter().filter(usable).any(|build| state.has_passed(*build));
        let trusted = is_pinned || !proven || state.has_passed(launches.build);
        prop_assert!(policy.is_none() || trusted);
        if let Some(trial) = launches.trial {
            prop_assert_eq!(Some(trial.build), state.on_trial(&anywhere));
        }
    }

    #[test]
    fn at_most_one_build_is_judged_and_never_the_last_one_there(
        (before, anywhere, here) in worlds(),
        launches in prop::collection::vec((0..6usize, any::<bool>()), 1..30),
    ) {
        let uploaded = Uploaded { anywhere: &anywhere, here: &here };
        let mut state = before;
        for (place, works) in launches {
            let Some(build) = here.get(place).copied() else { continue };
            let (before, on_trial) = (state.clone(), state.on_trial(&anywhere));
            let failure = (!works).then_some("x");
            state.record(CanaryLaunch { build, failure }, uploaded, &POLICY, now());
            for build in &anywhere {
                let changed = before.trials.get(build) != state.trials.get(build);
                prop_assert!(!changed || on_trial == Some(*build));
            }
            let usable = |state: &CanaryState| here.iter().any(|build| !state.is_rolled_back(*build));
            prop_assert!(!usable(&before) || usable(&state));
        }
    }
}
