//! Conversion with `qemu-img`.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use nodeyard_image::{
    ConversionTarget, ConvertError, Converter, DiskCompression, Error, InvalidHeader, digest,
    inspect,
};
use proptest::prelude::*;

use super::*;

const SIZE: u64 = 16 << 20;

fn qemu_img(args: &[&str]) -> String {
    let output = Command::new("qemu-img").args(args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "qemu-img {args:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn target(name: &str, compression: DiskCompression) -> ConversionTarget {
    ConversionTarget {
        format: format(name),
        compression,
    }
}

/// An image named `a:b`, which QEMU would parse as a protocol, with one sparse raw file.
fn repository(dir: &Path) -> Repository {
    let repository = open(dir);
    let draft = create_draft(&repository, "a:b", "1").unwrap();
    sparse_file(&draft.path(&format("raw")), SIZE);
    draft.commit(&[format("raw")]).unwrap();
    repository
}

#[tokio::test]
async fn all_disk_formats_have_the_same_content() {
    let dir = tempfile::tempdir().unwrap();
    let repository = repository(dir.path());
    let raw = repository.path(&id("1"), &format("raw")).unwrap();
    for name in ["qcow2", "vhd", "vhdx", "vmdk", "vdi"] {
        let percents = Mutex::new(Vec::new());
        let made = repository
            .convert(
                &id("1"),
                &target(name, DiskCompression::None),
                &Converter::default(),
                |percent| percents.lock().unwrap().push(percent),
            )
            .await
            .unwrap();
        let path = repository.path(&id("1"), &format(name)).unwrap();
        let driver = format(name).qemu_driver().unwrap();
        qemu_img(&[
            "compare",
            "-f",
            "raw",
            "-F",
            driver,
            text(&raw),
            text(&path),
        ]);
        assert_eq!(made.digests, digest(&path).unwrap());
        assert!(path.with_extension(format!("{name}.sha256")).exists());
        assert!(made.allocated < SIZE / 4, "{name}: {}", made.allocated);
        assert_eq!(percents.lock().unwrap().last(), Some(&100.0));
    }
    drop(repository);
    let repository = open(dir.path());
    assert_eq!(repository.get(&id("1")).unwrap().files.len(), 6);
    assert_eq!(
        fs::read_dir(dir.path().join(".nodeyard/converting"))
            .unwrap()
            .count(),
        0
    );
}

#[tokio::test]
async fn conversion_to_raw_is_sparse() {
    let dir = tempfile::tempdir().unwrap();
    let repository = repository(dir.path());
    let converter = Converter::default();
    let small = target("qcow2", DiskCompression::Zstd);
    repository
        .convert(&id("1"), &small, &converter, |_| {})
        .await
        .unwrap();
    let before = digest(&repository.path(&id("1"), &format("raw")).unwrap()).unwrap();
    repository
        .delete_formats(&id("1"), &[format("raw")])
        .unwrap();
    let raw = repository
        .convert(
            &id("1"),
            &target("raw", DiskCompression::None),
            &converter,
            |_| {},
        )
        .await
        .unwrap();
    assert_eq!((raw.size, raw.digests), (SIZE, before));
    assert!(raw.allocated < 1 << 20, "{}", raw.allocated);
}

#[tokio::test]
async fn compression_depends_on_the_format() {
    for (compression, version, kind) in [
        (DiskCompression::Zlib, "0.10", "zlib"),
        (DiskCompression::Zstd, "1.1", "zstd"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let repository = repository(dir.path());
        let target = target("qcow2", compression);
        let made = repository
            .convert(&id("1"), &target, &Converter::default(), |_| {})
            .await
            .unwrap();
        let path = repository.path(&id("1"), &format("qcow2")).unwrap();
        let info = qemu_img(&["info", "-f", "qcow2", text(&path)]);
        assert!(info.contains(&format!("compat: {version}")), "{info}");
        assert!(
            info.contains(&format!("compression type: {kind}")),
            "{info}"
        );
        // Mostly metadata of an empty disk, one cluster each.
        assert!(made.size < 800_000, "{}", made.size);
    }
}

#[tokio::test]
async fn concurrent_conversions_to_one_format_are_shared() {
    let dir = tempfile::tempdir().unwrap();
    let repository = repository(dir.path());
    let converter = Converter::default();
    let target = target("vhd", DiskCompression::None);
    let name = id("1");
    let [first, second] = [0, 1].map(|_| repository.convert(&name, &target, &converter, |_| {}));
    let (first, second) = tokio::join!(first, second);
    // Equal verification times show that there was one conversion.
    assert_eq!(first.unwrap(), second.unwrap());
}

#[tokio::test]
async fn unsupported_conversions_are_rejected_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let repository = repository(dir.path());
    let archive = create_draft(&repository, "x", "2").unwrap();
    fs::write(archive.path(&format("tgz")), "x").unwrap();
    archive.commit(&[format("tgz")]).unwrap();
    let converter = Converter::default();
    let to = |name| target(name, DiskCompression::None);
    let error = repository
        .convert(&id("1"), &to("tgz"), &converter, |_| {})
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("only raw, qcow2, vhdx, vhd, vdi, vmdk"),
        "{error}"
    );
    let error = repository
        .convert(&id("2"), &to("raw"), &converter, |_| {})
        .await
        .unwrap_err();
    assert!(error.to_string().contains("only tgz"), "{error}");
    let error = repository
        .convert(&id("3"), &to("raw"), &converter, |_| {})
        .await
        .unwrap_err();
    assert!(matches!(
        error,
        ConvertError::Repository(Error::Unknown { .. })
    ));
    let missing = Converter {
        program: "qemu-img-of-nobody".into(),
        ..Converter::default()
    };
    let error = repository
        .convert(&id("1"), &to("vhd"), &missing, |_| {})
        .await
        .unwrap_err();
    assert!(error.to_string().contains("qemu-utils"), "{error}");
    repository.set_limits(DiskLimits {
        keep_free: 1 << 60,
        ..UNLIMITED
    });
    let error = repository
        .convert(&id("1"), &to("vhd"), &converter, |_| {})
        .await
        .unwrap_err();
    assert!(
        matches!(error, ConvertError::Repository(Error::InsufficientSpace(_))),
        "{error}"
    );
}

/// A program. Another process writes it: a file that a thread of this one had open for writing while another thread
/// started a child could not be executed.
fn script(dir: &Path, text: &str) -> Converter {
    let program = dir.join("qemu-img");
    let written = Command::new("sh")
        .args([
            "-c",
            r#"printf '#!/bin/sh\n%s\n' "$1" > "$0" && chmod 755 "$0""#,
        ])
        .args([program.as_os_str(), text.as_ref()])
        .status()
        .unwrap();
    assert!(written.success());
    Converter {
        program,
        ..Converter::default()
    }
}

#[tokio::test]
async fn the_error_contains_the_output_of_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let repository = repository(&dir.path().join("images"));
    let converter = script(dir.path(), "echo no such luck >&2; exit 3");
    let to = target("vhd", DiskCompression::None);
    let error = repository
        .convert(&id("1"), &to, &converter, |_| {})
        .await
        .unwrap_err();
    assert!(error.to_string().contains("no such luck"), "{error}");
    assert!(error.to_string().contains("exit status: 3"), "{error}");
    // Success without an output file is an error too.
    let converter = script(dir.path(), "exit 0");
    let error = repository
        .convert(&id("1"), &to, &converter, |_| {})
        .await
        .unwrap_err();
    assert!(matches!(error, ConvertError::Result(_)), "{error}");
    assert!(!repository.get(&id("1")).unwrap().files.contains_key("vhd"));
}

#[tokio::test]
async fn a_hanging_program_times_out() {
    let dir = tempfile::tempdir().unwrap();
    let repository = repository(&dir.path().join("images"));
    let mut converter = script(dir.path(), "exec sleep 1000");
    converter.timeout = Duration::from_millis(100);
    let to = target("vhd", DiskCompression::None);
    let error = repository
        .convert(&id("1"), &to, &converter, |_| {})
        .await
        .unwrap_err();
    assert!(matches!(error, ConvertError::TimedOut { .. }), "{error}");
}

#[tokio::test]
async fn dropping_a_conversion_kills_its_processes() {
    let dir = tempfile::tempdir().unwrap();
    let repository = repository(&dir.path().join("images"));
    let said = dir.path().join("pids");
    let converter = script(
        dir.path(),
        &format!("sleep 1000 & echo $! $$ > {}; wait", said.display()),
    );
    let to = target("vhd", DiskCompression::None);
    let pids = async {
        loop {
            match fs::read_to_string(&said) {
                Ok(pids) if pids.ends_with('\n') => return pids,
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    let name = id("1");
    let pids = tokio::select! {
        result = repository.convert(&name, &to, &converter, |_| {}) => panic!("{result:?}"),
        pids = pids => pids,
    };
    for pid in pids.split_whitespace() {
        // A zombie counts as ended.
        let running = || {
            fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
        };
        while running() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn deletion_during_a_conversion_is_final() {
    let dir = tempfile::tempdir().unwrap();
    let images = dir.path().join("images");
    let repository = repository(&images);
    let [started, go] = ["started", "go"].map(|name| dir.path().join(name));
    let wait = format!(
        "touch {}; while [ ! -e {} ]; do sleep 0.1; done; exec qemu-img \"$@\"",
        started.display(),
        go.display()
    );
    let converter = script(dir.path(), &wait);
    let to = target("vhd", DiskCompression::None);
    let name = id("1");
    let conversion = repository.convert(&name, &to, &converter, |_| {});
    let removal = async {
        while !started.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        repository.delete(&id("1")).unwrap();
        fs::write(&go, "").unwrap();
    };
    let (result, ()) = tokio::join!(conversion, removal);
    assert!(result.is_err());
    let left = fs::read_dir(&images)
        .unwrap()
        .filter(|entry| {
            entry
                .as_ref()
                .unwrap()
                .file_name()
                .to_string_lossy()
                .starts_with("a:b")
        })
        .count();
    assert_eq!(left, 0);
}

#[test]
fn disks_that_refer_to_other_files_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("base.raw"), vec![0; 1 << 20]).unwrap();
    for arguments in [
        "-f qcow2 good.qcow2 1M",
        "-f qcow2 -b base.raw -F raw backed.qcow2",
        "-f qcow2 -o data_file=data split.qcow2 1M",
        "-f vmdk good.vmdk 1M",
        "-f vmdk -b good.vmdk -F vmdk backed.vmdk",
        "-f vmdk -o subformat=monolithicFlat flat.vmdk 1M",
    ] {
        let created = Command::new("qemu-img")
            .arg("create")
            .args(arguments.split(' '))
            .current_dir(dir.path())
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(created.success(), "{arguments}");
    }
    // Encrypted with LUKS, and without capacity.
    for (good, bad, at, bytes) in [
        ("good.qcow2", "locked.qcow2", 32, &[0, 0, 0, 2][..]),
        ("good.vmdk", "list.vmdk", 12, &[0; 8]),
    ] {
        fs::copy(path(good), path(bad)).unwrap();
        let file = File::options().write(true).open(path(bad)).unwrap();
        file.write_all_at(bytes, at).unwrap();
    }
    fs::write(path("short.qcow2"), b"QFI\xfb").unwrap();

    let look = |name: &str| {
        let (_, extension) = name.rsplit_once('.').unwrap();
        inspect(&path(name), &format(extension))
    };
    for (name, reason) in [
        ("backed.qcow2", "based on another file"),
        ("split.qcow2", "data in another file"),
        ("locked.qcow2", "encrypted"),
        ("backed.vmdk", "based on another file"),
        ("flat.vmdk", "wrong magic"),
        ("list.vmdk", "data in other files"),
        ("short.qcow2", "wrong magic"),
    ] {
        let error = look(name).unwrap_err();
        assert!(!matches!(error, InvalidHeader::File(_)), "{error}");
        assert!(error.to_string().contains(reason), "{name}: {error}");
    }
    for name in ["good.qcow2", "good.vmdk", "base.raw"] {
        assert_eq!(look(name).unwrap(), Some(1 << 20), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_header_is_parsed_or_rejected(
        magic in prop::sample::select(vec![&b"QFI\xfb\0\0\0\x03"[..], b"KDMV", b"vhdxfile", b""]),
        rest in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        fs::write(&path, [magic, &rest].concat()).unwrap();
        for name in Format::convertible() {
            if let Err(error) = inspect(&path, &format(name)) {
                prop_assert!(!matches!(error, InvalidHeader::File(_)), "{error}");
            }
        }
    }
}
