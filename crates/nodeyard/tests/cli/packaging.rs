//! What is installed beside the binary.

use std::fs;
use std::path::Path;
use std::process::Command;

use nodeyard_testbeds::checkout;

use crate::bed::{Bed, Ran};

const UNITS: [&str; 3] = [
    "nodeyard.service",
    "nodepool-launcher.service",
    "nodepool-builder.service",
];

fn unit(name: &str) -> String {
    let directory = checkout().join("packaging/systemd");
    fs::read_to_string(directory.join(name)).unwrap()
}

fn value<'a>(unit: &'a str, key: &str) -> &'a str {
    let start = format!("{key}=");
    let mut lines = unit.lines();
    lines.find_map(|line| line.strip_prefix(&start)).unwrap()
}

/// None where there is no systemd, which is said loudly.
fn analyze(arguments: &[&str], files: &[String]) -> Option<Ran> {
    let mut command = Command::new("systemd-analyze");
    let output = command.args(arguments).args(files).output();
    if output.is_err() {
        let remedy = "systemd-analyze is not installed; on Debian it is in systemd";
        nodeyard_testbeds::skipped("what systemd makes of the units", remedy);
    }
    Some(Ran::from(output.ok()?))
}

#[test]
fn systemd_accepts_the_units() {
    let bed = Bed::new();
    bed.called("nodepool-launcher");
    bed.called("nodepool-builder");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_nodeyard"), bed.path("nodeyard")).unwrap();
    // It wants the program to be where the unit says.
    let here = format!("ExecStart={}/", bed.path("").display());
    let files = UNITS.map(|name| {
        let text = unit(name).replace("ExecStart=/usr/bin/", &here);
        bed.write(name, text).display().to_string()
    });
    let Some(verified) = analyze(&["verify", "--man=no"], &files) else {
        return;
    };
    let verified = verified.succeeded();
    let complaints = verified
        .err
        .lines()
        .filter(|line| line.contains(bed.path("").to_str().unwrap()));
    assert_eq!(complaints.count(), 0, "{}", verified.err);
    // In tenths, of ten: what a launcher could do to its host.
    let launcher = &files[1..2];
    let limits = ["security", "--offline=yes", "--no-pager", "--threshold=35"];
    analyze(&limits, launcher).unwrap().succeeded();
}

/// Each starts what it says, with arguments that exist.
#[test]
fn the_units_start_existing_commands() {
    let bed = Bed::new();
    for name in UNITS {
        let unit = unit(name);
        let line = value(&unit, "ExecStart").replace("/etc/nodepool/nodepool.yaml", "missing.yaml");
        let mut words = line.split(' ');
        let program = Path::new(words.next().unwrap()).file_name().unwrap();
        let mut command = bed.called(program.to_str().unwrap());
        let ran = Ran::from(command.args(words).output().unwrap());
        ran.failed("missing.yaml");
        assert_eq!(value(&unit, "User"), "nodeyard");
    }
}
