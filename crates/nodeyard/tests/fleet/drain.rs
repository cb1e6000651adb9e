//! Draining in a fleet: ours obeys and finishes what it has begun, and Python's launcher is named as deaf.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use nodeyard_testbeds::{Launcher, LauncherOptions, ZooKeeperServer};
use serde_json::Value;

use crate::bed::{LONG_SESSION, client, nodeyard, request, take, wait_for_idle, wait_until};

fn pool(provider: &str, address: &str) -> String {
    format!(
        "labels: [{{name: small}}]\n\
         providers:\n\
         - name: {provider}\n  \
           driver: static\n  \
           pools:\n  \
           - name: main\n    \
             nodes: [{{name: {address}, labels: [small], host-key-checking: false}}]\n"
    )
}

fn command(launcher: &Launcher, args: &[&str]) -> Command {
    let mut command = Command::new(Path::new(env!("CARGO_BIN_EXE_nodeyard")));
    command
        .arg("-c")
        .arg(launcher.log().with_file_name("nodepool.yaml"));
    command.args(["--format", "json"]).args(args);
    command
}

fn run(launcher: &Launcher, args: &[&str]) -> (i32, Value) {
    answer(&command(launcher, args).output().unwrap())
}

fn answer(output: &Output) -> (i32, Value) {
    let document = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.code().unwrap(), document)
}

fn start(launcher: &Launcher, args: &[&str]) -> Child {
    let mut command = command(launcher, args);
    command.stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_drain_waits_for_the_job_and_then_ends() {
    let zookeeper = ZooKeeperServer::start().unwrap();
    let launcher = nodeyard(&zookeeper, &pool("ours", "127.0.0.2"));
    let zuul = client(&zookeeper);
    wait_for_idle(&zuul, 1);
    let job = zuul.submit(&["small"]).unwrap();
    take(&zuul, &job);

    let drain = ["drain", "label", "small"];
    let (code, left) = run(&launcher, &drain);
    assert_eq!(
        (code, &left["nodes"][0]["state"]),
        (3, &"in-use".into()),
        "{left}"
    );
    let late = zuul.submit(&["small"]).unwrap();
    let waiting = start(&launcher, &["drain", "label", "small", "--wait"]);
    zuul.give_back(&job).unwrap();
    let (code, left) = answer(&waiting.wait_with_output().unwrap());
    assert_eq!((code, &left["drained"]), (0, &true.into()), "{left}");
    assert_eq!(left["waiting"][0].as_str(), Some(&*late));
    wait_until("the node that was used is registered anew", || {
        run(&launcher, &drain).1["idle"].as_array().unwrap().len() == 1
    });
    assert_eq!(request(&zuul, &late).unwrap()["state"], "requested");

    assert_eq!(run(&launcher, &["undrain", "label", "small"]).0, 0);
    take(&zuul, &late);
    zuul.close().unwrap();
}

#[test]
fn a_python_launcher_is_reported_as_accepting() {
    let zookeeper = ZooKeeperServer::start().unwrap();
    let ours = nodeyard(&zookeeper, &pool("ours", "127.0.0.2"));
    let theirs = pool("theirs", "127.0.0.3");
    let options = LauncherOptions::python(&theirs).session(LONG_SESSION);
    let _python = Launcher::start(&zookeeper, &options).unwrap();
    let zuul = client(&zookeeper);
    wait_for_idle(&zuul, 2);
    wait_until("our launcher has noticed", || {
        run(&ours, &["drain", "provider", "ours"]).0 == 0
    });
    let (code, left) = run(&ours, &["drain", "provider", "theirs"]);
    assert_eq!(code, 3, "{left}");
    let accepting = left["accepting"][0].as_str().unwrap();
    assert!(accepting.contains("PoolWorker.theirs-main-"), "{accepting}");
    zuul.close().unwrap();
}
