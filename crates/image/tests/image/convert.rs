//! Conversion by the real `qemu-img`.

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use nodeyard_image::{
    BadHeader, Compression, ConvertError, Converter, Error, Target, digest, inspect,
};

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

fn target(name: &str, compression: Compression) -> Target {
    Target {
        format: format(name),
        compression,
    }
}

/// An image called `a:b`, which QEMU would take for a protocol, with one sparse raw file.
fn repository(dir: &Path) -> Repository {
    let repository = open(dir);
    let draft = begin(&repository, "a:b", "1").unwrap();
    sparse_file(&draft.path(&format("raw")), SIZE);
    draft.commit(&[format("raw")]).unwrap();
    repository
}

#[tokio::test]
async fn every_disk_format_is_made_and_holds_the_same_disk() {
    let dir = tempfile::tempdir().unwrap();
    let repository = repository(dir.path());
    let raw = repository.path(&id("1"), &format("raw")).unwrap();
    for name in ["qcow2", "vhd", "vhdx", "vmdk", "vdi"] {
        let percents = Mutex::new(Vec::new());
        let made = repository
            .convert(
                &id("1"),
                &target(name, Compression::None),
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
async fn a_disk_stays_sparse_on_the_way_back_to_raw() {
    let dir = tempfile::tempdir().unwrap();
    let repository = repository(dir.path());
    let converter = Converter::default();
    let small = target("qcow2", Compression::Zstd);
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
            &target("raw", Compression::None),
            &converter,
            |_| {},
        )
        .await
        .unwrap();
    assert_eq!((raw.size, raw.digests), (SIZE, before));
    assert!(raw.allocated < 1 << 20, "{}", raw.allocated);
}

#[tokio::test]
async fn compression_is_what_the_target_takes() {
    for (compression, version, kind) in [
        (Compression::Zlib, "0.10", "zlib"),
        (Compression::Zstd, "1.1", "zstd"),
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
        assert!(made.size < 400_000, "{}", made.size);
    }
}

#[tokio::test]
async fn two_that_want_the_same_format_share_one_conversion() {
    let dir = tempfile::tempdir().unwrap();
    let repository = repository(dir.path());
    let converter = Converter::default();
    let target = target("vhd", Compression::None);
    let name = id("1");
    let [first, second] = [0, 1].map(|_| repository.convert(&name, &target, &converter, |_| {}));
    let (first, second) = tokio::join!(first, second);
    // The time of the one verification tells that there was one.
    assert_eq!(first.unwrap(), second.unwrap());
}

#[tokio::test]
async fn what_cannot_be_converted_is_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let repository = repository(dir.path());
    let archive = begin(&repository, "x", "2").unwrap();
    fs::write(archive.path(&format("tgz")), "x").unwrap();
    archive.commit(&[format("tgz")]).unwrap();
    let converter = Converter::default();
    let to = |name| target(name, Compression::None);
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
    repository.set_limits(Limits {
        keep_free: 1 << 60,
        ..UNLIMITED
    });
    let error = repository
        .convert(&id("1"), &to("vhd"), &converter, |_| {})
        .await
        .unwrap_err();
    assert!(
        matches!(error, ConvertError::Repository(Error::NoRoom(_))),
        "{error}"
    );
}

fn script(dir: &Path, text: &str) -> Converter {
    let program = dir.join("qemu-img");
    let mut file = File::create(&program).unwrap();
    write!(file, "#!/bin/sh\n{text}\n").unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o755))
        .unwrap();
    Converter {
        program,
        ..Converter::default()
    }
}

#[tokio::test]
async fn a_program_that_fails_is_quoted() {
    let dir = tempfile::tempdir().unwrap();
    let repository = repository(&dir.path().join("images"));
    let converter = script(dir.path(), "echo no such luck >&2; exit 3");
    let to = target("vhd", Compression::None);
    let error = repository
        .convert(&id("1"), &to, &converter, |_| {})
        .await
        .unwrap_err();
    assert!(error.to_string().contains("no such luck"), "{error}");
    assert!(error.to_string().contains("exit status: 3"), "{error}");
    // One that makes nothing and says nothing has failed, too.
    let converter = script(dir.path(), "exit 0");
    let error = repository
        .convert(&id("1"), &to, &converter, |_| {})
        .await
        .unwrap_err();
    assert!(matches!(error, ConvertError::Result(_)), "{error}");
    assert!(!repository.get(&id("1")).unwrap().files.contains_key("vhd"));
}

#[tokio::test]
async fn a_program_that_hangs_is_killed_with_its_children() {
    let dir = tempfile::tempdir().unwrap();
    let repository = repository(&dir.path().join("images"));
    let pids = dir.path().join("pids");
    let mut converter = script(
        dir.path(),
        &format!("sleep 1000 & echo $! $$ > {}; wait", pids.display()),
    );
    converter.timeout = Duration::from_secs(3);
    let to = target("vhd", Compression::None);
    let error = repository
        .convert(&id("1"), &to, &converter, |_| {})
        .await
        .unwrap_err();
    assert!(matches!(error, ConvertError::TimedOut { .. }), "{error}");
    for pid in fs::read_to_string(&pids).unwrap().split_whitespace() {
        let running = || {
            let mut stat = String::new();
            let path = format!("/proc/{pid}/stat");
            let read = File::open(path).and_then(|mut file| file.read_to_string(&mut stat));
            // A zombie waits for nobody but its parent.
            read.is_ok() && !stat.contains(") Z ")
        };
        while running() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn an_image_that_is_deleted_meanwhile_does_not_come_back() {
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
    let to = target("vhd", Compression::None);
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
fn disks_that_name_other_files_are_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let base = path("base.raw");
    fs::write(&base, vec![0; 1 << 20]).unwrap();
    qemu_img(&[
        "create",
        "-f",
        "qcow2",
        "-b",
        text(&base),
        "-F",
        "raw",
        text(&path("backed.qcow2")),
    ]);
    let data = format!("data_file={}", text(&path("data")));
    qemu_img(&[
        "create",
        "-f",
        "qcow2",
        "-o",
        &data,
        text(&path("split.qcow2")),
        "1M",
    ]);
    let secret = ["--object", "secret,id=s,data=x"];
    let locked = path("locked.qcow2");
    qemu_img(&[
        "create",
        "-f",
        "qcow2",
        secret[0],
        secret[1],
        "-o",
        "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10",
        text(&locked),
        "1M",
    ]);
    qemu_img(&["create", "-f", "vmdk", text(&path("good.vmdk")), "1M"]);
    qemu_img(&[
        "create",
        "-f",
        "vmdk",
        "-b",
        text(&path("good.vmdk")),
        "-F",
        "vmdk",
        text(&path("backed.vmdk")),
    ]);
    qemu_img(&[
        "create",
        "-f",
        "vmdk",
        "-o",
        "subformat=monolithicFlat",
        text(&path("flat.vmdk")),
        "1M",
    ]);
    fs::copy(path("good.vmdk"), path("list.vmdk")).unwrap();
    let mut list = File::options().write(true).open(path("list.vmdk")).unwrap();
    list.seek(SeekFrom::Start(12)).unwrap();
    list.write_all(&[0; 8]).unwrap();
    qemu_img(&["create", "-f", "qcow2", text(&path("good.qcow2")), "1M"]);
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
        ("flat.vmdk", "first bytes"),
        ("list.vmdk", "data in other files"),
        ("short.qcow2", "first bytes"),
    ] {
        let error = look(name).unwrap_err();
        assert!(!matches!(error, BadHeader::File(_)), "{error}");
        assert!(error.to_string().contains(reason), "{name}: {error}");
    }
    for name in ["good.qcow2", "good.vmdk", "base.raw"] {
        assert_eq!(look(name).unwrap(), Some(1 << 20), "{name}");
    }
}
