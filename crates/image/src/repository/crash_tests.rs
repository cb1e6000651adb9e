//! Repository changes with the process killed, or the disk full, at each step.

use std::cell::Cell;
use std::fs;
use std::path::Path;

use super::*;
use crate::files::faults;
use crate::manifest::{ImageFailure, UploadOutcome};

fn format(text: &str) -> Format {
    text.parse().unwrap()
}

fn id() -> ImageId {
    // A Python id, so that a file without manifest would count as Python's.
    "0123456789abcdef0123456789abcdef".parse().unwrap()
}

fn try_open(dir: &Path) -> Result<Repository, OpenError> {
    Repository::open(Options {
        dir: dir.to_owned(),
        builder: "host".into(),
        limits: DiskLimits {
            keep_free: 0,
            max_used: None,
            first_build: 1,
        },
    })
}

fn open(dir: &Path) -> Repository {
    try_open(dir).unwrap()
}

fn create_draft(repository: &Repository) -> Result<Draft, Error> {
    repository.create_draft(DraftRequest {
        image: "debian".parse().unwrap(),
        id: id(),
        managed: Some("system".into()),
        need: None,
    })
}

/// Writes files like a build program.
fn write_files(draft: &Draft) {
    fs::write(draft.path(&format("raw")), "raw bytes").unwrap();
    fs::write(draft.path(&format("qcow2")), "qcow2 bytes").unwrap();
    fs::write(draft.output().with_extension("vhd-intermediate"), "half").unwrap();
}

fn build(repository: &Repository) {
    let Ok(draft) = create_draft(repository) else {
        return;
    };
    write_files(&draft);
    let _may_fail = draft.commit(&[format("raw"), format("qcow2")]);
}

fn names(dir: &Path) -> Vec<String> {
    files::list(dir)
        .unwrap()
        .into_iter()
        .map(|(name, _)| name)
        .collect()
}

/// Checks the invariants of a repository after a restart.
fn check(dir: &Path) -> Option<Arc<Manifest>> {
    let repository = open(dir);
    for own in ["drafts", "deleting", "scratch", "converting"] {
        assert_eq!(names(&dir.join(".nodeyard").join(own)), [""; 0], "{own}");
    }
    let manifest = repository.get(&id());
    let image_files = files_of(dir);
    match &manifest {
        Some(manifest) if manifest.state == ManifestState::Ready => {
            for format in manifest.files.keys() {
                repository.verify(&id(), format).unwrap();
            }
        }
        Some(manifest) => {
            assert_eq!(manifest.state, ManifestState::Failed);
            assert!(manifest.failure.is_some());
            assert_eq!(image_files, [""; 0]);
        }
        None => assert_eq!(image_files, [""; 0]),
    }
    manifest
}

/// Runs `change` in a repository prepared by `before`, once for each step at which it can fail.
fn at_every_step(
    before: impl Fn(&Repository),
    change: impl Fn(&Repository),
    after: impl Fn(Option<Arc<Manifest>>, bool),
) {
    for fault in [faults::killed_at, faults::full_at] as [fn(usize, &dyn Fn()) -> bool; 2] {
        for step in 0.. {
            let dir = tempfile::tempdir().unwrap();
            let repository = open(dir.path());
            before(&repository);
            let hit = fault(step, &|| change(&repository));
            drop(repository);
            after(check(dir.path()), hit);
            // Recovery is idempotent.
            check(dir.path());
            if !hit {
                break;
            }
        }
    }
}

#[test]
fn a_build_is_ready_or_failed() {
    at_every_step(
        |_| {},
        build,
        |manifest, hit| {
            if !hit {
                let manifest = manifest.unwrap();
                assert_eq!(manifest.state, ManifestState::Ready);
                assert_eq!(manifest.files.len(), 2);
            }
        },
    );
}

#[test]
fn a_second_attempt_replaces_the_first() {
    at_every_step(
        |repository| {
            let draft = create_draft(repository).unwrap();
            write_files(&draft);
            draft.fail(ImageFailure::new("first"));
        },
        build,
        |manifest, hit| {
            let manifest = manifest.unwrap();
            assert!(hit || manifest.state == ManifestState::Ready);
        },
    );
}

#[test]
fn a_failed_build_leaves_no_files() {
    at_every_step(
        |_| {},
        |repository| {
            let Ok(draft) = create_draft(repository) else {
                return;
            };
            write_files(&draft);
            draft.fail(ImageFailure::new("it went wrong"));
        },
        |manifest, hit| {
            if let Some(manifest) = manifest {
                assert_eq!(manifest.state, ManifestState::Failed);
                let reason = &manifest.failure.as_ref().unwrap().reason;
                assert!(hit || reason == "it went wrong", "{reason}");
            } else {
                assert!(hit);
            }
        },
    );
}

#[test]
fn an_image_is_removed_or_stays() {
    at_every_step(
        build,
        |repository| {
            let _may_fail = repository.delete(&id());
        },
        |manifest, hit| {
            if let Some(manifest) = manifest {
                assert!(hit);
                assert_eq!(manifest.state, ManifestState::Ready);
                assert_eq!(manifest.files.len(), 2);
            }
        },
    );
}

/// Returns the names of the image's files without its manifest.
fn files_of(dir: &Path) -> Vec<String> {
    let mut names = names(dir);
    names.retain(|name| name.starts_with("debian-") && !name.ends_with(".d"));
    names
}

/// Opens a directory again and again, each time with another change of the start that fails.
fn start_with_a_failing_change(prepare: impl Fn(&Path), after: impl Fn(&Repository)) {
    for step in 0.. {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path());
        let opened = Cell::new(None);
        let hit = faults::full_at(step, &|| opened.set(Some(try_open(dir.path()))));
        match opened.take().unwrap() {
            Ok(repository) => after(&repository),
            // Without directories of its own a repository is none.
            Err(error) => assert!(step < 2, "{step}: {error:?}"),
        }
        check(dir.path());
        if !hit {
            break;
        }
    }
}

#[test]
fn a_start_ends_a_build_also_without_room() {
    start_with_a_failing_change(
        |dir| {
            let repository = open(dir);
            let draft = Cell::new(Some(create_draft(&repository).unwrap()));
            faults::killed_at(0, &|| {
                let draft = draft.take().unwrap();
                write_files(&draft);
            });
            assert_eq!(files_of(dir).len(), 3);
        },
        |repository| {
            let failed = repository.get(&id()).unwrap();
            assert_eq!(failed.state, ManifestState::Failed);
            assert_eq!(
                failed.failure,
                Some(ImageFailure::new(ImageFailure::INTERRUPTED))
            );
            // It can be rebuilt or deleted.
            build(repository);
            assert_eq!(repository.get(&id()).unwrap().state, ManifestState::Ready);
            repository.delete(&id()).unwrap();
            assert_eq!(files_of(repository.dir()), [""; 0]);
        },
    );
}

#[test]
fn a_start_goes_on_when_a_deletion_cannot() {
    start_with_a_failing_change(
        |dir| {
            let repository = open(dir);
            build(&repository);
            faults::killed_at(1, &|| {
                let _killed = repository.delete(&id());
            });
            assert!(!files_of(dir).is_empty());
        },
        |repository| {
            if let Some(left) = repository.get(&id()) {
                assert_eq!(left.state, ManifestState::Failed);
                assert_eq!(repository.finish_deletions().unwrap(), [id()]);
            }
            assert_eq!(repository.get(&id()), None);
            assert_eq!(files_of(repository.dir()), [""; 0]);
        },
    );
}

#[test]
fn a_deletion_that_failed_is_finished_later() {
    for step in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let repository = open(dir.path());
        build(&repository);
        let hit = faults::full_at(step, &|| {
            let deleted = repository.delete(&id());
            let left = repository.get(&id());
            assert_eq!(deleted.is_err(), left.is_some(), "{step}");
        });
        if let Some(left) = repository.get(&id()) {
            assert_eq!((left.state, left.files.len()), (ManifestState::Failed, 0));
            assert_eq!(repository.finish_deletions().unwrap(), [id()]);
        }
        assert_eq!(repository.get(&id()), None);
        assert_eq!(files_of(dir.path()), [""; 0]);
        assert_eq!(repository.finish_deletions().unwrap(), []);
        drop(repository);
        assert_eq!(check(dir.path()), None);
        if !hit {
            break;
        }
    }
}

#[test]
fn what_is_half_removed_can_be_made_again_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let repository = open(dir.path());
    build(&repository);
    faults::full_at(2, &|| assert!(repository.delete(&id()).is_err()));
    build(&repository);
    assert_eq!(repository.finish_deletions().unwrap(), []);
    drop(repository);
    let manifest = check(dir.path()).unwrap();
    assert_eq!(
        (manifest.state, manifest.files.len()),
        (ManifestState::Ready, 2)
    );
}

#[test]
fn a_full_disk_can_be_emptied() {
    for step in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let repository = open(dir.path());
        build(&repository);
        // What needs no room works on a full disk, so only the first change, which may need some, fails.
        let hit = faults::full_at(step, &|| {
            let removed = repository.delete_formats(&id(), &[format("raw")]);
            assert!(removed.is_ok() || step > 1, "{removed:?}");
        });
        assert!(!repository.get(&id()).unwrap().files.contains_key("raw") || step > 1);
        let deleted = faults::full_at(0, &|| repository.delete(&id()).unwrap());
        assert!(deleted);
        drop(repository);
        assert_eq!(check(dir.path()), None);
        if !hit {
            break;
        }
    }
}

#[test]
fn formats_are_removed_or_stay() {
    at_every_step(
        build,
        |repository| {
            let _may_fail = repository.delete_formats(&id(), &[format("raw"), format("vmdk")]);
        },
        |manifest, hit| {
            let files = &manifest.as_ref().unwrap().files;
            assert!(files.contains_key("qcow2"));
            assert!(hit || files.len() == 1);
        },
    );
}

#[test]
fn removed_formats_leave_no_files() {
    let dir = tempfile::tempdir().unwrap();
    for step in 0.. {
        let repository = open(dir.path());
        repository.delete(&id()).unwrap();
        build(&repository);
        let hit = faults::killed_at(step, &|| {
            let _may_fail = repository.delete_formats(&id(), &[format("raw")]);
        });
        drop(repository);
        let manifest = check(dir.path()).unwrap();
        let on_disk = names(dir.path()).iter().any(|name| name.ends_with(".raw"));
        assert_eq!(on_disk, manifest.files.contains_key("raw"));
        if !hit {
            break;
        }
    }
}

#[test]
fn an_upload_is_remembered_once() {
    let provider = "cloud".parse().unwrap();
    let record = |repository: &Repository, outcome| {
        repository.record_upload(
            &id(),
            &provider,
            Some("0000000001".parse().unwrap()),
            outcome,
        )
    };
    at_every_step(
        |repository| {
            build(repository);
            record(repository, UploadOutcome::Pending).unwrap();
        },
        |repository| {
            let _may_fail = record(repository, UploadOutcome::Failed(ImageFailure::new("lost")));
        },
        |manifest, hit| {
            let uploads = &manifest.as_ref().unwrap().uploads;
            assert_eq!(uploads.len(), 1);
            assert!(hit || uploads[0].outcome == UploadOutcome::Failed(ImageFailure::new("lost")));
        },
    );
}
