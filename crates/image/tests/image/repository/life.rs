//! The life cycle of an image, from the draft to its deletion.

use std::fs;
use std::os::unix::fs::symlink;

use nodeyard_image::{
    CommitError, Error, ImageFailure, ManifestState, OpenError, Repository, UploadOutcome, digest,
};

use super::*;

#[test]
fn the_builder_id_is_generated_once_and_read_verbatim() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("images/builder_id.txt");
    let made = open(&dir.path().join("images")).builder_id().to_owned();
    assert_eq!(made.len(), 36);
    assert_eq!(fs::read_to_string(&path).unwrap(), made);
    fs::write(&path, "of Python\n").unwrap();
    let again = open(&dir.path().join("images"));
    assert_eq!(again.builder_id(), "of Python\n");
    drop(again);
    fs::write(&path, "").unwrap();
    let error = Repository::open(options(&dir.path().join("images"))).unwrap_err();
    assert!(matches!(error, OpenError::BuilderId { .. }), "{error}");
}

#[test]
fn a_directory_is_locked_by_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(dir.path());
    let error = Repository::open(options(dir.path())).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    drop(first);
    open(dir.path());
}

#[test]
fn images_persist_across_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let repository = open(dir.path());
    let draft = repository
        .create_draft(DraftRequest {
            image: "debian-12".parse().unwrap(),
            id: id("1.2-x"),
            managed: Some("system".into()),
            need: None,
        })
        .unwrap();
    assert_eq!(draft.output(), dir.path().join("debian-12-1.2-x"));
    assert_eq!(
        repository.get(&id("1.2-x")).unwrap().state,
        ManifestState::Building
    );
    fs::write(draft.path(&format("raw")), "bytes").unwrap();
    fs::write(dir.path().join("debian-12-1.2-x.vmlinuz"), "kernel").unwrap();
    let made = draft.commit(&[format("raw")]).unwrap();
    let provider = "cloud".parse().unwrap();
    let ready = UploadOutcome::Ready {
        external_id: "e".into(),
        external_name: "n".into(),
        format: "raw".into(),
    };
    for outcome in [UploadOutcome::Pending, ready.clone()] {
        repository
            .record_upload(&made.id, &provider, None, outcome)
            .unwrap();
    }
    drop(repository);

    let repository = open(dir.path());
    let found = repository.get(&id("1.2-x")).unwrap();
    assert_eq!(
        (found.image.as_str(), found.state),
        ("debian-12", ManifestState::Ready)
    );
    assert_eq!(found.managed.as_deref(), Some("system"));
    assert_eq!(&*found.builder, "builder.example");
    assert_eq!(&*found.builder_id, repository.builder_id());
    assert_eq!(found.files, made.files);
    assert_eq!(found.uploads.len(), 1);
    assert_eq!(found.uploads[0].outcome, ready);
    let path = repository.path(&id("1.2-x"), &format("raw")).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"bytes");
    let error = repository.path(&id("1.2-x"), &format("vhd")).unwrap_err();
    assert!(matches!(error, Error::NoFormat { .. }), "{error}");

    repository
        .remove_upload(&found.id, &provider, None)
        .unwrap();
    assert!(repository.get(&found.id).unwrap().uploads.is_empty());
    repository.delete(&found.id).unwrap();
    repository.delete(&found.id).unwrap();
    assert_eq!(repository.get(&found.id), None);
    let left: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("debian"))
        .collect();
    assert_eq!(left, [""; 0]);
}

#[test]
fn incomplete_images_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let repository = open(dir.path());
    let raw = format("raw");
    let secret = dir.path().join("secret");
    fs::write(&secret, "of the host").unwrap();
    type Make<'a> = (&'a str, &'a dyn Fn(&Path));
    let cases: [Make<'_>; 5] = [
        ("did not create", &|_| {}),
        ("empty file", &|path| fs::write(path, "").unwrap()),
        ("failed to open", &|path| symlink(&secret, path).unwrap()),
        ("failed to use", &|path| fs::create_dir(path).unwrap()),
        ("does not match its checksum file", &|path| {
            fs::write(path, "bytes").unwrap();
            let md5 = path.with_extension("raw.md5");
            fs::write(md5, format!("{}  x\n", "0".repeat(32))).unwrap();
        }),
    ];
    for (text, make) in cases {
        let draft = create_draft(&repository, "a", "1").unwrap();
        make(&draft.path(&raw));
        let error = draft.commit(std::slice::from_ref(&raw)).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        let failed = repository.get(&id("1")).unwrap();
        assert_eq!(failed.state, ManifestState::Failed);
        assert!(failed.failure.as_ref().unwrap().reason.contains(text));
        assert!(matches!(
            repository.path(&id("1"), &raw),
            Err(Error::Unknown { .. })
        ));
    }
    let draft = create_draft(&repository, "a", "1").unwrap();
    let error = draft.commit(&[]).unwrap_err();
    assert!(matches!(error, CommitError::Nothing));
    assert_eq!(fs::read(&secret).unwrap(), b"of the host");
}

#[test]
fn existing_checksum_files_are_verified() {
    let dir = tempfile::tempdir().unwrap();
    let repository = open(dir.path());
    let raw = format("raw");
    let draft = create_draft(&repository, "a", "1").unwrap();
    let path = draft.path(&raw);
    fs::write(&path, "abc").unwrap();
    fs::write(
        path.with_extension("raw.md5"),
        format!("{}  {}\n", "1".repeat(32), path.display()),
    )
    .unwrap();
    fs::write(path.with_extension("raw.sha256"), "2".repeat(64)).unwrap();
    let error = draft.commit(std::slice::from_ref(&raw)).unwrap_err();
    let CommitError::DigestMismatch { source, .. } = error else {
        panic!("{error}")
    };
    let text = source.to_string();
    assert!(text.contains("900150983cd24fb0d6963f7d28e17f72"), "{text}");
    assert!(text.contains(&"1".repeat(32)), "{text}");
}

#[test]
fn checksum_files_have_the_format_of_diskimage_builder() {
    let dir = tempfile::tempdir().unwrap();
    let repository = open(dir.path());
    build(&repository, "a", "1", b"abc");
    let path = repository.path(&id("1"), &format("raw")).unwrap();
    for tool in ["md5", "sha256"] {
        let printed = std::process::Command::new(format!("{tool}sum"))
            .arg(&path)
            .output()
            .unwrap();
        let written = fs::read(path.with_extension(format!("raw.{tool}"))).unwrap();
        assert_eq!(written, printed.stdout);
    }
    let file = repository.verify(&id("1"), &format("raw")).unwrap();
    assert!(file.verified.is_some());
}

#[test]
fn files_in_scratch_are_moved_to_their_final_path() {
    let dir = tempfile::tempdir().unwrap();
    let repository = open(dir.path());
    let raw = format("raw");
    let mut draft = create_draft(&repository, "a", "1").unwrap();
    let aside = draft.scratch().join("download");
    fs::write(&aside, "abc").unwrap();
    let digests = digest(&aside).unwrap();
    draft.install(&raw, &aside, Some(digests.clone())).unwrap();
    let scratch = draft.scratch();
    let made = draft.commit(std::slice::from_ref(&raw)).unwrap();
    assert_eq!(made.files[&raw].digests, digests);
    assert!(!scratch.exists());
}

#[test]
fn an_id_can_be_reused_only_after_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    let repository = open(dir.path());
    let draft = create_draft(&repository, "a", "1").unwrap();
    for image in ["a", "b"] {
        let error = create_draft(&repository, image, "1").unwrap_err();
        assert!(matches!(error, Error::Exists { .. }), "{error}");
    }
    assert!(matches!(
        repository.delete(&id("1")),
        Err(Error::Building { .. })
    ));
    let failure = ImageFailure {
        kind: Some("unable".into()),
        exit_code: Some(3),
        ..ImageFailure::new("no")
    };
    draft.fail(failure.clone());
    let failed = repository.get(&id("1")).unwrap();
    assert_eq!(failed.failure, Some(failure));
    // Another image may reuse the id of a failed one, whose files are removed.
    build(&repository, "b", "1", b"x");
    assert!(create_draft(&repository, "b", "1").is_err());
    drop(repository);
    let repository = open(dir.path());
    assert_eq!(repository.get(&id("1")).unwrap().image.as_str(), "b");
    assert_eq!(repository.images().len(), 1);
}

#[test]
fn two_images_cannot_share_files() {
    let dir = tempfile::tempdir().unwrap();
    let repository = open(dir.path());
    build(&repository, "a-b", "c", b"x");
    let error = create_draft(&repository, "a", "b-c").unwrap_err();
    assert!(matches!(error, Error::FilesExist { .. }), "{error}");
}

#[test]
fn existing_files_are_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    let kept = ["a-1.raw", "b-1.d/nodeyard.json", ".nodeyard/drafts/2.json"];
    fs::create_dir(dir.path().join("b-1.d")).unwrap();
    for path in kept {
        fs::write(dir.path().join(path), "of somebody").unwrap();
    }
    let repository = open(dir.path());
    for (image, id) in [("a", "1"), ("b", "1"), ("c", "2")] {
        let error = create_draft(&repository, image, id).unwrap_err();
        assert!(matches!(error, Error::FilesExist { .. }), "{error}");
    }
    drop(repository);
    drop(open(dir.path()));
    for path in kept {
        assert!(dir.path().join(path).exists(), "{path}");
    }
}

#[test]
fn a_dropped_draft_fails() {
    let dir = tempfile::tempdir().unwrap();
    let repository = open(dir.path());
    let draft = create_draft(&repository, "a", "1").unwrap();
    let path = draft.path(&format("raw"));
    fs::write(&path, "half").unwrap();
    drop(draft);
    let failed = repository.get(&id("1")).unwrap();
    assert_eq!(
        failed.failure,
        Some(ImageFailure::new(ImageFailure::INTERRUPTED))
    );
    assert!(!path.exists());
}

#[test]
fn deletion_keeps_other_images() {
    let dir = tempfile::tempdir().unwrap();
    let repository = open(dir.path());
    let all = [
        ("a", "b"),
        ("a", "b.c"),
        ("a", "b.c-x"),
        ("a", "bc"),
        ("a-b", "d"),
        ("a", "b.qcow2"),
    ];
    for (image, id) in all {
        build(&repository, image, id, id.as_bytes());
    }
    repository.delete(&id("b")).unwrap();
    drop(repository);
    let repository = open(dir.path());
    assert_eq!(repository.images().len(), all.len() - 1);
    for (_, name) in &all[1..] {
        repository.verify(&id(name), &format("raw")).unwrap();
    }
}
