//! A complete Zuul runs jobs on a machine that we hand out.

use std::time::Instant;

use nodeyard_testbeds::zuul::Job;
use nodeyard_testbeds::{Sshd, ZooKeeperServer, Zuul, ZuulOptions};

use crate::bed::{nodeyard, wait_until};

const LABEL: &str = "machine";

/// Its host keys are looked up, as those of every static node are unless the configuration says otherwise.
fn one_machine(sshd: &Sshd) -> String {
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
        image: None,
    }
}

#[test]
fn from_push_to_success_and_a_failure_is_held() {
    let started = Instant::now();
    let zookeeper = ZooKeeperServer::start().unwrap();
    let sshd = Sshd::start().unwrap();
    let _launcher = nodeyard(&zookeeper, &one_machine(&sshd));
    let options = ZuulOptions {
        jobs: vec![job("fine", false), job("broken", true)],
        ssh_key: sshd.client_key(),
        ..ZuulOptions::default()
    };
    let zuul = Zuul::start(&zookeeper, &options).unwrap();
    eprintln!("Zuul serves after {:?}", started.elapsed());

    let pushed = Instant::now();
    let push = zuul.push("fine").unwrap();
    let build = zuul.wait_for_build(&push).unwrap();
    eprintln!("from push to result: {:?}", pushed.elapsed());
    assert_eq!(build.result, "SUCCESS");
    assert!(!build.held);
    let nodes = build.nodes();
    let [node] = nodes.as_slice() else {
        panic!("one node, not {nodes:?}");
    };
    assert_eq!(node.seen.hostname, sshd.hostname());
    assert_eq!(node.seen.user, sshd.username());
    assert_eq!(node.seen.label, LABEL);
    assert_eq!(node.seen.provider, "here");
    let port = format!(" {}", sshd.port());
    assert!(node.seen.ssh_connection.ends_with(&port));

    zuul.autohold("broken", "a test wants to look").unwrap();
    let push = zuul.push("broken").unwrap();
    let build = zuul.wait_for_build(&push).unwrap();
    assert_eq!(build.result, "FAILURE");
    assert_eq!(
        build.nodes().len(),
        1,
        "it failed after it had done its work on the node"
    );
    let mut held = Vec::new();
    wait_until("a node is held", || {
        held = zuul.nodes().unwrap();
        held.retain(|node| node.state == "hold");
        !held.is_empty()
    });
    assert_eq!(held[0].comment.as_deref(), Some("a test wants to look"));
    let [autohold] = zuul.autoholds().unwrap().try_into().unwrap();
    assert_eq!(autohold.nodes[0].build, build.uuid);
    assert_eq!(autohold.nodes[0].nodes, [held[0].id.clone()]);

    // The only node comes back when the hold is over, and serves the next build.
    zuul.delete_autohold(&autohold.id).unwrap();
    let push = zuul.push("fine").unwrap();
    assert_eq!(zuul.wait_for_build(&push).unwrap().result, "SUCCESS");
    eprintln!("all together: {:?}", started.elapsed());
}
