//! A first configuration, and what goes with it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use crate::bed::{Bed, Ran};

const ALL: [&str; 6] = [
    "--driver",
    "container",
    "--driver",
    "qemu",
    "--driver",
    "fake",
];

fn mode(bed: &Bed, name: &str) -> u32 {
    fs::metadata(bed.path(name)).unwrap().permissions().mode() & 0o777
}

#[test]
fn written_files_are_valid_and_the_next_steps_are_printed() {
    let bed = Bed::new();
    let said = bed.run(["init", "yard"].iter().chain(&ALL)).succeeded().out;
    assert!(said.contains("nodepool.yaml up"), "{said}");
    assert!(said.contains("request debian-vm -i "), "{said}");
    bed.run(["-c", "yard/nodepool.yaml", "config", "check"])
        .succeeded();
    assert_eq!(mode(&bed, "yard/id_ed25519"), 0o600);
    assert_eq!(mode(&bed, "yard/build-debian"), 0o755);
    let text = fs::read_to_string(bed.path("yard/nodepool.yaml")).unwrap();
    let public = fs::read_to_string(bed.path("yard/id_ed25519.pub")).unwrap();
    assert_eq!(
        text.matches(public.trim()).count(),
        2,
        "both kinds of machines know the key"
    );
    // OpenSSH reads it.
    let shown = Command::new("ssh-keygen")
        .args(["-y", "-f"])
        .arg(bed.path("yard/id_ed25519"))
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(shown.stdout).unwrap().trim(),
        public.trim()
    );
}

/// Whether a line is a part of the configuration that was made a comment, and not a sentence.
fn is_commented_out(line: &str) -> bool {
    let Some(text) = line.trim_start().strip_prefix("# ") else {
        return false;
    };
    let text = text.trim_start();
    let text = text.strip_prefix("- ").unwrap_or(text);
    let key = text.split(':').next().unwrap_or_default();
    text.starts_with('{')
        || text.starts_with("# ")
        || (text != key && key.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'))
}

#[test]
fn commented_out_examples_are_valid() {
    let bed = Bed::new();
    bed.run(["init", "yard"].iter().chain(&ALL)).succeeded();
    let written = fs::read_to_string(bed.path("yard/nodepool.yaml")).unwrap();
    let lines: Vec<&str> = written.lines().collect();
    let blocks: Vec<std::ops::Range<usize>> = (0..lines.len())
        .filter(|at| is_commented_out(lines[*at]))
        .filter(|at| *at == 0 || !is_commented_out(lines[at - 1]))
        .map(|start| {
            let rest = lines[start..].iter();
            start..start + rest.take_while(|line| is_commented_out(line)).count()
        })
        .collect();
    for begin in [
        "env-vars:",
        "cpus:",
        "warm-template:",
        "zuul-images:",
        "zookeeper-servers:",
    ] {
        let found = blocks
            .iter()
            .any(|block| lines[block.start].contains(begin));
        assert!(found, "no block begins with {begin}");
    }
    for block in blocks {
        let text: String = lines
            .iter()
            .enumerate()
            .map(|(at, line)| match block.contains(&at) {
                true => format!("{}\n", line.replacen("# ", "", 1)),
                false => format!("{line}\n"),
            })
            .collect();
        bed.write("yard/nodepool.yaml", &text);
        let checked = bed.run(["-c", "yard/nodepool.yaml", "config", "check"]);
        assert_eq!(checked.code, 0, "{}\n{checked:#?}", lines[block].join("\n"));
    }
}

#[test]
fn files_are_overwritten_only_with_force_and_the_key_never() {
    let bed = Bed::new();
    bed.run(["init", "yard", "--driver", "qemu"]).succeeded();
    let key = fs::read(bed.path("yard/id_ed25519")).unwrap();
    bed.write("yard/nodepool.yaml", "# mine\n");
    bed.run(["init", "yard"]).failed("--force");
    assert_eq!(
        fs::read(bed.path("yard/nodepool.yaml")).unwrap(),
        b"# mine\n"
    );
    bed.run(["init", "yard", "--driver", "qemu", "--force"])
        .succeeded();
    assert_eq!(fs::read(bed.path("yard/id_ed25519")).unwrap(), key);
    bed.run(["-c", "yard/nodepool.yaml", "config", "check"])
        .succeeded();
}

#[test]
fn missing_programs_are_reported_with_a_remedy() {
    let mut bed = Bed::new();
    bed.set("CONTAINER_HOST", "unix:///nowhere/podman.sock");
    let said = bed.run(["init", "yard", "--driver", "container"]);
    let said = said.succeeded().out;
    assert!(
        said.contains("no container runtime listens at /nowhere/podman.sock"),
        "{said}"
    );
    let text = fs::read_to_string(bed.path("yard/nodepool.yaml")).unwrap();
    assert!(text.contains("socket: /nowhere/podman.sock"), "{text}");

    let empty = bed.path("empty");
    fs::create_dir(&empty).unwrap();
    for (program, real) in [
        ("realpath", "/usr/bin/realpath"),
        ("dirname", "/usr/bin/dirname"),
        ("tr", "/usr/bin/tr"),
    ] {
        std::os::unix::fs::symlink(real, empty.join(program)).unwrap();
    }
    let build = |formats: &str| {
        let mut command = Command::new("/bin/sh");
        let output = command
            .arg(bed.path("yard/build-debian"))
            .env_clear()
            .env("PATH", &empty)
            .env("NODEYARD_OUTPUT", bed.path("image"))
            .env("NODEYARD_FORMATS", formats)
            .output();
        Ran::from(output.unwrap())
    };
    build("tar,vhd").failed("cannot make format vhd");
    if !["/usr/sbin/mmdebstrap", "/sbin/mmdebstrap"]
        .iter()
        .any(|path| fs::exists(path).unwrap())
    {
        build("tar").failed("apt-get install mmdebstrap");
    }
    assert!(!bed.path("image.d").exists());
}
