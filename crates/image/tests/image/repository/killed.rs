//! A process that is killed during a build.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use nodeyard_image::{ImageFailure, ManifestState, OpenError, Repository};

use super::*;

const DIR: &str = "NODEYARD_TEST_KILLED_IN";

/// The process that the other test kills. Does nothing when run as a test.
#[test]
fn builds_until_it_is_killed() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let repository = open(Path::new(&dir));
    build(&repository, "whole", "1", b"x");
    let draft = create_draft(&repository, "half", HEX).unwrap();
    fs::write(draft.path(&format("raw")), "half").unwrap();
    fs::write(draft.scratch().join("work"), "half").unwrap();
    println!("\nbuilding");
    loop {
        std::thread::park();
    }
}

#[test]
fn a_killed_builder_leaves_complete_images_and_releases_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "repository::killed::builds_until_it_is_killed",
            "--nocapture",
        ])
        .env(DIR, dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap());
    let building = said.lines().any(|line| line.unwrap().contains("building"));
    assert!(building, "the builder ended early");

    let error = Repository::open(options(dir.path())).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    child.kill().unwrap();
    child.wait().unwrap();

    let half = dir.path().join(format!("half-{HEX}.raw"));
    assert!(half.exists());
    let repository = open(dir.path());
    assert!(!half.exists());
    let failed = repository.get(&id(HEX)).unwrap();
    assert_eq!(failed.state, ManifestState::Failed);
    assert_eq!(
        failed.failure,
        Some(ImageFailure::new(ImageFailure::INTERRUPTED))
    );
    assert!(!dir.path().join(".nodeyard/scratch").join(HEX).exists());
    repository.verify(&id("1"), &format("raw")).unwrap();
}
