//! Invariants of image decisions in random states.

use std::num::NonZeroUsize;
use std::time::Duration;

use nodeyard_model::{BuildId, BuildState, UploadState};
use nodeyard_plan::canary::{CanaryPolicy, Trial, TrialOutcome};
use nodeyard_plan::images::Action;
use proptest::prelude::*;

use crate::images::yard::{DAY, Yard, provider, time};

const PROVIDERS: [&str; 3] = ["one", "two", "gone"];

const POLICY: CanaryPolicy = CanaryPolicy {
    share: 10,
    successes: 3,
    failure_limit: 20,
};

fn build_state() -> impl Strategy<Value = BuildState> {
    prop::sample::select(BuildState::ALL)
}

fn upload_state() -> impl Strategy<Value = UploadState> {
    prop::sample::select(UploadState::ALL)
}

/// The trials of a build: none, running, or ended with any outcome.
fn trial() -> impl Strategy<Value = Option<Trial>> {
    let at = time(1.0);
    let rolled_back = |passed| TrialOutcome::RolledBack {
        at,
        reason: "x".to_owned(),
        passed,
    };
    let ended = prop::sample::select(vec![
        None,
        Some(TrialOutcome::Passed { at }),
        Some(rolled_back(None)),
        Some(rolled_back(Some(at))),
    ]);
    let trial = (0..3u32, 0..3u32, ended).prop_map(|(succeeded, failed, ended)| Trial {
        succeeded,
        failed,
        ended,
    });
    prop::option::of(trial)
}

/// Any builds with any uploads to two providers of the configuration and one that left it.
fn yards() -> impl Strategy<Value = Yard> {
    let upload = (0..PROVIDERS.len(), upload_state(), 0..200u32, any::<bool>());
    let build = (
        build_state(),
        0..200u32,
        prop::collection::vec(upload, 0..4),
        any::<bool>(),
        trial(),
    );
    let canary = (
        prop::option::weighted(0.7, Just(POLICY)),
        prop::option::of(0..6u128),
    );
    (
        prop::collection::vec(build, 0..6),
        1..4usize,
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        prop::option::weighted(0.8, any::<bool>()),
        any::<bool>(),
        canary,
    )
        .prop_map(
            |(builds, retention, asked, paused, drops, takes_two, building, canary)| {
                let mut yard = Yard::new();
                yard.policy().canary = canary.0;
                yard.snapshot.canary.pinned = canary.1.map(BuildId::from_u128);
                yard.pace.linger = Duration::ZERO;
                yard.policy().retention = NonZeroUsize::new(retention).unwrap();
                yard.policy().delete_after_upload = drops;
                yard.snapshot.paused = paused;
                match takes_two {
                    Some(true) => {}
                    Some(false) => {
                        yard.snapshot.providers.insert(provider("two"), None);
                    }
                    None => yard.snapshot.policy = None,
                }
                for (state, age, uploads, held, trial) in builds {
                    let id = yard.add_build(state, f64::from(age) * DAY / 50.0);
                    yard.snapshot
                        .canary
                        .trials
                        .extend(trial.map(|trial| (id, trial)));
                    if !held {
                        yard.functions().upload.remove(&id);
                        yard.functions().delete.remove(&id);
                    }
                    for (to, state, age, locked) in uploads {
                        let name = PROVIDERS[to];
                        let age = f64::from(age) * DAY / 50.0;
                        let upload = yard.add_upload(id, name, state, age);
                        let key = (upload.provider, upload.upload);
                        let record = yard.build(id).uploads.get_mut(&key).unwrap();
                        record.locked = locked && age < DAY;
                    }
                }
                if asked {
                    yard.request();
                }
                yard.snapshot.building = building;
                yard
            },
        )
}

/// No action takes away what nodes of a provider boot from.
fn keeps_what_is_used(yard: &Yard, action: &Action) {
    if yard.snapshot.policy.is_none() {
        return;
    }
    for (name, takes) in &yard.snapshot.providers {
        if takes.is_none() {
            continue;
        }
        for used in yard.in_use(name) {
            assert_ne!(*action, Action::RemoveUpload(used.clone()), "I8");
            assert_ne!(*action, Action::SettleUpload(used.clone()), "I8");
            let its_build = Action::RemoveBuild { build: used.build };
            assert_ne!(*action, its_build, "a build goes after its uploads");
        }
    }
}

proptest! {
    #[test]
    fn what_is_needed_stays_and_the_work_ends(
        mut yard in yards(),
        luck in prop::collection::vec(any::<bool>(), 60),
    ) {
        let mut luck = luck.into_iter();
        for round in 0.. {
            prop_assert!(round < 40, "the plan goes on for ever: {:?}", yard.actions());
            let plan = yard.decide();
            let builds = plan.actions.iter().filter(|action| {
                matches!(action, Action::Build { .. } | Action::ResumeBuild { .. })
            });
            prop_assert!(builds.count() <= usize::from(!yard.snapshot.building), "two builds at once");
            if plan.actions.is_empty() {
                break;
            }
            for action in &plan.actions {
                // As a steward does: the state is read again for each.
                if !yard.actions().contains(action) {
                    continue;
                }
                keeps_what_is_used(&yard, action);
                let foreign = matches!(action, Action::RemoveUpload(upload) | Action::SettleUpload(upload)
                    if upload.provider == provider("gone"));
                prop_assert!(!foreign, "{action:?}");
                // Bad luck runs out, and then failures are waited for.
                let works = luck.next().unwrap_or(true);
                yard.carry_out(action, works);
            }
            // Failures are waited for, but nothing gets old meanwhile.
            for backoff in yard.snapshot.backoffs.values_mut() {
                backoff.at = crate::images::yard::time(0.0);
            }
        }
        ends_as_it_should(&yard);
    }

    #[test]
    fn a_decision_has_a_word_on_everything(yard in yards()) {
        let explanation = yard.decide().explanation;
        prop_assert_eq!(explanation.builds.len(), yard.snapshot.builds.len());
        let uploads: usize = yard.snapshot.builds.values().map(|build| build.uploads.len()).sum();
        prop_assert_eq!(explanation.uploads.len(), uploads);
        let text = explanation.display_at(crate::images::yard::time(yard.now)).to_string();
        prop_assert!(text.lines().count() >= 2);
    }
}

/// Where the work has ended, everything is as the configuration wants it.
fn ends_as_it_should(yard: &Yard) {
    let snapshot = &yard.snapshot;
    let ready = || {
        let builds = snapshot.builds.values();
        builds.filter(|build| build.state == BuildState::Ready)
    };
    for build in snapshot.builds.values() {
        for ((to, _), upload) in &build.uploads {
            let theirs = *to == provider("gone");
            let is_left = theirs || upload.locked || upload.state == UploadState::Ready;
            assert!(is_left, "{to} {upload:?}");
        }
        let pinned = build.uploads.iter().any(|((to, _), upload)| {
            *to == provider("gone") || upload.locked || upload.state == UploadState::Ready
        });
        let is_left = pinned || build.state == BuildState::Ready || snapshot.building;
        assert!(is_left, "{build:?}");
    }
    let Some(policy) = &snapshot.policy else {
        return;
    };
    let may_build = !snapshot.building && !snapshot.paused;
    if may_build {
        let newest = ready().max_by_key(|build| build.since).unwrap();
        assert!(newest.order > 0);
        assert!(snapshot.request.is_none());
    }
    // More stay only where uploads do, by a person's wish, or as the newest.
    let bare = ready().filter(|build| build.uploads.is_empty());
    assert!(bare.count() <= policy.retention.get() + 2);
    let rolled_back = snapshot.builds.iter().filter(|(id, build)| {
        let canary = &snapshot.canary;
        let spared = canary.pinned == Some(**id) || !canary.is_rolled_back(**id);
        build.state == BuildState::Ready && build.uploads.is_empty() && !spared
    });
    assert!(rolled_back.count() <= 1);
}
