//! A request is served by a pod of a real cluster, and people and git reach into it.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use nodeyard_testbeds::Cluster;
use serde_json::Value;

use crate::bed::{Bed, Ran, wait_until};

fn configuration(cluster: &Cluster, bed: &Bed) -> String {
    let (state, port, image) = (bed.path("state"), bed.free_port(), cluster.image());
    let state = state.display();
    format!(
        "
state-dir: {state}
webapp: {{port: {port}, listen_address: 127.0.0.1}}
labels: [{{name: box}}]
providers:
  - name: cluster
    driver: kubernetes
    pools:
      - name: cli
        max-servers: 2
        labels:
          - {{name: box, type: pod, image: '{image}'}}
"
    )
}

fn nodes(bed: &Bed) -> Vec<Value> {
    bed.rows(&["list", "--detail"])
}

/// What a command says that gets something to read.
fn told(mut command: Command, input: &str) -> (Option<i32>, String, String) {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

/// A repository with a few megabytes that cannot be compressed.
fn repository(bed: &Bed) -> std::path::PathBuf {
    let place = bed.path("repository");
    fs::create_dir(&place).unwrap();
    let mut noise = vec![0; 8 << 20];
    let mut seed = 1_u64;
    for byte in &mut noise {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (seed >> 56) as u8;
    }
    fs::write(place.join("noise"), noise).unwrap();
    for arguments in [
        &["init", "-q", "-b", "main"][..],
        &["add", "."],
        &[
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b.example",
            "commit",
            "-q",
            "-m",
            "noise",
        ],
    ] {
        let done = Command::new("git")
            .arg("-C")
            .arg(&place)
            .args(arguments)
            .status();
        assert!(done.unwrap().success(), "{arguments:?}");
    }
    place
}

#[test]
fn a_requested_pod_is_reachable_by_exec_and_git() {
    let Some(cluster) = Cluster::start_if_possible().unwrap() else {
        return;
    };
    let mut bed = Bed::new();
    bed.set("KUBECONFIG", cluster.kubeconfig().to_str().unwrap());
    bed.write("nodepool.yaml", configuration(&cluster, &bed));
    let daemon = bed.up(&["-c", "nodepool.yaml"]);
    bed.submit(0, "box");
    let ready = || {
        nodes(&bed)
            .into_iter()
            .find(|node| node["state"] == "ready")
    };
    wait_until("a node is ready", || ready().is_some());
    let id = ready().unwrap()["id"].as_str().unwrap().to_owned();
    let namespace = format!("cli-{id}");

    let exec = |arguments: &[&str]| {
        let mut command = bed.command();
        command
            .args(["-c", "nodepool.yaml", "exec", &id, "--"])
            .args(arguments);
        command
    };
    let (code, out, err) = told(
        exec(&["sh", "-c", "cat; echo complaint >&2; exit 3"]),
        "input\n",
    );
    assert_eq!(
        (code, out.as_str(), err.as_str()),
        (Some(3), "input\n", "complaint\n")
    );

    // What the main process of the container prints.
    let (code, ..) = told(exec(&["sh", "-c", "echo from the pod > /proc/1/fd/1"]), "");
    assert_eq!(code, Some(0));
    wait_until("its log has it", || {
        let logs = bed.run(["-c", "nodepool.yaml", "logs", &id]).succeeded();
        logs.out.contains("from the pod")
    });
    let mut follow = bed.command();
    follow
        .args(["-c", "nodepool.yaml", "logs", "-f", &id])
        .stdout(Stdio::piped());
    let mut follow = follow.spawn().unwrap();
    crate::bed::read_until(&mut follow, "from the pod");
    follow.kill().unwrap();
    follow.wait().unwrap();

    let (code, ..) = told(
        exec(&["git", "init", "-q", "-b", "main", "/tmp/target"]),
        "",
    );
    assert_eq!(code, Some(0));
    let (code, ..) = told(
        exec(&[
            "git",
            "-C",
            "/tmp/target",
            "config",
            "receive.denyCurrentBranch",
            "updateInstead",
        ]),
        "",
    );
    assert_eq!(code, Some(0));
    let place = repository(&bed);
    let git = |arguments: &[&str]| {
        let program = bed.command();
        let mut command = Command::new("git");
        command
            .arg("-C")
            .arg(&place)
            .args(arguments)
            .env("KUBECONFIG", cluster.kubeconfig())
            .env("NODEPOOL_GIT_PATH", "/tmp")
            .env(
                "GIT_SSH_COMMAND",
                format!("'{}' git-exec", program.get_program().display()),
            );
        command.output().unwrap()
    };
    let remote = format!("box.{namespace}:/tmp/target");
    let pushed = git(&["push", "-q", &remote, "main"]);
    assert!(
        pushed.status.success(),
        "{}",
        String::from_utf8_lossy(&pushed.stderr)
    );
    let (_, there, _) = told(exec(&["sha256sum", "/tmp/target/noise"]), "");
    let here = Command::new("sha256sum")
        .arg(place.join("noise"))
        .output()
        .unwrap();
    let here = String::from_utf8(here.stdout).unwrap();
    assert_eq!(there.split(' ').next(), here.split(' ').next());
    // And back again.
    let fetched = git(&["fetch", "-q", &remote, "main"]);
    assert!(
        fetched.status.success(),
        "{}",
        String::from_utf8_lossy(&fetched.stderr)
    );

    // Git's own commands only, and only where they are allowed.
    let elsewhere = git(&["push", "-q", &format!("box.{namespace}:/etc"), "main"]);
    assert!(String::from_utf8_lossy(&elsewhere.stderr).contains("is not in /tmp"));
    let mut shell = bed.command();
    shell
        .args(["git-exec", &format!("box.{namespace}"), "sh -c true"])
        .env("KUBECONFIG", cluster.kubeconfig());
    let (code, _, err) = told(shell, "");
    assert_eq!(code, Some(255), "{err}");
    let missing = git(&[
        "push",
        "-q",
        &format!("nobody.{namespace}:/tmp/target"),
        "main",
    ]);
    assert!(!missing.status.success());

    let mut command = bed.called("nodepool");
    command.args(["-c", "nodepool.yaml", "delete", &id]);
    Ran::from(command.output().unwrap()).succeeded();
    wait_until("its record is gone", || nodes(&bed).is_empty());
    assert!(!cluster.has_namespace(&namespace).unwrap());
    drop(daemon);
}
