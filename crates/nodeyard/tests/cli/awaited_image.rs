//! Requests at once after the start, while the image of their label is still being built.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use nodeyard_testbeds::executable;

use crate::bed::{Bed, Daemon, Ran, wait_until};

/// A program that makes the image as soon as there is a file `go`, fails while there is one `broken`, and says how far
/// it is.
const PROGRAM: &str = r#"#!/bin/sh
echo "nodeyard: progress 1/4"
while [ ! -e "$HOME/go" ]; do sleep 0.1; done
[ ! -e "$HOME/broken" ] || exit 3
for format in $(echo "$NODEYARD_FORMATS" | tr , ' '); do echo x > "$NODEYARD_OUTPUT.$format"; done
"#;

fn bed() -> Bed {
    let mut bed = Bed::new();
    bed.set("PATH", "/usr/bin:/bin");
    let program = bed.path("make-image");
    executable(&program, PROGRAM).unwrap();
    let (api, webapp) = (bed.free_port(), bed.free_port());
    bed.write(
        "nodepool.yaml",
        format!(
            "
state-dir: state
images-dir: images
build-log-dir: logs
images-dir-reserve: 0
image-size-estimate: 1M
webapp: {{port: {webapp}, listen_address: 127.0.0.1}}
api: {{port: {api}}}
diskimages: [{{name: debian, builder: command, command: {}}}]
labels: [{{name: small}}]
providers:
  - name: cloud
    driver: fake
    simulate: {{boot-time: 0}}
    diskimages: [{{name: debian}}]
    pools: [{{name: main, labels: [{{name: small, diskimage: debian, min-ram: 1}}]}}]
",
            program.display()
        ),
    );
    bed
}

fn up(bed: &Bed) -> Daemon {
    let daemon = bed.start("log", ["-c", "nodepool.yaml", "up"]);
    daemon.wait_for_log("HTTP API");
    daemon
}

fn run(bed: &Bed, args: &[&str]) -> Ran {
    bed.run(["-c", "nodepool.yaml"].iter().chain(args))
}

#[test]
fn a_request_waits_for_the_first_build_and_gets_its_machine() {
    let bed = bed();
    let _daemon = up(&bed);
    let mut command = bed.command();
    command.args(["-c", "nodepool.yaml", "request", "small", "--detach"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("is being built (build ") || !said.contains("25 % done") {
        assert!(err.read_line(&mut said).unwrap() > 0, "{said}");
    }
    fs::write(bed.path("go"), "").unwrap();
    assert!(child.wait().unwrap().success());
    let leases = run(&bed, &["--format", "json", "lease", "ls"]);
    assert_eq!(leases.succeeded().json()[0]["phase"], "active");
}

#[test]
fn a_request_for_a_paused_image_reports_it() {
    let bed = bed();
    let _daemon = up(&bed);
    fs::write(bed.path("broken"), "").unwrap();
    let waiting = run(&bed, &["request", "small", "--no-wait"]).succeeded();
    let lease = waiting.out.trim().to_owned();
    let explain = || run(&bed, &["explain", &lease]).out;
    wait_until("the build is named", || {
        explain().contains("is being built (build ")
    });
    run(&bed, &["image", "pause", "debian"]).succeeded();
    fs::write(bed.path("go"), "").unwrap();
    let why = "image debian of label small is not available: it is paused; resume with `nodeyard image unpause debian`";
    wait_until("the lease has failed", || explain().contains(why));
    run(&bed, &["request", "small"]).failed(why);
}
