//! Disk limits and reservations.

use std::fs;

use nodeyard_image::{Error, InsufficientSpace};

use super::*;

const MIB: u64 = 1 << 20;

fn need(repository: &Repository, id: &str, need: u64) -> Result<Draft, Error> {
    repository.create_draft(DraftRequest {
        image: "a".parse().unwrap(),
        id: id.parse().unwrap(),
        managed: None,
        need: Some(need),
    })
}

#[track_caller]
fn no_room(result: Result<Draft, Error>) -> InsufficientSpace {
    match result {
        Err(Error::InsufficientSpace(no_room)) => no_room,
        other => panic!("{other:?}"),
    }
}

#[test]
fn builds_that_exceed_the_limits_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let repository = open(dir.path());
    let refusal = no_room(need(&repository, "1", 1 << 60));
    let text = refusal.to_string();
    assert!(text.contains("1048576.0 TiB are needed"), "{text}");
    assert!(text.contains("images-dir-reserve"), "{text}");
    assert_eq!(repository.images(), []);
    repository.set_limits(DiskLimits {
        keep_free: 1 << 60,
        ..UNLIMITED
    });
    assert!(matches!(
        no_room(need(&repository, "1", 1)),
        InsufficientSpace::Disk { .. }
    ));
    repository.set_limits(UNLIMITED);
    drop(need(&repository, "1", 1).unwrap());
}

#[test]
fn reservations_last_until_the_space_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let repository = open(dir.path());
    repository.set_limits(DiskLimits {
        max_used: Some(10 * MIB),
        ..UNLIMITED
    });
    let first = need(&repository, "1", 6 * MIB).unwrap();
    let refusal = no_room(need(&repository, "2", 6 * MIB));
    let InsufficientSpace::Directory { reserved, .. } = refusal else {
        panic!("{refusal}")
    };
    assert_eq!(reserved.0, 6 * MIB);

    // Written data counts once, as used.
    fs::write(first.path(&format("raw")), vec![1; 4 << 20]).unwrap();
    fs::write(first.scratch().join("work"), vec![1; 1 << 20]).unwrap();
    let refusal = no_room(need(&repository, "2", 6 * MIB));
    let InsufficientSpace::Directory { reserved, used, .. } = refusal else {
        panic!("{refusal}")
    };
    assert!((MIB / 2..=3 * MIB / 2).contains(&reserved.0), "{reserved}");
    assert!((5 * MIB..6 * MIB).contains(&used.0), "{used}");

    first.commit(&[format("raw")]).unwrap();
    no_room(need(&repository, "2", 6 * MIB));
    drop(need(&repository, "2", 5 * MIB).unwrap());
    repository.delete(&id("1")).unwrap();
    drop(need(&repository, "2", 9 * MIB).unwrap());
}

#[test]
fn builds_are_estimated_by_the_largest_earlier_one() {
    let dir = tempfile::tempdir().unwrap();
    let repository = open(dir.path());
    let limits = DiskLimits {
        keep_free: 0,
        max_used: Some(9 * MIB),
        first_build: 20 * MIB,
    };
    repository.set_limits(limits);
    no_room(create_draft(&repository, "a", "1"));
    let first = need(&repository, "1", 0).unwrap();
    fs::write(first.path(&format("raw")), vec![1; 4 << 20]).unwrap();
    first.commit(&[format("raw")]).unwrap();
    no_room(create_draft(&repository, "other", "2"));
    let InsufficientSpace::Directory { needed, .. } = no_room({
        repository.set_limits(DiskLimits {
            max_used: Some(MIB),
            ..limits
        });
        create_draft(&repository, "a", "2")
    }) else {
        panic!()
    };
    assert!((4 * MIB..6 * MIB).contains(&needed.0), "{needed}");
    repository.set_limits(DiskLimits {
        max_used: Some(10 * MIB),
        ..limits
    });
    drop(create_draft(&repository, "a", "2").unwrap());
}
