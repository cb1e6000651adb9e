//! Machines for whoever asks: the command, leases and scopes, on real logins and on a simulated cloud.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

use nodeyard_testbeds::{Sshd, ZooKeeperServer, checkout};
use serde_json::Value;

use crate::bed::{Bed, Daemon, Ran, signal, wait_until};

/// A yard that can be asked.
struct Yard {
    bed: Bed,
    daemon: Daemon,
    port: u16,
}

impl Yard {
    fn start(providers: &str) -> Self {
        let bed = Bed::new();
        let (port, webapp) = (bed.free_port(), bed.free_port());
        let state = bed.path("state");
        let state = state.display();
        let text = format!(
            "state-dir: {state}\nwebapp: {{port: {webapp}, listen_address: 127.0.0.1}}\napi:\n  port: {port}\n  \
             tokens:\n    - {{name: ci, token: letmein-letmein-letmein-letmein, right: request, tenant: acme}}\n{providers}"
        );
        bed.write("nodepool.yaml", text);
        let daemon = bed.up(&["-c", "nodepool.yaml"]);
        daemon.wait_for_log("HTTP API");
        daemon.wait_for_log("started provider");
        Self { bed, daemon, port }
    }

    /// A cloud with these servers at most.
    fn cloud(max_servers: u32) -> Self {
        Self::start(&format!(
            "labels: [{{name: small}}, {{name: large}}]
providers:
  - name: cloud
    driver: fake
    cloud: fake
    simulate: {{boot-time: 0}}
    cloud-images: [{{name: image, image-name: Fake Precise}}]
    pools:
      - name: main
        max-servers: {max_servers}
        labels:
          - {{name: small, cloud-image: image, min-ram: 1}}
          - {{name: large, cloud-image: image, min-ram: 1}}
"
        ))
    }

    /// Machines that are really logged in to.
    fn machines(machines: &[&Sshd]) -> Self {
        let mut text = "labels: [{name: box}]\nproviders:\n  - name: rack\n    driver: static\n    pools:\n      \
             - name: main\n        nodes:\n"
            .to_owned();
        for sshd in machines {
            let (port, user) = (sshd.port(), sshd.username());
            text += &format!(
                "          - {{name: 127.0.0.1, connection-port: {port}, username: {user}, labels: [box], timeout: 60}}\n"
            );
        }
        Self::start(&text)
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.bed.run(["-c", "nodepool.yaml"].iter().chain(args))
    }

    fn json(&self, args: &[&str]) -> Value {
        let args = [&["--format", "json"], args].concat();
        self.run(&args).succeeded().json()
    }

    /// A command that goes on, with what it says in pipes.
    fn begin(&self, args: &[&str]) -> Child {
        let mut command = self.bed.command();
        command.args(["-c", "nodepool.yaml"]).args(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// Leases that have not ended.
    fn leases(&self) -> Vec<Value> {
        self.json(&["lease", "ls"]).as_array().unwrap().clone()
    }

    #[track_caller]
    fn nothing_is_leased(&self) {
        wait_until("no lease is left", || self.leases().is_empty());
    }
}

/// Reads lines until one has this text.
fn until(from: &mut impl std::io::BufRead, text: &str) -> String {
    let mut line = String::new();
    while !line.contains(text) {
        line.clear();
        assert!(
            from.read_line(&mut line).unwrap() > 0,
            "it ended before {text:?}"
        );
    }
    line
}

fn key(sshd: &Sshd) -> String {
    sshd.client_key().display().to_string()
}

#[test]
fn a_command_runs_on_a_machine_and_its_exit_code_is_returned() {
    let sshd = Sshd::start().unwrap();
    let yard = Yard::machines(&[&sshd]);
    let key = key(&sshd);
    let ran = yard.run(&["request", "box", "-i", &key, "--run", "hostname; exit 7"]);
    assert_eq!(ran.code, 7, "{ran:?}");
    assert_eq!(ran.out.trim(), sshd.hostname());
    assert!(
        ran.err.contains("ssh ") && ran.err.contains("StrictHostKeyChecking=yes"),
        "{ran:?}"
    );
    yard.nothing_is_leased();
    // Words reach the other side as they are.
    let ran = yard.run(&[
        "request", "box", "-i", &key, "--", "printf", "%s|", "a b", "$HOME", "'",
    ]);
    assert_eq!(ran.succeeded().out, "a b|$HOME|'|");
    yard.nothing_is_leased();
    let all = yard.json(&["lease", "ls", "--all"]);
    assert_eq!(all.as_array().unwrap().len(), 2);
    assert!(
        all.as_array()
            .unwrap()
            .iter()
            .all(|lease| lease["end"]["cause"] == "released")
    );
}

#[test]
fn with_several_machines_each_line_says_where_it_comes_from() {
    let machines = [Sshd::start().unwrap(), Sshd::start().unwrap()];
    let yard = Yard::machines(&[&machines[0], &machines[1]]);
    // Both let the same key in.
    for sshd in &machines {
        let public = machines[0].client_key().with_extension("pub");
        let authorized = sshd.client_key().with_file_name("authorized_keys");
        fs::copy(public, authorized).unwrap();
    }
    let script = format!(
        "echo out of $(hostname); echo oops >&2; [ $(hostname) != {} ] || exit 3",
        machines[1].hostname()
    );
    let ran = yard.run(&[
        "request",
        "box",
        "box",
        "-i",
        &key(&machines[0]),
        "--run",
        &script,
    ]);
    assert_eq!(ran.code, 3, "{ran:?}");
    let mut lines: Vec<&str> = ran.out.lines().collect();
    lines.sort_unstable();
    for sshd in &machines {
        let text = format!("] out of {}", sshd.hostname());
        assert!(lines.iter().any(|line| line.ends_with(&text)), "{ran:?}");
    }
    assert!(
        lines.iter().all(|line| line.starts_with("[box-0")),
        "{ran:?}"
    );
    assert_eq!(ran.err.matches("] oops").count(), 2, "{ran:?}");
    yard.nothing_is_leased();
}

#[test]
fn an_interrupted_command_releases_its_machines() {
    let sshd = Sshd::start().unwrap();
    let yard = Yard::machines(&[&sshd]);
    let key = key(&sshd);
    for (name, code, script) in [
        ("INT", 130, None),
        ("TERM", 143, Some("echo here; sleep 1000")),
    ] {
        let mut args = vec!["request", "box", "-i", &key];
        args.extend(script.into_iter().flat_map(|script| ["--run", script]));
        let mut child = yard.begin(&args);
        let mut out = BufReader::new(child.stdout.take().unwrap());
        if script.is_some() {
            until(&mut out, "here");
        } else {
            let line = until(&mut out, "ssh ");
            assert!(line.contains(&format!("-p {}", sshd.port())), "{line}");
        }
        assert_eq!(yard.leases().len(), 1);
        signal(&child, name);
        assert_eq!(child.wait().unwrap().code(), Some(code));
        yard.nothing_is_leased();
    }
}

#[test]
fn a_killed_command_loses_its_machines_and_a_living_one_keeps_them() {
    let yard = Yard::cloud(2);
    // So long that it is renewed in time on a busy machine, too.
    let mut kept = yard.begin(&["request", "small", "--lease", "30s"]);
    let mut lost = yard.begin(&["request", "large", "--lease", "15s"]);
    for child in [&mut kept, &mut lost] {
        let mut out = BufReader::new(child.stdout.take().unwrap());
        until(&mut out, "ssh ");
        // It may go on to print.
        child.stdout = Some(out.into_inner());
    }
    lost.kill().unwrap();
    lost.wait().unwrap();
    let expires = || {
        let leases = yard.leases();
        let kept = leases.iter().find(|lease| lease["labels"][0] == "small");
        kept.unwrap()["expires"].clone()
    };
    let first = expires();
    wait_until("the other one is renewed", || expires() != first);
    let ended = || {
        let all = yard.json(&["lease", "ls", "--all"]);
        let ended = all
            .as_array()
            .unwrap()
            .iter()
            .find(|lease| lease["phase"] == "ended");
        ended.cloned()
    };
    wait_until("the lease of the killed one ends", || ended().is_some());
    let ended = ended().unwrap();
    assert_eq!(
        (&ended["labels"][0], &ended["end"]["cause"]),
        (&"large".into(), &"expired".into())
    );
    let alive = yard.leases();
    assert_eq!(alive.len(), 1);
    assert_eq!(alive[0]["labels"][0], "small");
    signal(&kept, "INT");
    assert_eq!(kept.wait().unwrap().code(), Some(130));
    yard.nothing_is_leased();
}

#[test]
fn unserviceable_requests_are_explained() {
    let yard = Yard::cloud(1);
    let failed = yard.run(&["request", "unheard-of"]);
    failed.failed("no provider could serve its request");
    let taken = yard.json(&["request", "small", "--detach"]);
    let mut child = yard.begin(&["request", "small"]);
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("cloud/main") {
        assert!(err.read_line(&mut said).unwrap() > 0, "{said}");
    }
    signal(&child, "INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    yard.run(&["lease", "rm", taken["id"].as_str().unwrap()])
        .succeeded();
    yard.nothing_is_leased();
    let all = yard.json(&["lease", "ls", "--all"]);
    let causes: Vec<&str> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|lease| lease["end"]["cause"].as_str().unwrap())
        .collect();
    assert!(
        causes.contains(&"cancelled") && causes.contains(&"failed"),
        "{causes:?}"
    );
}

#[test]
fn leases_and_scopes_are_listed_renewed_and_ended() {
    let mut yard = Yard::cloud(4);
    yard.run(&["scope", "open", "afternoon", "--lease", "4h"])
        .succeeded();
    let detached = [
        "request",
        "small",
        "large",
        "--scope",
        "afternoon",
        "--detach",
    ];
    let lease = yard.json(&detached);
    let id = lease["id"].as_str().unwrap();
    let table = yard.run(&["lease", "ls"]).succeeded().out;
    assert!(
        table.contains(id) && table.contains("small,large"),
        "{table}"
    );
    let shown = yard.run(&["lease", "show", &id[..8]]).succeeded().out;
    assert!(
        shown.contains("ssh ") && shown.contains("afternoon"),
        "{shown}"
    );
    let renewed = yard
        .run(&["lease", "renew", id, "--lease", "2h"])
        .succeeded()
        .out;
    assert!(renewed.contains("expires at"), "{renewed}");

    // Nothing of it is in the process.
    yard.daemon.kill();
    yard.daemon = yard.bed.up(&["-c", "nodepool.yaml"]);
    yard.daemon.wait_for_log("HTTP API");
    wait_until("the scope is seen again", || {
        yard.run(&["scope", "ls"]).out.contains("afternoon")
    });
    let inventory = || yard.json(&["scope", "inventory", "afternoon"]);
    wait_until("both machines are listed", || {
        inventory()["_meta"]["hostvars"].as_object().unwrap().len() == 2
    });
    assert!(
        inventory()["large"]["hosts"][0]
            .as_str()
            .unwrap()
            .starts_with("large-")
    );

    let node = lease["nodes"][0]["id"].as_str().unwrap();
    yard.run(&["lease", "rm", id, "--node", node]).succeeded();
    yard.run(&["lease", "rm", id, "--node", "0000099999"])
        .failed("has no node");
    let scope = yard.json(&["scope", "show", "afternoon"]);
    assert_eq!(scope["nodes"].as_array().unwrap().len(), 1, "{scope}");
    yard.run(&["scope", "rm", "afternoon"]).succeeded();
    yard.nothing_is_leased();
    wait_until("the scope is gone", || {
        let scopes = yard.run(&["scope", "ls"]).succeeded();
        !scopes.out.contains("afternoon")
    });

    let waiting = yard.run(&["request", "small", "--no-wait"]).succeeded().out;
    yard.run(&["lease", "rm", waiting.trim()]).succeeded();
    yard.nothing_is_leased();
    assert_eq!(yard.daemon.terminate(), 0);
    yard.run(&["lease", "ls"]).failed("does not respond");
}

#[test]
fn leases_move_along_to_zookeeper() {
    let mut yard = Yard::cloud(1);
    let lease = yard.json(&["request", "small", "--detach"]);
    let id = lease["id"].as_str().unwrap();
    assert_eq!(yard.daemon.terminate(), 0);
    yard.bed.store(&["export", "all.jsonl"]).succeeded();
    let zookeeper = ZooKeeperServer::start().unwrap();
    let mut text = fs::read_to_string(yard.bed.path("nodepool.yaml")).unwrap();
    text += &format!(
        "zookeeper-servers: [{{host: 127.0.0.1, port: {}}}]\n",
        zookeeper.port()
    );
    yard.bed.write("zookeeper.yaml", text);
    let import = ["-c", "zookeeper.yaml", "store", "import", "all.jsonl"];
    yard.bed.run(import).succeeded();
    yard.daemon = yard.bed.start("log", ["-c", "zookeeper.yaml", "up"]);
    yard.daemon.wait_for_log("HTTP API");
    yard.daemon.wait_for_log("started provider");
    let shown = || {
        let ran = yard.run(&["--format", "json", "lease", "show", id]);
        (ran.code == 0).then(|| ran.json())
    };
    wait_until("the lease is seen", || shown().is_some());
    assert_eq!(shown().unwrap()["phase"], "active");
    // What holds the node has moved along; whoever would take it for abandoned has had the time to.
    let node = lease["nodes"][0]["id"].as_str().unwrap();
    let path = format!("/nodepool/nodes/{node}");
    let record = yard
        .bed
        .run(["-c", "zookeeper.yaml", "store", "get", &path]);
    assert_eq!(record.succeeded().json()["state"], "in-use");
    yard.run(&["lease", "rm", id]).succeeded();
    yard.nothing_is_leased();
}

#[test]
fn tokens_decide_who_one_is() {
    let yard = Yard::cloud(1);
    let url = format!("http://127.0.0.1:{}", yard.port);
    let with = |token: &str, args: &[&str]| {
        let mut command = yard.bed.command();
        command
            .args(args)
            .env("NODEYARD_API", &url)
            .env("NODEYARD_TOKEN", token);
        Ran::from(command.output().unwrap())
    };
    with("wrong", &["request", "small"]).failed("token");
    // Looking is free where there are no tenants, and never shows more than a tenant's token would.
    yard.bed
        .run(["lease", "ls", "--api", &url])
        .failed("needs a token");
    yard.bed
        .run(["request", "small", "--api", &url])
        .failed("token");
    let lease = with(
        "letmein-letmein-letmein-letmein",
        &["--format", "json", "request", "small", "--detach"],
    );
    let lease = lease.succeeded().json();
    assert_eq!(
        (&lease["tenant"], &lease["requestor"]),
        (&"acme".into(), &"ci".into())
    );
    with(
        "letmein-letmein-letmein-letmein",
        &["request", "small", "--tenant", "umbrella"],
    )
    .failed("tenant");
    with(
        "letmein-letmein-letmein-letmein",
        &["lease", "rm", lease["id"].as_str().unwrap()],
    )
    .succeeded();
    yard.nothing_is_leased();
}

#[test]
fn a_job_of_another_ci_takes_a_machine_with_curl() {
    let sshd = Sshd::start().unwrap();
    let yard = Yard::machines(&[&sshd]);
    yard.bed.write("job", "set -e\nhostname\nexit 5\n");
    let example = checkout().join("examples/shell-job.sh");
    let mut command = Command::new("sh");
    command
        .arg(example)
        .args(["box", "job"])
        .current_dir(yard.bed.path(""));
    command.env("NODEYARD_API", format!("http://127.0.0.1:{}", yard.port));
    command.env("NODEYARD_TOKEN", "letmein-letmein-letmein-letmein");
    command.env("SSH_KEY", key(&sshd));
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .unwrap();
    let mut err = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut err)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5), "{err}");
    assert_eq!(out.trim(), sshd.hostname(), "{err}");
    yard.nothing_is_leased();
}
