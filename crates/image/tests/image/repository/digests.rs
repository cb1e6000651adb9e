//! Digests compared with md5sum and sha256sum, and preservation of holes.

use std::fs;
use std::io::Write as _;
use std::process::Command;

use nodeyard_image::{Digests, SparseWriter, copy, digest};
use proptest::prelude::*;

use super::*;

const SIZE: u64 = 16 << 20;

fn by_tools(path: &Path) -> Digests {
    let run = |tool: &str| {
        let output = Command::new(tool).arg(path).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.split(' ').next().map(Into::into)
    };
    Digests {
        md5: run("md5sum"),
        sha256: run("sha256sum"),
    }
}

#[test]
fn a_sparse_file_has_the_digests_of_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    sparse_file(&path, SIZE);
    assert_eq!(digest(&path).unwrap(), by_tools(&path));
    File::create(dir.path().join("hole"))
        .unwrap()
        .set_len(12345)
        .unwrap();
    let hole = dir.path().join("hole");
    assert_eq!(digest(&hole).unwrap(), by_tools(&hole));
}

#[test]
fn a_copy_is_sparse_and_its_digests_are_known() {
    let dir = tempfile::tempdir().unwrap();
    let [from, to, dense] = ["from", "to", "dense"].map(|name| dir.path().join(name));
    sparse_file(&from, SIZE);
    assert_eq!(copy(&from, &to).unwrap(), by_tools(&from));
    assert_eq!(fs::metadata(&to).unwrap().len(), SIZE);
    assert!(allocated(&to) < 1 << 20, "{}", allocated(&to));
    assert!(fs::read(&from).unwrap() == fs::read(&to).unwrap());
    assert!(
        copy(&from, &to).is_err(),
        "an existing file is not replaced"
    );

    // Allocated zeros become holes too.
    fs::write(&dense, fs::read(&from).unwrap()).unwrap();
    fs::remove_file(&to).unwrap();
    copy(&dense, &to).unwrap();
    assert!(allocated(&to) < 1 << 20, "{}", allocated(&to));
}

#[test]
fn links_and_devices_are_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
    for path in [&link, Path::new("/dev/zero"), dir.path()] {
        assert!(digest(path).is_err(), "{}", path.display());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(32) })]

    /// Chunks of various sizes, of zeros and of other bytes.
    #[test]
    fn chunked_writes_produce_the_same_content(
        pieces in prop::collection::vec((0..20_000_usize, prop_oneof![Just(0_u8), 0..3_u8], any::<bool>()), 0..20),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let mut writer = SparseWriter::new(File::create_new(&path).unwrap()).unwrap();
        let mut expected = Vec::new();
        for (length, byte, as_hole) in pieces {
            if as_hole && byte == 0 {
                writer.hole(length as u64);
            } else {
                writer.write_all(&vec![byte; length]).unwrap();
            }
            expected.resize(expected.len() + length, byte);
        }
        prop_assert_eq!(writer.written(), expected.len() as u64);
        let (_, digests) = writer.finish().unwrap();
        prop_assert!(fs::read(&path).unwrap() == expected);
        prop_assert_eq!(digests, digest(&path).unwrap());
    }
}
