//! The test bed of a complete Zuul, shown to work with the launcher that Zuul was made for.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr
)]

use std::thread;
use std::time::{Duration, Instant};

use nodeyard_testbeds::zuul::Job;
use nodeyard_testbeds::{Launcher, LauncherOptions, Sshd, ZooKeeperServer, Zuul, ZuulOptions};

const LABEL: &str = "machine";
const PATIENCE: Duration = Duration::from_secs(60);

fn one_static_node(sshd: &Sshd) -> String {
    format!(
        "labels: [{{name: {LABEL}}}]\n\
         providers:\n\
         - name: here\n  \
           driver: static\n  \
           pools:\n  \
           - name: main\n    \
             nodes:\n    \
             - name: 127.0.0.1\n      \
               labels: [{LABEL}]\n      \
               connection-port: {port}\n      \
               username: {user}\n",
        port = sshd.port(),
        user = sshd.username(),
    )
}

fn job(name: &str, meant_to_fail: bool) -> Job {
    Job {
        name: name.to_owned(),
        labels: vec![LABEL.to_owned()],
        meant_to_fail,
    }
}

#[test]
#[ignore = "takes minutes; run by make test-zuul"]
fn from_push_to_success_and_a_failure_is_held() {
    let started = Instant::now();
    let zookeeper = ZooKeeperServer::start().unwrap();
    let sshd = Sshd::start().unwrap();
    let nodes = one_static_node(&sshd);
    let _launcher = Launcher::start(&zookeeper, &LauncherOptions::python(&nodes)).unwrap();
    let options = ZuulOptions {
        jobs: vec![job("fine", false), job("broken", true)],
        ssh_key: sshd.client_key(),
    };
    let zuul = Zuul::start(&zookeeper, &options).unwrap();
    eprintln!("Zuul serves after {:?}", started.elapsed());

    let pushed = Instant::now();
    let push = zuul.push("fine").unwrap();
    let build = zuul.wait_for_build(&push).unwrap();
    eprintln!("from push to result: {:?}", pushed.elapsed());
    assert_eq!(build.result, "SUCCESS");
    assert!(!build.held);
    let [node] = build.nodes.as_slice() else {
        panic!("one node, not {:?}", build.nodes);
    };
    assert_eq!(node.seen.hostname, sshd.hostname());
    assert_eq!(node.seen.user, sshd.username());
    assert_eq!(node.seen.label, LABEL);
    assert_eq!(node.seen.provider, "here");
    assert!(
        node.seen
            .ssh_connection
            .ends_with(&format!(" {}", sshd.port()))
    );

    zuul.autohold("broken", "a test wants to look").unwrap();
    let push = zuul.push("broken").unwrap();
    let build = zuul.wait_for_build(&push).unwrap();
    assert_eq!(build.result, "FAILURE");
    assert_eq!(
        build.nodes.len(),
        1,
        "it failed after it had done its work on the node"
    );
    let deadline = Instant::now() + PATIENCE;
    let held = loop {
        let mut held = zuul.nodes().unwrap();
        held.retain(|node| node.state == "hold");
        if let Some(node) = held.pop() {
            break node;
        }
        assert!(Instant::now() < deadline, "no node in hold");
        thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(held.comment.as_deref(), Some("a test wants to look"));
    let [autohold] = zuul.autoholds().unwrap().try_into().unwrap();
    assert_eq!(autohold.nodes[0].build, build.uuid);
    assert_eq!(autohold.nodes[0].nodes, [held.id]);

    // The only node comes back when the hold is over, and serves the next build.
    zuul.delete_autohold(&autohold.id).unwrap();
    let push = zuul.push("fine").unwrap();
    assert_eq!(zuul.wait_for_build(&push).unwrap().result, "SUCCESS");
    eprintln!("all together: {:?}", started.elapsed());
}
