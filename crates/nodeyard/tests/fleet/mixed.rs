//! One Python launcher and one of ours on the same ZooKeeper.

use std::collections::BTreeSet;

use nodeyard_testbeds::{Launcher, LauncherOptions, ZooKeeperServer, ZuulClient};
use serde_json::Value;

use crate::bed::{
    LONG_SESSION, client, nodeyard, request, run_all, take, wait_for_idle, wait_until,
};

const EACH: usize = 4;

struct Mixed {
    zookeeper: ZooKeeperServer,
    _ours: Launcher,
    python: Launcher,
}

/// A provider with nodes that both have and nodes that only this one has.
fn nodes(provider: &str, address: &str) -> String {
    format!(
        "labels: [{{name: shared}}, {{name: only-{provider}}}]\n\
         providers:\n\
         - name: {provider}\n  \
           driver: static\n  \
           pools:\n  \
           - name: main\n    \
             nodes:\n    \
             - {{name: {address}, labels: [shared], max-parallel-jobs: {EACH}, host-key-checking: false}}\n    \
             - {{name: {address}0, labels: [only-{provider}], host-key-checking: false}}\n"
    )
}

fn start() -> (Mixed, ZuulClient) {
    let zookeeper = ZooKeeperServer::start().unwrap();
    let ours = nodeyard(&zookeeper, &nodes("ours", "127.0.0.2"));
    let theirs = nodes("theirs", "127.0.0.3");
    let options = LauncherOptions::python(&theirs).session(LONG_SESSION);
    let python = Launcher::start(&zookeeper, &options).unwrap();
    let zuul = client(&zookeeper);
    wait_for_idle(&zuul, 2 * (EACH + 1));
    let mixed = Mixed {
        zookeeper,
        _ours: ours,
        python,
    };
    (mixed, zuul)
}

fn provider(nodes: &[Value]) -> &str {
    nodes[0]["provider"].as_str().unwrap()
}

#[test]
fn both_serve_and_no_node_is_given_twice() {
    let (mixed, zuul) = start();
    for name in ["ours", "theirs"] {
        let request = zuul.submit(&[&format!("only-{name}")]).unwrap();
        assert_eq!(provider(&take(&zuul, &request)), name);
        zuul.give_back(&request).unwrap();
    }

    // As many as there are, so that each has to give all it has.
    for _ in 0..2 {
        let label = || zuul.submit(&["shared"]).unwrap();
        let requests: Vec<String> = std::iter::repeat_with(label).take(2 * EACH).collect();
        let mut ids = BTreeSet::new();
        let mut ours = 0;
        for request in &requests {
            let nodes = take(&zuul, request);
            assert!(
                ids.insert(nodes[0]["id"].to_string()),
                "{} was given twice",
                nodes[0]
            );
            ours += usize::from(provider(&nodes) == "ours");
        }
        assert_eq!(ours, EACH);
        for request in &requests {
            zuul.give_back(request).unwrap();
        }
    }

    // All nodes of a request are of one provider, whoever serves it.
    let group = zuul.submit(&["shared"; EACH]).unwrap();
    let nodes = take(&zuul, &group);
    assert!(
        nodes
            .iter()
            .all(|node| node["provider"] == nodes[0]["provider"])
    );
    zuul.give_back(&group).unwrap();
    wait_for_idle(&zuul, 2 * (EACH + 1));
    zuul.close().unwrap();
    drop(mixed);
}

#[test]
fn two_zuuls_compete_for_the_nodes_of_two_launchers() {
    let (mixed, zuul) = start();
    let other = client(&mixed.zookeeper);
    std::thread::scope(|threads| {
        for zuul in [&zuul, &other] {
            threads.spawn(|| {
                // Zuul checks that each node is allocated to its request, and locks it.
                for round in 0..2 {
                    let submit = |number: usize| {
                        let count = 1 + (number + round) % 3;
                        (zuul.submit(&["shared"; 3][..count]).unwrap(), count)
                    };
                    run_all(zuul, (0..4).map(submit).collect());
                }
            });
        }
    });
    wait_for_idle(&zuul, 2 * (EACH + 1));
    zuul.close().unwrap();
    other.close().unwrap();
}

#[test]
fn the_impossible_fails_only_when_both_have_declined() {
    let (mixed, zuul) = start();
    mixed.python.pause();
    let impossible = zuul.submit(&["nobody-has-this"]).unwrap();
    let declined_by = |pool: &str| {
        let record = request(&zuul, &impossible).unwrap();
        let pools = record["declined_by"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        pools.iter().any(|id| id.as_str().unwrap().contains(pool))
    };
    wait_until("ours has declined", || declined_by("PoolWorker.ours-main-"));
    assert_eq!(request(&zuul, &impossible).unwrap()["state"], "requested");
    mixed.python.resume();
    assert_eq!(zuul.wait(&impossible).unwrap(), "failed");
    assert!(declined_by("PoolWorker.theirs-main-"));
    zuul.close().unwrap();
}
