//! Zuul's own client classes do everything that Zuul does to a launcher.

use std::collections::BTreeSet;
use std::time::Duration;

use nodeyard_testbeds::{ClientOptions, ZooKeeperServer, ZuulClient};
use serde_json::json;

use crate::bed::{client, node, nodeyard, request, take, wait_for_idle, wait_until};

/// Nobody connects to the nodes, so they need not exist.
const NODES: &str = "\
labels: [{name: four}, {name: single}]
providers:
  - name: here
    driver: static
    pools:
      - name: main
        node-attributes: {executor-zone: here}
        nodes:
          - name: 127.0.0.1
            labels: [four]
            max-parallel-jobs: 4
            connection-port: 2222
            username: worker
            host-key-checking: false
            host-key: ssh-ed25519 AAAA
  - name: there
    driver: static
    pools:
      - name: other
        nodes:
          - {name: 127.0.0.2, labels: [single], host-key-checking: false}
";

#[test]
fn nodes_are_requested_used_and_given_back() {
    let zookeeper = ZooKeeperServer::start().unwrap();
    let _launcher = nodeyard(&zookeeper, NODES);
    let zuul = client(&zookeeper);
    wait_for_idle(&zuul, 5);

    let pair = zuul.submit(&["four", "four"]).unwrap();
    assert_eq!(zuul.wait(&pair).unwrap(), "fulfilled");
    let nodes = zuul.accept(&pair).unwrap();
    assert_eq!(nodes.len(), 2);
    assert_ne!(nodes[0]["id"], nodes[1]["id"]);
    for node in &nodes {
        assert_eq!(node["allocated_to"], pair.as_str());
        assert_eq!(node["provider"], "here");
        assert_eq!(node["interface_ip"], "127.0.0.1");
        assert_eq!(node["connection_port"], 2222);
        assert_eq!(node["username"], "worker");
        assert_eq!(node["host_keys"], json!(["ssh-ed25519 AAAA"]));
        assert_eq!(node["attributes"], json!({"executor-zone": "here"}));
    }
    assert_eq!(request(&zuul, &pair), None);

    zuul.use_nodes(&pair).unwrap();
    let used = node(&zuul, &nodes[0]["id"]).unwrap();
    assert_eq!(used["state"], "in-use");
    assert_eq!(used["locked"], true);
    zuul.give_back(&pair).unwrap();
    wait_until("the nodes that were given back are gone", || {
        nodes.iter().all(|old| node(&zuul, &old["id"]).is_none())
    });
    // Their places are free again, as new records.
    wait_for_idle(&zuul, 5);
    zuul.close().unwrap();
}

#[test]
fn a_node_that_zuul_did_not_use_is_handed_out_again() {
    let zookeeper = ZooKeeperServer::start().unwrap();
    let _launcher = nodeyard(&zookeeper, NODES);
    let zuul = client(&zookeeper);
    let first = zuul.submit(&["single"]).unwrap();
    assert_eq!(zuul.wait(&first).unwrap(), "fulfilled");
    let nodes = zuul.accept(&first).unwrap();
    zuul.give_back(&first).unwrap();

    let second = zuul.submit(&["single"]).unwrap();
    assert_eq!(take(&zuul, &second)[0]["id"], nodes[0]["id"]);
    zuul.give_back(&second).unwrap();
    wait_for_idle(&zuul, 5);
    zuul.close().unwrap();
}

#[test]
fn a_held_node_stays_until_it_is_released() {
    let zookeeper = ZooKeeperServer::start().unwrap();
    let _launcher = nodeyard(&zookeeper, NODES);
    let zuul = client(&zookeeper);
    let held = zuul.submit(&["single"]).unwrap();
    let id = take(&zuul, &held)[0]["id"].clone();
    let hold = zuul.hold(&held).unwrap();
    let waiting = zuul.submit(&["single"]).unwrap();

    // Others come and go meanwhile.
    for _ in 0..5 {
        let other = zuul.submit(&["four"]).unwrap();
        take(&zuul, &other);
        zuul.give_back(&other).unwrap();
    }
    let record = node(&zuul, &id).unwrap();
    assert_eq!(record["state"], "hold");
    assert_eq!(record["locked"], false);
    assert_eq!(record["comment"], "held by a test");
    assert_ne!(request(&zuul, &waiting).unwrap()["state"], "fulfilled");

    zuul.release(&hold).unwrap();
    take(&zuul, &waiting);
    assert_eq!(node(&zuul, &id), None);
    zuul.give_back(&waiting).unwrap();
    wait_for_idle(&zuul, 5);
    zuul.close().unwrap();
}

#[test]
fn waiting_requests_change_places_and_go_away() {
    let zookeeper = ZooKeeperServer::start().unwrap();
    let _launcher = nodeyard(&zookeeper, NODES);
    let zuul = client(&zookeeper);
    let first = zuul.submit(&["single"]).unwrap();
    take(&zuul, &first);

    let slow = zuul.submit(&["single"]).unwrap();
    let gone = zuul.submit(&["single"]).unwrap();
    let fast = zuul.submit(&["single"]).unwrap();
    // A launcher that works on a request has its lock for a moment.
    wait_until("the first in line becomes the last", || {
        zuul.revise(&slow, 9).unwrap()
    });
    zuul.cancel(&gone).unwrap();

    zuul.give_back(&first).unwrap();
    take(&zuul, &fast);
    assert_ne!(request(&zuul, &slow).unwrap()["state"], "fulfilled");
    zuul.give_back(&fast).unwrap();
    take(&zuul, &slow);
    zuul.give_back(&slow).unwrap();
    assert_eq!(request(&zuul, &gone), None);
    wait_for_idle(&zuul, 5);
    zuul.close().unwrap();
}

#[test]
fn a_fulfilled_request_that_is_cancelled_frees_its_nodes() {
    let zookeeper = ZooKeeperServer::start().unwrap();
    let _launcher = nodeyard(&zookeeper, NODES);
    let zuul = client(&zookeeper);
    let cancelled = zuul.submit(&["single"]).unwrap();
    assert_eq!(zuul.wait(&cancelled).unwrap(), "fulfilled");
    zuul.cancel(&cancelled).unwrap();
    let next = zuul.submit(&["single"]).unwrap();
    take(&zuul, &next);
    zuul.give_back(&next).unwrap();
    wait_for_idle(&zuul, 5);
    zuul.close().unwrap();
}

#[test]
fn what_nobody_has_fails_when_every_pool_has_declined() {
    let zookeeper = ZooKeeperServer::start().unwrap();
    let _launcher = nodeyard(&zookeeper, NODES);
    let zuul = client(&zookeeper);
    wait_for_idle(&zuul, 5);
    for labels in [&["nobody-has-this"][..], &["four", "single"]] {
        let impossible = zuul.submit(labels).unwrap();
        assert_eq!(zuul.wait(&impossible).unwrap(), "failed", "{labels:?}");
        let record = request(&zuul, &impossible).unwrap();
        let declined: BTreeSet<_> = record["declined_by"]
            .as_array()
            .unwrap()
            .iter()
            .map(|id| id.as_str().unwrap())
            .collect();
        assert_eq!(declined.len(), 2, "{declined:?}");
        for pool in ["PoolWorker.here-main-", "PoolWorker.there-other-"] {
            assert!(declined.iter().any(|id| id.contains(pool)), "{declined:?}");
        }
        zuul.cancel(&impossible).unwrap();
    }
    zuul.close().unwrap();
}

#[test]
fn the_nodes_of_a_lost_session_come_back() {
    let zookeeper = ZooKeeperServer::start().unwrap();
    let _launcher = nodeyard(&zookeeper, NODES);
    let options = ClientOptions {
        // Long enough to be given a node on a busy machine.
        session: Duration::from_secs(15),
        ..ClientOptions::default()
    };
    let zuul = ZuulClient::start(&zookeeper, &options).unwrap();
    let observer = client(&zookeeper);
    let lost = zuul.submit(&["single"]).unwrap();
    let id = take(&zuul, &lost)[0]["id"].clone();

    zuul.disconnect().unwrap();
    wait_until("the node of the lost session is gone", || {
        node(&observer, &id).is_none()
    });
    assert!(zuul.reconnect().unwrap(), "the session is a new one");
    let again = zuul.submit(&["single"]).unwrap();
    take(&zuul, &again);
    zuul.give_back(&again).unwrap();
    wait_for_idle(&observer, 5);
}
