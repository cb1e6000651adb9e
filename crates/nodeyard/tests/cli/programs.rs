//! Names, help, exit codes, completions, manual pages, links.

use std::fs;
use std::io::Read as _;
use std::process::Stdio;

use crate::bed::{Bed, Ran};

#[test]
fn help_and_version_succeed_and_unknown_options_fail() {
    let bed = Bed::new();
    for args in [&["--help"][..], &["--version"], &["store", "ls", "--help"]] {
        let ran = bed.run(args).succeeded();
        assert!(!ran.out.is_empty() && ran.err.is_empty());
    }
    let ran = bed.run(["frobnicate"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("frobnicate"));
    let ran = bed.run(["store", "ls", "not/absolute"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("must start with a slash"), "{}", ran.err);
}

#[test]
fn the_name_decides_which_program_runs() {
    let bed = Bed::new();
    let version = Ran::from(bed.called("nodepool").arg("--version").output().unwrap()).succeeded();
    assert!(
        version.out.starts_with("Nodepool version: 11."),
        "{}",
        version.out
    );
    let help = Ran::from(
        bed.called("nodepool-launcher")
            .arg("--help")
            .output()
            .unwrap(),
    );
    assert!(help.succeeded().out.contains("Usage: nodepool-launcher"));
    // Like Nodepool: without a command there is help, and it is a failure.
    let bare = Ran::from(bed.called("nodepool").output().unwrap());
    assert_ne!(bare.code, 0);
}

#[test]
fn daemons_refuse_to_guess() {
    let bed = Bed::new();
    bed.write("nodepool.yaml", "labels: []\n");
    for (name, key) in [
        ("nodepool-launcher", "`zookeeper-servers`"),
        ("nodepool-builder", "`gearman-servers`"),
    ] {
        let output = bed
            .called(name)
            .args(["-f", "-c", "nodepool.yaml"])
            .output();
        let ran = Ran::from(output.unwrap()).failed(key);
        assert!(ran.err.contains("nodeyard up"), "{}", ran.err);
    }
    let output = bed
        .called("nodepool-launcher")
        .args(["-c", "missing.yaml"])
        .output();
    Ran::from(output.unwrap()).failed("missing.yaml");
}

#[test]
fn links_are_created_once_and_never_replace_other_files() {
    let bed = Bed::new();
    let ran = bed.run(["install-links", "bin"]).succeeded();
    assert_eq!(ran.out.lines().count(), 3);
    bed.run(["install-links", "bin"]).succeeded();
    let link = bed.path("bin/nodepool");
    assert!(fs::read_link(&link).unwrap().is_absolute());

    fs::remove_file(&link).unwrap();
    fs::write(&link, "the real one").unwrap();
    bed.run(["install-links", "bin"]).failed("--force");
    assert_eq!(fs::read_to_string(&link).unwrap(), "the real one");
    bed.run(["install-links", "--force", "bin"]).succeeded();
    assert!(fs::read_link(&link).is_ok());
}

#[test]
fn completions_and_manual_pages_cover_every_program() {
    let bed = Bed::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = bed.run(["completions", shell]).succeeded().out;
        assert!(script.contains("install-links"), "{shell}");
    }
    let script = bed.run(["completions", "--program", "nodepool", "bash"]);
    assert!(script.succeeded().out.contains("config-validate"));

    bed.run(["man", "man1"]).succeeded();
    for page in [
        "nodeyard.1",
        "nodeyard-store-export.1",
        "nodepool.1",
        "nodepool-launcher.1",
        "nodepool-builder.1",
    ] {
        let text = fs::read_to_string(bed.path("man1").join(page)).expect(page);
        assert!(text.contains(".TH"), "{page}");
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let bed = Bed::new();
    let mut child = bed
        .command()
        .args(["config", "schema"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut complaints = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut complaints)
        .unwrap();
    assert_eq!(complaints, "");
    assert!(child.wait().unwrap().success());
}

#[test]
fn colours_are_for_terminals_unless_requested() {
    let bed = Bed::new();
    bed.write("bad.yaml", "lables: []\n");
    let plain = bed.run(["-c", "bad.yaml", "config", "check"]);
    assert!(!plain.err.contains('\u{1b}'));
    let coloured = bed.run(["--color", "always", "-c", "bad.yaml", "config", "check"]);
    assert!(coloured.err.contains('\u{1b}'));
}
