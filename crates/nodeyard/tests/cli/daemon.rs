//! `nodepool-launcher` as a daemon: in the background, with its files, signals and logs.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use nodeyard_testbeds::ZooKeeperServer;
use serde_json::{Value, json};

use crate::bed::{Bed, Ran, wait_until};

struct Fleet {
    bed: Bed,
    _server: ZooKeeperServer,
}

impl Fleet {
    fn new() -> Self {
        let bed = Bed::new();
        let server = ZooKeeperServer::start().unwrap();
        let certificates = server.certificates();
        let pool = json!({
            "name": "main", "labels": [{"name": "small", "cloud-image": "image", "min-ram": 1}],
        });
        bed.write(
            "nodepool.yaml",
            json!({
                "zookeeper-servers": [{"host": "127.0.0.1", "port": server.tls_port()}],
                "zookeeper-tls": {
                    "ca": certificates.ca, "cert": certificates.client.cert, "key": certificates.client.key,
                },
                "webapp": {"port": bed.free_port(), "listen_address": "127.0.0.1"},
                "labels": [{"name": "small"}],
                "providers": [{
                    "name": "cloud", "driver": "fake", "cloud": "fake", "simulate": {"boot-time": 0},
                    "cloud-images": [{"name": "image", "image-name": "Fake Precise"}], "pools": [pool],
                }],
            })
            .to_string(),
        );
        Self {
            bed,
            _server: server,
        }
    }

    fn launcher(&self) -> Command {
        let mut command = self.bed.called("nodepool-launcher");
        command.args(["-c", "nodepool.yaml", "-p", "launcher.pid"]);
        command
    }

    fn request(&self) {
        self.bed
            .submit_to(&["-c", "nodepool.yaml", "store"], 0, "small");
    }
}

/// Ends the process of a pid file, whatever becomes of the test.
struct Background<'a>(&'a Path);

impl Background<'_> {
    fn signal(&self, name: &str) {
        if let Ok(pid) = fs::read_to_string(self.0) {
            let mut kill = Command::new("kill");
            kill.arg(format!("-{name}")).arg(pid.trim());
            assert!(kill.status().unwrap().success());
        }
    }
}

impl Drop for Background<'_> {
    fn drop(&mut self) {
        self.signal("KILL");
    }
}

#[test]
fn a_daemon_runs_in_the_background_until_a_signal() {
    let fleet = Fleet::new();
    let bed = &fleet.bed;
    bed.write(
        "log.yaml",
        "
version: 1
formatters: {nodepool: {class: nodepool.logconfig.MultiLineFormatter, format: '%(levelname)s %(name)s: %(message)s'}}
handlers: {file: {class: logging.handlers.WatchedFileHandler, formatter: nodepool, filename: LOG}}
root: {level: INFO, handlers: [file]}
"
        .replace("LOG", &bed.path("launcher.log").display().to_string()),
    );
    let start = || Ran::from(fleet.launcher().args(["-l", "log.yaml"]).output().unwrap());
    let log = || fs::read_to_string(bed.path("launcher.log")).unwrap_or_default();
    start().succeeded();
    let pid_file = bed.path("launcher.pid");
    let background = Background(&pid_file);
    start().failed("is running");

    fleet.request();
    let fulfilled = "[e: e-1] [node_request: 200-0000000000] request fulfilled";
    wait_until("the request is in the log", || log().contains(fulfilled));
    let log_text = log();
    let line = log_text.lines().find(|line| line.contains("node is ready"));
    let line = line.unwrap();
    assert!(
        line.starts_with("INFO nodepool.StateMachineNodeLauncher.cloud: [e: e-1] "),
        "{line}"
    );
    assert!(
        line.contains("[node_request: 200-0000000000] [node: 0000000000] "),
        "{line}"
    );

    // Rotated away: it goes on in a new file.
    fs::rename(bed.path("launcher.log"), bed.path("launcher.log.1")).unwrap();
    background.signal("HUP");
    background.signal("USR2");
    wait_until("it says what it does", || {
        log().contains("pool cloud/main accepts requests")
    });
    assert!(log().contains("INFO nodepool.stack_dump: launcher with 1 nodes"));

    background.signal("USR1");
    wait_until("it has gone", || !pid_file.exists());
}

#[test]
fn startup_errors_reach_the_terminal_and_no_files_are_left() {
    let fleet = Fleet::new();
    let bed = &fleet.bed;
    let start = |args: &[&str]| Ran::from(fleet.launcher().args(args).output().unwrap());
    bed.write(
        "log.conf",
        "[loggers]\nkeys=root\n[logger_root]\nlevel=LOUD\n",
    );
    start(&["-l", "log.conf"]).failed("LOUD");
    assert!(!bed.path("launcher.pid").exists());
    start(&["-l", "log.conf", "-p", "no/such/pid"]).failed("create its directory");
    bed.write("nodepool.yaml", "labels: []\n");
    start(&[]).failed("zookeeper-servers");
}

/// Whoever goes on without a server would try it again for ever.
#[test]
fn invalid_certificates_prevent_the_start() {
    let bed = Bed::new();
    bed.write(
        "nodepool.yaml",
        "zookeeper-servers: [{host: 127.0.0.1, port: 1}]\n\
         zookeeper-tls: {ca: /no/such/ca.pem, cert: /no/such/cert.pem, key: /no/such/key.pem}\n\
         images-dir: images\n",
    );
    let file = ["-c", "nodepool.yaml"];
    for program in ["nodepool-launcher", "nodepool-builder"] {
        let mut command = bed.called(program);
        let ran = Ran::from(command.args(file).arg("-f").output().unwrap());
        ran.failed("/no/such/ca.pem");
    }
    for command in [&["up"] as &[_], &["store", "ls"]] {
        let ran = bed.run(file.iter().chain(command));
        ran.failed("invalid `zookeeper-tls`")
            .failed("/no/such/ca.pem");
    }
}

#[test]
fn the_ids_are_fields_of_json_lines() {
    let fleet = Fleet::new();
    let mut launcher = fleet
        .launcher()
        .args(["-f", "--no-webapp"])
        .env("NODEYARD_LOG_FORMAT", "json")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    fleet.request();
    let fulfilled = crate::bed::read_until(&mut launcher, "request fulfilled");
    crate::bed::signal(&launcher, "INT");
    assert!(launcher.wait().unwrap().success());
    let mut lines = fulfilled
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let last: Value = lines.next_back().unwrap();
    assert_eq!(last["event_id"], "e-1", "{last}");
    assert_eq!(last["node_request"], "200-0000000000");
    assert_eq!(last["level"], "INFO");
    let logger = last["logger"].as_str().unwrap();
    assert!(
        logger.starts_with("nodepool.driver.NodeRequestHandler["),
        "{logger}"
    );
}
