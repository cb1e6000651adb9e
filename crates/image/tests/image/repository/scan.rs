//! Which files are found as images when a repository is opened.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;

use nodeyard_image::ManifestState;
use proptest::prelude::*;

use super::*;

/// As a Python builder leaves its directory: two builds, one of them with checksums and diskimage-builder's manifests.
fn python_repository(dir: &Path) {
    let old = "ffffffffffffffffffffffffffffffff";
    fs::write(
        dir.join("builder_id.txt"),
        "8a3cbe4e-0000-4000-8000-1234567890ab",
    )
    .unwrap();
    for format in ["qcow2", "raw"] {
        fs::write(dir.join(format!("ubuntu-jammy-{HEX}.{format}")), format).unwrap();
    }
    let digests = [("md5", "d".repeat(32)), ("sha256", "E".repeat(64))];
    for (kind, digest) in digests {
        let name = format!("ubuntu-jammy-{HEX}.qcow2");
        let line = format!("{digest}  /opt/nodepool/images/{name}\n");
        fs::write(dir.join(format!("{name}.{kind}")), line).unwrap();
    }
    let manifests = dir.join(format!("ubuntu-jammy-{HEX}.d/dib-manifests"));
    fs::create_dir_all(&manifests).unwrap();
    fs::write(manifests.join("dib_arguments"), "vm").unwrap();
    fs::write(dir.join(format!("debian-{old}.vhd")), "x").unwrap();
}

#[test]
fn images_of_a_python_builder_are_found_and_can_be_deleted() {
    let dir = tempfile::tempdir().unwrap();
    python_repository(dir.path());
    let repository = open(dir.path());
    assert_eq!(
        repository.builder_id(),
        "8a3cbe4e-0000-4000-8000-1234567890ab"
    );
    assert_eq!(repository.images().len(), 2);
    let image = repository.get(&id(HEX)).unwrap();
    assert_eq!(
        (image.image.as_str(), image.state),
        ("ubuntu-jammy", ManifestState::Ready)
    );
    assert_eq!(image.managed, None);
    let digests = &image.files["qcow2"].digests;
    assert_eq!(digests.md5.as_deref(), Some(&*"d".repeat(32)));
    assert_eq!(digests.sha256.as_deref(), Some(&*"e".repeat(64)));
    assert!(image.files["raw"].digests.is_empty());

    // Opening does not change the files.
    assert!(
        !dir.path()
            .join(format!("ubuntu-jammy-{HEX}.d/nodeyard.json"))
            .exists()
    );
    let file = repository.verify(&id(HEX), &format("raw")).unwrap();
    assert!(file.digests.md5.is_some() && file.digests.sha256.is_some());
    drop(repository);
    let repository = open(dir.path());
    assert_eq!(repository.get(&id(HEX)).unwrap().files["raw"], file);
    repository
        .delete_formats(&id(HEX), &[format("raw")])
        .unwrap();
    repository.delete(&id(HEX)).unwrap();
    drop(repository);
    assert_eq!(open(dir.path()).images().len(), 1);
    let left = fs::read_dir(dir.path())
        .unwrap()
        .filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.as_bytes().starts_with(b"ubuntu")
        })
        .count();
    assert_eq!(left, 0);
}

#[test]
fn invalid_manifests_are_kept_and_hide_their_files() {
    for text in [
        "",
        "{",
        "null",
        "[]",
        r#"{"version": 99}"#,
        r#"{"version": 1}"#,
        r#"{"version": 1, "image": "../x", "id": "1"}"#,
    ] {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join(format!("debian-{HEX}"));
        fs::write(base.with_extension("qcow2"), "x").unwrap();
        fs::create_dir(base.with_extension("d")).unwrap();
        let manifest = base.with_extension("d").join("nodeyard.json");
        fs::write(&manifest, text).unwrap();
        assert_eq!(open(dir.path()).images(), [], "{text}");
        assert!(base.with_extension("qcow2").exists());
        assert_eq!(fs::read_to_string(&manifest).unwrap(), text);
    }
}

#[test]
fn misplaced_and_linked_manifests_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    build(&open(dir.path()), "a", "1", b"x");
    let manifest = dir.path().join("a-1.d/nodeyard.json");
    for (elsewhere, link) in [("b-1.d", false), ("a-1.raw.d", false), ("c-1.d", true)] {
        let copy = dir.path().join(elsewhere);
        fs::create_dir(&copy).unwrap();
        if link {
            symlink(&manifest, copy.join("nodeyard.json")).unwrap();
        } else {
            fs::copy(&manifest, copy.join("nodeyard.json")).unwrap();
        }
    }
    let images = open(dir.path()).images();
    assert_eq!(images.len(), 1);
    assert_eq!(images[0].image.as_str(), "a");
}

#[test]
fn unknown_keys_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    build(&open(dir.path()), "a", "1", b"x");
    let manifest = dir.path().join("a-1.d/nodeyard.json");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(
        &manifest,
        text.replacen('{', r#"{"new": {"deep": [1]},"#, 1),
    )
    .unwrap();
    assert_eq!(open(dir.path()).images().len(), 1);
}

#[test]
fn files_with_changed_size_or_type_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let repository = open(dir.path());
    for id in ["gone", "longer", "link"] {
        build(&repository, "a", id, b"x");
    }
    drop(repository);
    let path = |id: &str| dir.path().join(format!("a-{id}.raw"));
    fs::remove_file(path("gone")).unwrap();
    fs::write(path("longer"), "xx").unwrap();
    fs::remove_file(path("link")).unwrap();
    symlink(path("longer"), path("link")).unwrap();
    let repository = open(dir.path());
    for name in ["gone", "longer", "link"] {
        assert!(
            repository.get(&id(name)).unwrap().files.is_empty(),
            "{name}"
        );
    }
    // The image can still be deleted and rebuilt.
    repository.delete(&id("link")).unwrap();
    assert!(path("longer").exists());
}

#[test]
fn an_unreadable_record_of_a_draft_hides_its_files() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    let file = dir.path().join(format!("debian-{HEX}.raw"));
    let record = dir.path().join(format!(".nodeyard/drafts/{HEX}.json"));
    fs::write(&file, "half").unwrap();
    fs::write(&record, "{").unwrap();
    assert_eq!(open(dir.path()).images(), []);
    assert!(file.exists() && record.exists());
}

/// A directory entry.
#[derive(Debug, Clone)]
enum DirEntry {
    File(String),
    Empty(String),
    Dir(String),
    Link(String),
    Managed { image: String, id: String },
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => ("[a-z][a-z.-]{0,4}", 0..3_u8, "(raw|qcow2|md5|d|tmp|vhd)")
            .prop_map(|(image, n, format)| format!("{image}-{n:032x}.{format}")),
        1 => ("[a-z]{1,3}", "[0-9a-f]{0,33}", "(raw|raw\\.md5|qcow2\\.sha256|)")
            .prop_map(|(image, id, format)| format!("{image}-{id}.{format}")),
        1 => "[a-zA-Z0-9._ \\\\:%-]{1,12}".prop_filter("a path", |name| !name.starts_with('.')),
        1 => Just("builder_id.txt.bak".to_owned()),
    ]
}

fn thing() -> impl Strategy<Value = DirEntry> {
    prop_oneof![
        5 => name().prop_map(DirEntry::File),
        1 => name().prop_map(DirEntry::Empty),
        1 => name().prop_map(DirEntry::Dir),
        1 => name().prop_map(DirEntry::Link),
        2 => ("[a-z][a-z.-]{0,4}", "[0-9a-f][0-9a-f.-]{0,4}")
            .prop_filter("an id", |(_, id)| id.parse::<ImageId>().is_ok())
            .prop_map(|(image, id)| DirEntry::Managed { image, id }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn exactly_the_images_are_found(things in prop::collection::vec(thing(), 0..12)) {
        let dir = tempfile::tempdir().unwrap();
        let repository = open(dir.path());
        let mut expected = BTreeSet::new();
        for thing in &things {
            if let DirEntry::Managed { image, id } = thing
                && let Ok(draft) = create_draft(&repository, image, id)
            {
                fs::write(draft.path(&format("raw")), "x").unwrap();
                draft.commit(&[format("raw")]).unwrap();
                expected.insert((image.clone(), id.clone()));
            }
        }
        drop(repository);
        for thing in &things {
            let (DirEntry::File(name) | DirEntry::Empty(name) | DirEntry::Dir(name) | DirEntry::Link(name)) = thing else {
                continue;
            };
            let path = dir.path().join(name);
            if path.symlink_metadata().is_ok() {
                continue;
            }
            match thing {
                DirEntry::File(_) => fs::write(&path, "x").unwrap(),
                DirEntry::Empty(_) => fs::write(&path, "").unwrap(),
                DirEntry::Dir(_) => fs::create_dir(&path).unwrap(),
                _ => symlink("/etc/passwd", &path).unwrap(),
            }
        }
        // The same rule, applied to the actual files.
        let before: BTreeSet<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        for path in &before {
            let meta = path.symlink_metadata().unwrap();
            let name = path.file_name().unwrap().to_str().unwrap();
            let Some((stem, extension)) = name.rsplit_once('.') else { continue };
            let Some((image, hex)) = stem.rsplit_once('-') else { continue };
            let is_id = hex.len() == 32 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            let is_format = ["raw", "qcow2", "vhd"].contains(&extension);
            if meta.is_file() && meta.len() > 0 && is_id && is_format && !image.is_empty() && !image.starts_with('.') {
                expected.insert((image.to_owned(), hex.to_owned()));
            }
        }
        // Of two images with the same id only one is found.
        let ids: BTreeSet<_> = expected.iter().map(|(_, id)| id.clone()).collect();
        let found = open(dir.path()).images();
        let found_ids: BTreeSet<_> = found.iter().map(|image| image.id.to_string()).collect();
        prop_assert_eq!(&found_ids, &ids);
        for image in &found {
            prop_assert!(expected.contains(&(image.image.to_string(), image.id.to_string())));
        }
        for path in &before {
            prop_assert!(path.symlink_metadata().is_ok(), "{} was removed", path.display());
        }
    }
}
