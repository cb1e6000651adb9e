//! Retention while builds are on trial, rolled back or pinned.

use std::num::NonZeroUsize;

use nodeyard_model::{BuildId, BuildState, UploadState};
use nodeyard_plan::canary::{CanaryLaunch, CanaryPolicy, Trial, TrialOutcome, Uploaded, WhyUsed};
use nodeyard_plan::images::{Action, RemovalReason, RetentionVerdict, WhyKept};
use proptest::prelude::*;

use crate::images::yard::{Yard, provider, time};

const POLICY: CanaryPolicy = CanaryPolicy {
    share: 30,
    successes: 2,
    failure_limit: 20,
};

/// An image that is not built anew while a test lasts.
fn yard(retention: usize) -> Yard {
    let mut yard = Yard::new();
    yard.policy().canary = Some(POLICY);
    yard.policy().retention = NonZeroUsize::new(retention).unwrap();
    yard
}

/// A new build, and an upload to each provider.
fn arrives(yard: &mut Yard) -> BuildId {
    yard.now += 60.0;
    let build = yard.add_build(BuildState::Ready, 0.0);
    for name in ["one", "two"] {
        yard.add_upload(build, name, UploadState::Ready, 0.0);
    }
    build
}

/// All that there are, the newest first.
fn builds(yard: &Yard) -> Vec<BuildId> {
    yard.snapshot.builds.keys().rev().copied().collect()
}

fn launch(yard: &mut Yard, build: BuildId, works: bool) {
    let builds = builds(yard);
    let uploaded = Uploaded {
        anywhere: &builds,
        here: &builds,
    };
    let failure = (!works).then_some("no ssh");
    let (launch, now) = (CanaryLaunch { build, failure }, time(yard.now));
    yard.snapshot.canary.record(launch, uploaded, &POLICY, now);
}

fn passes(yard: &mut Yard, build: BuildId) {
    for _ in 0..POLICY.successes {
        launch(yard, build, true);
    }
}

fn fails(yard: &mut Yard, build: BuildId) {
    for _ in 0..2 {
        launch(yard, build, false);
    }
    assert!(yard.snapshot.canary.is_rolled_back(build));
}

/// Does all there is to do.
fn settle(yard: &mut Yard) {
    while let Some(action) = yard.actions().first() {
        let action = action.clone();
        assert!(!matches!(action, Action::Build { .. }));
        yard.carry_out(&action, true);
    }
}

fn verdict(yard: &Yard, build: BuildId) -> RetentionVerdict {
    let reports = yard.decide().explanation.builds;
    let mut reports = reports.into_iter();
    reports
        .find(|report| report.build == build)
        .unwrap()
        .verdict
}

fn used(yard: &Yard) -> (BuildId, Option<BuildId>) {
    let launches = yard.snapshot.launches(&provider("one")).unwrap();
    (launches.build, launches.trial.map(|trial| trial.build))
}

#[test]
fn the_proven_build_outlives_those_that_fail_whatever_the_retention() {
    for retention in [1, 2] {
        let mut yard = yard(retention);
        let good = arrives(&mut yard);
        passes(&mut yard, good);
        for _ in 0..5 {
            let bad = arrives(&mut yard);
            settle(&mut yard);
            assert_eq!(used(&yard), (good, Some(bad)));
            fails(&mut yard, bad);
            settle(&mut yard);
            assert_eq!(used(&yard), (good, None));
            // The last rolled-back build is the record of the last build.
            assert_eq!(builds(&yard), [bad, good]);
            let why = WhyKept::Newest;
            assert_eq!(verdict(&yard, bad), RetentionVerdict::KeptAnyway { why });
        }
        let better = arrives(&mut yard);
        passes(&mut yard, better);
        settle(&mut yard);
        assert_eq!(used(&yard), (better, None));
        let expected = [better, good];
        assert_eq!(builds(&yard), expected[..retention]);
    }
}

#[test]
fn a_rolled_back_build_is_removed_after_the_next_build() {
    let mut yard = yard(2);
    let good = arrives(&mut yard);
    passes(&mut yard, good);
    let bad = arrives(&mut yard);
    fails(&mut yard, bad);
    arrives(&mut yard);
    let reports = yard.decide().explanation.uploads;
    let mut of_bad = reports.iter().filter(|report| report.upload.build == bad);
    let why = RemovalReason::RolledBack;
    assert!(of_bad.all(|report| report.verdict == RetentionVerdict::Removed { why }));
    assert_eq!(
        verdict(&yard, good),
        RetentionVerdict::Kept { rank: 2, of: 2 }
    );
}

#[test]
fn a_pinned_build_is_kept_over_any_retention() {
    let mut yard = yard(1);
    let pinned = arrives(&mut yard);
    yard.snapshot.canary.pinned = Some(pinned);
    for _ in 0..4 {
        let newest = arrives(&mut yard);
        settle(&mut yard);
        assert_eq!(builds(&yard), [newest, pinned]);
        assert_eq!(used(&yard), (pinned, None));
    }
    let why = WhyKept::Pinned;
    assert_eq!(verdict(&yard, pinned), RetentionVerdict::KeptAnyway { why });
}

#[test]
fn a_rolled_back_build_is_kept_where_there_is_no_other() {
    let mut yard = yard(1);
    let good = arrives(&mut yard);
    passes(&mut yard, good);
    let bad = arrives(&mut yard);
    yard.build(good)
        .uploads
        .retain(|(to, _), _| *to == provider("one"));
    yard.snapshot
        .canary
        .roll_back(bad, "an operator said so", time(yard.now));
    let newest = yard.add_build(BuildState::Ready, 0.0);
    yard.functions().upload.remove(&newest);
    settle(&mut yard);
    let two = yard.snapshot.launches(&provider("two")).unwrap();
    assert_eq!((two.build, two.why), (bad, WhyUsed::NothingElse));
    assert_eq!(used(&yard), (good, None));
    // The upload stays where it is used, and only there.
    let left = yard.build(bad).uploads.keys();
    let left: Vec<_> = left.map(|(to, _)| to.clone()).collect();
    assert_eq!(left, [provider("two")]);
}

#[test]
fn launches_trials_and_remedies_are_told() {
    let mut yard = yard(2);
    let good = arrives(&mut yard);
    passes(&mut yard, good);
    let bad = arrives(&mut yard);
    fails(&mut yard, bad);
    let tried = arrives(&mut yard);
    launch(&mut yard, tried, true);
    let text_of = |yard: &Yard| {
        let explanation = yard.decide().explanation;
        explanation.display_at(time(yard.now)).to_string()
    };
    let text = text_of(&yard);
    for part in [
        format!(
            "    launches there use {good}, the newest that passed its trial; 30 % of them try {tried}\n"
        ),
        format!("  build {tried} is on trial: 1 of 2 launches have succeeded, 0 failed\n"),
        format!(
            "  build {bad} was rolled back 1 min ago: 2 of 2 launches failed, the last one with: no ssh\n"
        ),
        "`nodeyard image unpin ubuntu` allows this one again\n".to_owned(),
    ] {
        assert!(text.contains(&part), "{part} is not in\n{text}");
    }
    let newest = arrives(&mut yard);
    let text = text_of(&yard);
    assert!(
        text.contains(&format!("build {tried} is not on trial any more")),
        "{text}"
    );
    assert!(
        text.contains(&format!("build {newest} is on trial: 0 of 2")),
        "{text}"
    );
}

#[derive(Debug, Clone)]
enum Event {
    Arrives,
    /// A launch of what is used now.
    Launch {
        dice: f64,
        works: bool,
    },
    RollBack,
    Pin {
        place: usize,
    },
    Unpin,
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => Just(Event::Arrives),
        9 => (0.0..1.0, any::<bool>()).prop_map(|(dice, works)| Event::Launch { dice, works }),
        1 => Just(Event::RollBack),
        1 => (0..4usize).prop_map(|place| Event::Pin { place }),
        1 => Just(Event::Unpin),
    ]
}

fn happens(yard: &mut Yard, event: &Event) {
    let known = builds(yard);
    let now = time(yard.now);
    match event {
        Event::Arrives => drop(arrives(yard)),
        Event::Launch { dice, works } => {
            if let Some(launches) = yard.snapshot.launches(&provider("one")) {
                launch(yard, launches.pick(*dice), *works);
            }
        }
        Event::RollBack => {
            let canary = &mut yard.snapshot.canary;
            let mut usable = known.iter().filter(|build| !canary.is_rolled_back(**build));
            if let (Some(newest), Some(_)) = (usable.next(), usable.next()) {
                canary.roll_back(*newest, "an operator said so", now);
            }
        }
        Event::Pin { place } => yard.snapshot.canary.pinned = known.get(*place).copied(),
        Event::Unpin => yard.snapshot.canary.unpin(),
    }
}

proptest! {
    #[test]
    fn a_proven_build_is_there_until_a_newer_one_has_proved_itself(
        retention in 1..4usize,
        events in prop::collection::vec(events(), 1..60),
    ) {
        let mut yard = yard(retention);
        arrives(&mut yard);
        // The newest that passed its trial and was not rolled back.
        let proven = |yard: &Yard| {
            let canary = &yard.snapshot.canary;
            let has_passed = |trial: &Trial| matches!(trial.ended, Some(TrialOutcome::Passed { .. }));
            let trials = canary.trials.iter().rev();
            trials.filter(|(_, trial)| has_passed(trial)).map(|(build, _)| *build).next()
        };
        for event in &events {
            happens(&mut yard, event);
            let before = proven(&yard);
            settle(&mut yard);
            prop_assert_eq!(proven(&yard), before);
            if let Some(build) = before {
                prop_assert!(builds(&yard).contains(&build));
            }
            // One that is pinned, one that is used while others are tried, one that was rolled back last.
            prop_assert!(builds(&yard).len() <= retention + 3, "{:?}", builds(&yard));
        }
    }
}
