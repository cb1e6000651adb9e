//! Each rule by itself.

use std::num::NonZeroUsize;

use nodeyard_model::{BuildState, UploadState};
use nodeyard_plan::images::{
    Action, BuildVerdict, RemovalReason, RetentionVerdict, Services, Subject, UploadVerdict,
    WaitReason, WhyBuild, WhyPaused,
};

use crate::images::yard::{DAY, Yard, formats, provider, takes, time};

fn build_action() -> Action {
    Action::Build {
        formats: formats(&["qcow2"]),
    }
}

/// A yard in which everything is as it should be.
fn settled() -> Yard {
    let mut yard = Yard::new();
    let build = yard.add_build(BuildState::Ready, 100.0);
    yard.add_upload(build, "one", UploadState::Ready, 50.0);
    yard.add_upload(build, "two", UploadState::Ready, 50.0);
    assert_eq!(yard.actions(), []);
    yard
}

fn verdict_of_upload(yard: &Yard, index: usize) -> RetentionVerdict {
    yard.decide().explanation.uploads[index].verdict.clone()
}

#[test]
fn an_image_without_a_build_is_built() {
    let yard = Yard::new();
    let plan = yard.decide();
    assert_eq!(plan.actions, [build_action()]);
    assert_eq!(
        plan.explanation.build,
        BuildVerdict::Begins {
            why: WhyBuild::None
        }
    );
}

#[test]
fn an_old_build_is_replaced_and_the_plan_knows_when() {
    let mut yard = settled();
    let due = yard.now - 100.0 + DAY;
    assert_eq!(yard.decide().explanation.again_at, Some(time(due)));
    yard.now = due - 1.0;
    assert_eq!(yard.actions(), []);
    yard.now = due;
    assert_eq!(yard.actions(), [build_action()]);
}

#[test]
fn a_missing_format_means_a_build_unless_it_was_asked_for_and_not_made() {
    let mut yard = settled();
    yard.policy().formats = formats(&["qcow2", "raw"]);
    let plan = yard.decide();
    let asked = formats(&["qcow2", "raw"]);
    assert_eq!(
        plan.actions,
        [Action::Build {
            formats: asked.clone()
        }]
    );
    let build = *yard.snapshot.builds.keys().next().unwrap();
    yard.build(build).asked = asked;
    assert_eq!(yard.actions(), []);
}

#[test]
fn one_build_serves_the_schedule_and_the_request() {
    let mut yard = settled();
    yard.request();
    assert_eq!(yard.actions(), [build_action()]);
    yard.carry_out(&build_action(), true);
    assert!(matches!(yard.actions()[0], Action::ClearRequest { .. }));
    let again = yard.actions();
    assert!(!again.contains(&build_action()), "{again:?}");
}

#[test]
fn a_request_during_a_build_asks_for_the_next_one() {
    let mut yard = Yard::new();
    let build = yard.add_build(BuildState::Building, 10.0);
    yard.snapshot.building = true;
    yard.request();
    assert_eq!(yard.actions(), []);
    yard.snapshot.building = false;
    yard.carry_out(&Action::ResumeBuild { build }, true);
    assert!(yard.actions().contains(&build_action()));
}

#[test]
fn a_pause_stops_builds_and_nothing_else() {
    for by in [WhyPaused::Configuration, WhyPaused::Person] {
        let mut yard = Yard::new();
        let build = yard.add_build(BuildState::Ready, 2.0 * DAY);
        yard.request();
        match by {
            WhyPaused::Configuration => yard.policy().pause = true,
            WhyPaused::Person => yard.snapshot.paused = true,
        }
        let plan = yard.decide();
        assert_eq!(plan.explanation.build, BuildVerdict::Paused { by });
        let uploads = ["one", "two"].map(|name| Action::Upload {
            build,
            provider: provider(name),
        });
        assert_eq!(plan.actions, uploads);
    }
}

#[test]
fn an_image_without_providers_is_not_built() {
    let mut yard = Yard::new();
    yard.policy().formats.clear();
    let plan = yard.decide();
    assert_eq!(plan.actions, []);
    assert_eq!(plan.explanation.build, BuildVerdict::NoFormats);
}

#[test]
fn a_failed_build_is_tried_again_later_and_later_or_when_asked() {
    let mut yard = Yard::new();
    for wait in [60.0, 120.0, 240.0] {
        yard.carry_out(&build_action(), false);
        let until = yard.now + wait;
        yard.now = until - 1.0;
        let plan = yard.decide();
        assert!(!plan.actions.contains(&build_action()));
        let BuildVerdict::Waits {
            wait: WaitReason::BackOff { until: text_of, .. },
            ..
        } = plan.explanation.build
        else {
            panic!("{:?}", plan.explanation.build);
        };
        assert_eq!(text_of, time(until));
        yard.now = until;
        assert!(yard.actions().contains(&build_action()));
    }
    for _ in 0..40 {
        yard.carry_out(&build_action(), false);
    }
    yard.now += 3600.0;
    assert!(
        yard.actions().contains(&build_action()),
        "the wait has a limit"
    );
    yard.carry_out(&build_action(), false);
    assert!(!yard.actions().contains(&build_action()));
    yard.request();
    assert!(yard.actions().contains(&build_action()), "asking helps");
    yard.carry_out(&build_action(), false);
    assert!(!yard.actions().contains(&build_action()), "but only once");
}

#[test]
fn without_a_worker_or_a_job_server_builds_wait_and_say_so() {
    let mut yard = Yard::new();
    yard.functions().build = false;
    let why = WhyBuild::None;
    let function = "image-build:ubuntu".to_owned();
    let wait = WaitReason::Worker { function };
    let expected = BuildVerdict::Waits {
        why: why.clone(),
        wait,
    };
    assert_eq!(yard.decide().explanation.build, expected);
    let reason = "connection refused".to_owned();
    yard.snapshot.services = Services::Unknown {
        reason: reason.clone(),
    };
    let plan = yard.decide();
    assert_eq!(plan.actions, []);
    let wait = WaitReason::JobServer { reason };
    assert_eq!(plan.explanation.build, BuildVerdict::Waits { why, wait });
}

#[test]
fn a_build_without_a_steward_is_settled_before_another_begins() {
    let mut yard = Yard::new();
    let build = yard.add_build(BuildState::Building, 10.0);
    assert_eq!(yard.actions(), [Action::ResumeBuild { build }]);
    yard.snapshot.policy = None;
    assert_eq!(yard.actions(), [Action::ResumeBuild { build }]);
    yard.snapshot.building = true;
    assert_eq!(yard.actions(), []);
}

#[test]
fn only_the_newest_build_is_uploaded() {
    let mut yard = Yard::new();
    let old = yard.add_build(BuildState::Ready, 200.0);
    let new = yard.add_build(BuildState::Ready, 100.0);
    yard.add_upload(old, "one", UploadState::Ready, 150.0);
    let uploads = ["one", "two"].map(|name| Action::Upload {
        build: new,
        provider: provider(name),
    });
    assert_eq!(yard.actions(), uploads);
}

#[test]
fn an_upload_waits_for_its_pause_its_holder_and_its_failures() {
    let mut yard = settled();
    let build = *yard.snapshot.builds.keys().next().unwrap();
    yard.build(build).uploads.clear();
    yard.snapshot.providers.insert(
        provider("two"),
        takes(None).map(|mut takes| {
            takes.pause = true;
            takes
        }),
    );
    let upload = Action::Upload {
        build,
        provider: provider("one"),
    };
    assert_eq!(yard.actions(), std::slice::from_ref(&upload));
    yard.carry_out(&upload, false);
    yard.now += 59.0;
    assert!(!yard.actions().contains(&upload));
    yard.now += 1.0;
    assert!(yard.actions().contains(&upload));
    yard.functions().upload.clear();
    let plan = yard.decide();
    assert!(!plan.actions.contains(&upload));
    let function = format!("image-upload:{build}");
    let text_of = plan.explanation.display_at(time(yard.now)).to_string();
    assert!(
        text_of.contains(&format!(
            "no worker answers {function}; start the builder that has its files"
        )),
        "{text_of}"
    );
    assert_eq!(
        plan.explanation.providers[0].verdict,
        UploadVerdict::Waits {
            build,
            wait: WaitReason::Worker { function }
        }
    );
    assert_eq!(plan.explanation.providers[1].verdict, UploadVerdict::Paused);
}

#[test]
fn a_new_build_is_uploaded_at_once_although_the_last_one_failed() {
    let mut yard = settled();
    let build = *yard.snapshot.builds.keys().next().unwrap();
    let subject = Subject::Upload {
        provider: provider("one"),
    };
    yard.fail(subject, build);
    let next = yard.add_build(BuildState::Ready, 0.0);
    let upload = Action::Upload {
        build: next,
        provider: provider("one"),
    };
    assert!(yard.actions().contains(&upload));
}

#[test]
fn an_upload_without_a_steward_is_settled_before_another_begins() {
    let mut yard = settled();
    let build = *yard.snapshot.builds.keys().next().unwrap();
    yard.build(build).uploads.clear();
    yard.add_upload(build, "two", UploadState::Ready, 1.0);
    let lost = yard.add_upload(build, "one", UploadState::Uploading, 1.0);
    assert_eq!(yard.actions(), [Action::SettleUpload(lost.clone())]);
    yard.build(build).uploading.insert(provider("one"));
    assert_eq!(yard.actions(), []);
    let report = &yard.decide().explanation.providers[0];
    assert_eq!(report.verdict, UploadVerdict::UnderWay { build });
}

#[test]
fn the_newest_builds_are_kept_and_the_rest_goes_upload_first() {
    let mut yard = Yard::new();
    let ages = [300.0, 200.0, 100.0];
    let builds = ages.map(|age| yard.add_build(BuildState::Ready, age));
    let uploads = builds.map(|build| {
        ["one", "two"].map(|name| yard.add_upload(build, name, UploadState::Ready, 10.0))
    });
    // By their numbers, which tell the newer of two that became ready at once.
    let oldest = uploads[0].clone().map(Action::RemoveUpload);
    assert_eq!(yard.actions(), oldest);
    for action in &oldest {
        yard.carry_out(action, true);
    }
    let remove = Action::RemoveBuild { build: builds[0] };
    assert_eq!(yard.actions(), std::slice::from_ref(&remove));
    yard.carry_out(&remove, true);
    assert_eq!(yard.actions(), []);
    yard.policy().retention = NonZeroUsize::MIN;
    assert_eq!(yard.actions(), uploads[1].clone().map(Action::RemoveUpload));
}

#[test]
fn old_uploads_stay_while_new_ones_fail() {
    let mut yard = Yard::new();
    let old = yard.add_build(BuildState::Ready, 300.0);
    let used = yard.add_upload(old, "one", UploadState::Ready, 299.0);
    for age in [200.0, 100.0, 50.0] {
        let build = yard.add_build(BuildState::Ready, age);
        yard.add_upload(build, "one", UploadState::Failed, 10.0);
    }
    let plan = yard.decide();
    assert!(!plan.actions.contains(&Action::RemoveUpload(used.clone())));
    let report = plan
        .explanation
        .builds
        .iter()
        .find(|report| report.build == old);
    assert_eq!(
        report.unwrap().verdict,
        RetentionVerdict::Pinned { by: vec![used] }
    );
}

#[test]
fn failed_builds_and_uploads_are_shown_for_a_while_and_then_removed() {
    let mut yard = settled();
    let failed = yard.add_build(BuildState::Failed, 30.0);
    let plan = yard.decide();
    assert_eq!(plan.actions, []);
    let until = time(yard.now + 30.0);
    assert_eq!(
        plan.explanation.builds[0].verdict,
        RetentionVerdict::Lingers { until }
    );
    assert_eq!(plan.explanation.again_at, Some(until));
    yard.now += 30.0;
    assert_eq!(yard.actions(), [Action::RemoveBuild { build: failed }]);
}

#[test]
fn a_build_that_is_to_be_deleted_goes_with_its_uploads() {
    let mut yard = settled();
    let build = *yard.snapshot.builds.keys().next().unwrap();
    yard.build(build).state = BuildState::Deleting;
    let uploads: Vec<Action> = yard.actions();
    let removed = uploads
        .iter()
        .filter(|action| matches!(action, Action::RemoveUpload(_)));
    assert_eq!(removed.count(), 2);
    assert!(uploads.contains(&build_action()), "and another one is made");
}

#[test]
fn files_are_deleted_before_a_slow_cloud_has_deleted_its_image() {
    let mut yard = settled();
    let old = yard.add_build(BuildState::Failed, 100.0);
    yard.functions().delete.insert(old);
    let slow = yard.add_upload(old, "one", UploadState::Deleting, 10.0);
    yard.fail(Subject::RemoveUpload(slow), old);
    let remove = Action::RemoveBuild { build: old };
    assert_eq!(yard.actions(), std::slice::from_ref(&remove));
    yard.carry_out(&remove, true);
    assert_eq!(yard.actions(), []);
    let verdicts = yard.decide().explanation.builds;
    let verdict = &verdicts
        .iter()
        .find(|report| report.build == old)
        .unwrap()
        .verdict;
    assert_eq!(
        *verdict,
        RetentionVerdict::UploadsFirst {
            why: RemovalReason::Deleting
        }
    );
}

#[test]
fn an_image_that_left_the_configuration_goes_everywhere() {
    let mut yard = settled();
    yard.snapshot.policy = None;
    yard.snapshot
        .providers
        .values_mut()
        .for_each(|takes| *takes = None);
    for round in 0..2 {
        let actions = yard.actions();
        assert_eq!(actions.len(), 2 - round);
        for action in &actions {
            yard.carry_out(action, true);
        }
    }
    assert!(yard.snapshot.builds.is_empty());
    assert_eq!(yard.actions(), []);
}

#[test]
fn a_provider_that_left_the_configuration_is_left_alone_and_pins_the_build() {
    let mut yard = settled();
    yard.snapshot.policy = None;
    yard.snapshot.providers.remove(&provider("two"));
    let actions = yard.actions();
    assert_eq!(actions.len(), 1);
    yard.carry_out(&actions[0], true);
    assert_eq!(yard.actions(), []);
    let explanation = yard.decide().explanation;
    assert_eq!(explanation.uploads[0].verdict, RetentionVerdict::NotOurs);
    assert!(matches!(
        explanation.builds[0].verdict,
        RetentionVerdict::Pinned { .. }
    ));
    let text = explanation.display_at(time(yard.now)).to_string();
    assert!(text.contains("nodepool erase"), "{text}");
}

#[test]
fn a_provider_that_no_longer_takes_the_image_loses_it() {
    let mut yard = settled();
    yard.snapshot.providers.insert(provider("two"), None);
    let why = RemovalReason::NotTaken;
    assert_eq!(
        verdict_of_upload(&yard, 1),
        RetentionVerdict::Removed { why }
    );
    assert_eq!(yard.actions().len(), 1);
}

#[test]
fn a_deletion_without_a_worker_waits() {
    let mut yard = settled();
    yard.snapshot.policy = None;
    yard.functions().upload_delete.clear();
    assert_eq!(yard.actions(), []);
    let function = "upload-delete:one".to_owned();
    let why = RemovalReason::ImageGone;
    let wait = WaitReason::Worker { function };
    assert_eq!(
        verdict_of_upload(&yard, 0),
        RetentionVerdict::Waits { why, wait }
    );
}

#[test]
fn what_is_locked_is_not_touched() {
    let mut yard = settled();
    yard.snapshot.policy = None;
    let build = *yard.snapshot.builds.keys().next().unwrap();
    let uploads = &mut yard.build(build).uploads;
    uploads.values_mut().for_each(|upload| upload.locked = true);
    assert_eq!(yard.actions(), []);
    yard.build(build).uploads.clear();
    yard.build(build).locked = true;
    assert_eq!(yard.actions(), []);
}

#[test]
fn records_that_cannot_be_read_pin_the_build() {
    let mut yard = settled();
    let failed = yard.add_build(BuildState::Failed, 100.0);
    yard.build(failed).unreadable = 1;
    assert_eq!(yard.actions(), []);
}

#[test]
fn files_go_after_the_upload_by_format() {
    let mut yard = settled();
    let build = *yard.snapshot.builds.keys().next().unwrap();
    yard.policy().delete_after_upload = true;
    yard.policy().keep_formats = formats(&["vhd"]);
    yard.build(build).formats = ["qcow2", "raw", "vhd"].into_iter().collect();
    let drop = |names: &[&str]| Action::DropFiles {
        build,
        formats: formats(names),
    };
    assert_eq!(yard.actions(), [drop(&["qcow2", "raw"])]);
    // What was converted for an upload goes, too.
    let upload = yard.build(build).uploads.values_mut().next();
    upload.unwrap().format = Some("vmdk".into());
    assert_eq!(yard.actions(), [drop(&["qcow2", "raw", "vmdk"])]);
    yard.carry_out(&drop(&["qcow2", "raw", "vmdk"]), true);
    assert_eq!(yard.actions(), []);

    // A provider that has no upload yet keeps the file of its format.
    yard.build(build).dropped = formats(&["vmdk"]);
    yard.snapshot.providers.insert(
        provider("three"),
        takes(Some("raw")).map(|mut takes| {
            takes.pause = true;
            takes
        }),
    );
    assert_eq!(yard.actions(), [drop(&["qcow2"])]);
    // One whose format has to be converted, or is not known, keeps them all.
    for format in [Some("vmdk"), None] {
        let waits = takes(format).map(|mut takes| {
            takes.pause = true;
            takes
        });
        yard.snapshot.providers.insert(provider("three"), waits);
        assert_eq!(yard.actions(), []);
    }
}

#[test]
fn the_explanation_is_readable_and_travels_as_json() {
    let mut yard = Yard::new();
    let build = yard.add_build(BuildState::Ready, 2.0 * DAY + 3600.0);
    yard.add_upload(build, "one", UploadState::Ready, 2.0 * DAY);
    yard.fail(Subject::Build, build);
    yard.fail(
        Subject::Upload {
            provider: provider("two"),
        },
        build,
    );
    let explanation = yard.decide().explanation;
    let text = explanation.display_at(time(yard.now)).to_string();
    assert_eq!(
        text,
        "\
image ubuntu
  next build: needed, since 00000000000000000000000000000001 is 2 d 1 h old and the limit is 1 d, but it failed 1 \
time in a row and is tried again in 1 min: the cloud is down
  provider one: has the newest build, 00000000000000000000000000000001, for 2 d
    launches there use 00000000000000000000000000000001, the newest
  provider two: 00000000000000000000000000000001 is to be uploaded, but it failed 1 time in a row and is tried \
again in 1 min: the cloud is down
  build 00000000000000000000000000000001, ready for 2 d 1 h: kept as number 1 of the 2 newest
  upload 0000000001 of 00000000000000000000000000000001 to one, ready for 2 d: kept as number 1 of the 2 newest
  next scheduled change in 1 min
"
    );
    let json = serde_json::to_string(&explanation).unwrap();
    let back: nodeyard_plan::images::ImageExplanation = serde_json::from_str(&json).unwrap();
    assert_eq!(back, explanation);
}
