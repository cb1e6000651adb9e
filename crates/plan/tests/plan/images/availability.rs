//! Whether an image comes, as launchers see it from what stewards report.

use std::time::Duration;

use nodeyard_model::{BuildState, Timestamp, UploadState};
use nodeyard_plan::images::availability::{
    ImageAvailability, ImageEvidence, ImageStage, ImageVerdict, MAX_FAILURES, PendingImage,
    availability,
};
use nodeyard_plan::images::{
    ImageOrigin, Imports, JobState, Services, StewardReport, Subject, ZuulBuildList,
};

use crate::images::yard::{Yard, formats, provider, time};

const GRACE: Duration = Duration::from_secs(15);

fn report(yard: &Yard) -> StewardReport {
    StewardReport::new(&yard.snapshot, &yard.decide().explanation)
}

fn evaluate(reports: &[&StewardReport], since: Option<Timestamp>, now: f64) -> ImageVerdict {
    let provider = provider("one");
    let evidence = ImageEvidence {
        provider: &provider,
        is_uploaded: false,
        reports: reports.to_vec(),
        unattended_since: since,
    };
    availability(&evidence, GRACE, time(now))
}

fn seen(yard: &Yard) -> ImageAvailability {
    evaluate(&[&report(yard)], None, yard.now).availability
}

#[track_caller]
fn pending(yard: &Yard) -> PendingImage {
    match seen(yard) {
        ImageAvailability::Pending(pending) => pending,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn reason(yard: &Yard) -> String {
    match seen(yard) {
        ImageAvailability::Unavailable { reason } => reason,
        other => panic!("{other:?}"),
    }
}

/// An image that is being built since a minute.
fn building() -> Yard {
    let mut yard = Yard::new();
    yard.add_build(BuildState::Building, 60.0);
    yard.snapshot.building = true;
    yard
}

#[test]
fn an_image_with_an_upload_is_ready_whatever_is_reported() {
    let provider = provider("one");
    let evidence = ImageEvidence {
        provider: &provider,
        is_uploaded: true,
        reports: Vec::new(),
        unattended_since: Some(time(0.0)),
    };
    let verdict = availability(&evidence, GRACE, time(1000.0));
    assert_eq!(verdict.availability, ImageAvailability::Ready);
    assert_eq!((verdict.unattended_since, verdict.again_at), (None, None));
}

#[test]
fn a_build_comes_with_the_time_that_earlier_ones_took() {
    let mut yard = building();
    let build = *yard.snapshot.builds.keys().next().unwrap();
    let begun = time(yard.now - 60.0);
    let stage = ImageStage::Build {
        build: Some(build),
        since: Some(begun),
    };
    assert_eq!(pending(&yard).stage, stage);
    assert_eq!(pending(&yard).expected(), None);
    for seconds in [10, 300, 200, 900, 250, 240] {
        let took = Duration::from_secs(seconds);
        yard.snapshot.durations.add_build(took);
    }
    assert_eq!(
        pending(&yard).expected(),
        Some(time(yard.now - 60.0 + 250.0))
    );
    let took = Duration::from_secs(40);
    yard.snapshot.durations.add_upload(&provider("one"), took);
    assert_eq!(
        pending(&yard).expected(),
        Some(time(yard.now - 60.0 + 290.0))
    );
}

#[test]
fn then_its_upload_comes() {
    let mut yard = Yard::new();
    let build = yard.add_build(BuildState::Ready, 5.0);
    let stage = |since| ImageStage::Upload {
        build: Some(build),
        since,
    };
    assert_eq!(pending(&yard).stage, stage(None));
    yard.add_upload(build, "one", UploadState::Uploading, 20.0);
    yard.build(build).uploading.insert(provider("one"));
    let took = Duration::from_secs(30);
    yard.snapshot.durations.add_upload(&provider("one"), took);
    assert_eq!(pending(&yard).stage, stage(Some(time(yard.now - 20.0))));
    assert_eq!(pending(&yard).expected(), Some(time(yard.now + 10.0)));
}

#[test]
fn a_failed_build_is_waited_for_until_it_has_failed_too_often() {
    let mut yard = Yard::new();
    for failures in 1..MAX_FAILURES {
        let build = yard.add_build(BuildState::Failed, 0.0);
        yard.fail(Subject::Build, build);
        match pending(&yard).stage {
            ImageStage::BuildRetry {
                failures: found_reason,
                until,
                reason,
            } => {
                assert_eq!(found_reason, failures);
                assert!(until > time(yard.now));
                assert_eq!(reason, "the cloud is down");
            }
            other => panic!("{other:?}"),
        }
    }
    let build = yard.add_build(BuildState::Failed, 0.0);
    yard.fail(Subject::Build, build);
    assert_eq!(
        reason(&yard),
        "it failed to build 3 times in a row: the cloud is down"
    );
    // A build is requested or due.
    yard.request();
    assert!(matches!(pending(&yard).stage, ImageStage::Build { .. }));
}

#[test]
fn a_failed_upload_too_unless_another_build_is_under_way() {
    let mut yard = Yard::new();
    let build = yard.add_build(BuildState::Ready, 5.0);
    let subject = Subject::Upload {
        provider: provider("one"),
    };
    yard.fail(subject.clone(), build);
    assert!(matches!(
        pending(&yard).stage,
        ImageStage::UploadRetry { failures: 1, .. }
    ));
    yard.fail(subject.clone(), build);
    yard.fail(subject, build);
    assert_eq!(
        reason(&yard),
        "it failed to upload to one 3 times in a row: the cloud is down"
    );
    yard.add_build(BuildState::Building, 0.0);
    yard.snapshot.building = true;
    assert!(matches!(pending(&yard).stage, ImageStage::Build { .. }));
}

#[test]
fn a_paused_image_does_not_come_unless_it_is_there_already() {
    let mut yard = Yard::new();
    yard.snapshot.paused = true;
    assert_eq!(
        reason(&yard),
        "it is paused; resume with `nodeyard image unpause ubuntu`"
    );
    yard.policy().pause = true;
    assert_eq!(reason(&yard), "it is paused in the configuration");
    yard.add_build(BuildState::Ready, 5.0);
    assert!(matches!(pending(&yard).stage, ImageStage::Upload { .. }));
    let one = provider("one");
    let takes = yard.snapshot.providers.get_mut(&one).unwrap();
    takes.as_mut().unwrap().pause = true;
    assert_eq!(
        reason(&yard),
        "its upload to one is paused in the configuration"
    );
}

#[test]
fn an_image_that_the_builder_does_not_know_does_not_come() {
    let mut yard = Yard::new();
    yard.snapshot.providers.insert(provider("one"), None);
    assert_eq!(
        reason(&yard),
        "the configuration of the builder has no upload of it to one"
    );
    yard.snapshot.policy = None;
    assert_eq!(
        reason(&yard),
        "the configuration of the builder does not have it"
    );
}

#[test]
fn builders_have_a_moment_to_appear() {
    let mut yard = Yard::new();
    yard.functions().build = false;
    let unattended = report(&yard);
    for (reports, reason) in [
        (&[][..], "no builder manages it"),
        (&[&unattended], "no worker answers image-build:ubuntu"),
    ] {
        let first = evaluate(reports, None, 100.0);
        assert!(
            matches!(
                &first.availability,
                ImageAvailability::Pending(PendingImage { stage: ImageStage::Worker { reason: found_reason }, .. })
                    if found_reason == reason
            ),
            "{first:?}"
        );
        assert_eq!(first.unattended_since, Some(time(100.0)));
        assert_eq!(first.again_at, Some(time(115.0)));
        let last = evaluate(reports, first.unattended_since, 115.0);
        let reason = reason.to_owned();
        assert_eq!(last.availability, ImageAvailability::Unavailable { reason });
        assert_eq!(last.unattended_since, Some(time(100.0)));
    }
    yard.snapshot.services = Services::Unknown {
        reason: "connection refused".to_owned(),
    };
    let unattended = report(&yard);
    let last = evaluate(&[&unattended], Some(time(100.0)), 115.0);
    let reason = "no job server answers: connection refused".to_owned();
    assert_eq!(last.availability, ImageAvailability::Unavailable { reason });
    // A build under way needs no worker to start it.
    let attended = report(&building());
    let found = evaluate(&[&unattended, &attended], Some(time(100.0)), 200.0);
    assert!(matches!(found.availability, ImageAvailability::Pending(_)));
    assert_eq!(found.unattended_since, None);
}

#[test]
fn the_most_hopeful_of_several_stewards_counts() {
    let mut paused = Yard::new();
    paused.snapshot.paused = true;
    let (paused, building) = (report(&paused), report(&building()));
    for reports in [[&paused, &building], [&building, &paused]] {
        let found = evaluate(&reports, None, 100.0).availability;
        assert!(matches!(found, ImageAvailability::Pending(_)), "{found:?}");
    }
}

#[test]
fn an_image_of_zuul_comes_as_long_as_zuul_may_have_one() {
    let mut yard = Yard::new();
    yard.policy().origin = ImageOrigin::Imported(Imports {
        max_age: None,
        disks: formats(&["qcow2"]),
        settings: "these".into(),
    });
    yard.functions().import = true;
    assert!(matches!(pending(&yard).stage, ImageStage::Build { .. }));
    let mut zuul_builds = ZuulBuildList {
        asked: Some(time(yard.now)),
        next: Some(time(yard.now + 60.0)),
        ..ZuulBuildList::default()
    };
    yard.snapshot.zuul_builds = Some(zuul_builds.clone());
    assert_eq!(reason(&yard), "Zuul has no build of it that can be used");
    zuul_builds.failures = 2;
    zuul_builds.error = Some("timed out".to_owned());
    yard.snapshot.zuul_builds = Some(zuul_builds.clone());
    assert!(matches!(
        pending(&yard).stage,
        ImageStage::BuildRetry { failures: 2, .. }
    ));
    zuul_builds.failures = 3;
    yard.snapshot.zuul_builds = Some(zuul_builds);
    assert_eq!(
        reason(&yard),
        "it failed to build 3 times in a row: failed to ask Zuul for builds: timed out"
    );
}

#[test]
fn a_report_survives_the_store_and_does_not_change_by_itself() {
    let mut yard = building();
    yard.snapshot
        .durations
        .add_build(Duration::from_millis(1500));
    let before = report(&yard);
    let json = serde_json::to_string(&before).unwrap();
    assert_eq!(
        serde_json::from_str::<StewardReport>(&json).unwrap(),
        before
    );
    assert!(matches!(before.build, JobState::Running { .. }));
    yard.now += 30.0;
    assert_eq!(report(&yard), before);
}
