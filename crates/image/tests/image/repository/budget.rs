//! Work that would fill the disk.

use std::fs;

use nodeyard_image::{Error, NoRoom};

use super::*;

const MIB: u64 = 1 << 20;

fn need(repository: &Repository, id: &str, need: u64) -> Result<Draft, Error> {
    repository.begin(Begin {
        image: "a".parse().unwrap(),
        id: id.parse().unwrap(),
        managed: None,
        need: Some(need),
    })
}

#[track_caller]
fn no_room(result: Result<Draft, Error>) -> NoRoom {
    match result {
        Err(Error::NoRoom(no_room)) => no_room,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_build_that_the_disk_cannot_hold_is_refused_before_it_starts() {
    let dir = tempfile::tempdir().unwrap();
    let repository = open(dir.path());
    let refusal = no_room(need(&repository, "1", 1 << 60));
    let text = refusal.to_string();
    assert!(text.contains("1048576.0 TiB are needed"), "{text}");
    assert!(text.contains("images-dir-reserve"), "{text}");
    assert_eq!(repository.images(), []);
    repository.set_limits(Limits {
        keep_free: 1 << 60,
        ..UNLIMITED
    });
    assert!(matches!(
        no_room(need(&repository, "1", 1)),
        NoRoom::Disk { .. }
    ));
    repository.set_limits(UNLIMITED);
    drop(need(&repository, "1", 1).unwrap());
}

#[test]
fn running_work_keeps_its_room_until_it_has_written() {
    let dir = tempfile::tempdir().unwrap();
    let repository = open(dir.path());
    repository.set_limits(Limits {
        most_used: Some(10 * MIB),
        ..UNLIMITED
    });
    let first = need(&repository, "1", 6 * MIB).unwrap();
    let refusal = no_room(need(&repository, "2", 6 * MIB));
    let NoRoom::Directory { reserved, .. } = refusal else {
        panic!("{refusal}")
    };
    assert_eq!(reserved.0, 6 * MIB);

    // What it has written counts once: as used, and not as reserved any more.
    fs::write(first.path(&format("raw")), vec![1; 4 << 20]).unwrap();
    fs::write(first.scratch().join("work"), vec![1; 1 << 20]).unwrap();
    let refusal = no_room(need(&repository, "2", 6 * MIB));
    let NoRoom::Directory { reserved, used, .. } = refusal else {
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
fn the_next_build_is_judged_by_the_largest_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let repository = open(dir.path());
    let limits = Limits {
        keep_free: 0,
        most_used: Some(9 * MIB),
        first_build: 20 * MIB,
    };
    repository.set_limits(limits);
    no_room(begin(&repository, "a", "1"));
    let first = need(&repository, "1", 0).unwrap();
    fs::write(first.path(&format("raw")), vec![1; 4 << 20]).unwrap();
    first.commit(&[format("raw")]).unwrap();
    no_room(begin(&repository, "other", "2"));
    let NoRoom::Directory { needed, .. } = no_room({
        repository.set_limits(Limits {
            most_used: Some(MIB),
            ..limits
        });
        begin(&repository, "a", "2")
    }) else {
        panic!()
    };
    assert!((4 * MIB..6 * MIB).contains(&needed.0), "{needed}");
    repository.set_limits(Limits {
        most_used: Some(10 * MIB),
        ..limits
    });
    drop(begin(&repository, "a", "2").unwrap());
}
