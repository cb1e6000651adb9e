//! Zuul's own client classes against Python Nodepool: what a launcher of ours has to look like from there.

use std::thread;
use std::time::{Duration, Instant};

use nodeyard_testbeds::{ClientOptions, Launcher, LauncherOptions, ZooKeeperServer, ZuulClient};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(300);

/// Nobody connects to the nodes, so they need not exist.
const STATIC_NODES: &str = "\
labels: [{name: four}, {name: single}]
providers:
  - name: here
    driver: static
    pools:
      - name: main
        nodes:
          - {name: 127.0.0.1, labels: [four], max-parallel-jobs: 4, host-key-checking: false}
          - {name: 127.0.0.2, labels: [single], host-key-checking: false}
";

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        thread::sleep(Duration::from_millis(100));
    }
}

fn node(client: &ZuulClient, id: &Value) -> Option<Value> {
    let nodes = client.nodes().unwrap();
    nodes.into_iter().find(|node| &node["id"] == id)
}

fn request_and_accept(client: &ZuulClient, label: &str) -> (String, Value) {
    let request = client.submit(&[label]).unwrap();
    assert_eq!(client.wait(&request).unwrap(), "fulfilled");
    let nodes = client.accept(&request).unwrap();
    client.use_nodes(&request).unwrap();
    (request, nodes[0]["id"].clone())
}

#[test]
fn a_client_walks_through_everything_that_zuul_does() {
    let zookeeper = ZooKeeperServer::start().unwrap();
    let _launcher = Launcher::start(&zookeeper, &LauncherOptions::python(STATIC_NODES)).unwrap();
    let options = ClientOptions {
        // Long enough for a busy machine; its end is waited for, too.
        session: Duration::from_secs(15),
        ..ClientOptions::default()
    };
    let client = ZuulClient::start(&zookeeper, &options).unwrap();

    // Two nodes at once, in use, given back.
    let pair = client.submit(&["four", "four"]).unwrap();
    assert_eq!(client.wait(&pair).unwrap(), "fulfilled");
    let nodes = client.accept(&pair).unwrap();
    assert_eq!(nodes.len(), 2);
    assert!(
        client.requests().unwrap().is_empty(),
        "accepting deletes the request"
    );
    client.use_nodes(&pair).unwrap();
    let first = node(&client, &nodes[0]["id"]).unwrap();
    assert_eq!(first["state"], "in-use");
    assert_eq!(first["locked"], true);
    client.give_back(&pair).unwrap();

    // Held, and not released before the end.
    let (held_request, held) = request_and_accept(&client, "four");
    let hold = client.hold(&held_request).unwrap();
    let record = node(&client, &held).unwrap();
    assert_eq!(record["state"], "hold");
    assert_eq!(record["locked"], false);
    assert_eq!(record["comment"], "held by a test");

    // A request that has to wait can be given another priority, and taken back.
    let (_, single) = request_and_accept(&client, "single");
    let waiting = client.submit(&["single"]).unwrap();
    wait_until("the waiting request is revised", || {
        client.revise(&waiting, 7).unwrap()
    });
    let requests = client.requests().unwrap();
    assert_eq!(requests[0]["id"], waiting.as_str());
    assert_eq!(requests[0]["relative_priority"], 7);
    client.cancel(&waiting).unwrap();
    assert!(client.requests().unwrap().is_empty());

    // A label that nobody has.
    let impossible = client.submit(&["nobody-has-this"]).unwrap();
    assert_eq!(client.wait(&impossible).unwrap(), "failed");

    // What was given back is there again, as a new record; what is held is not touched.
    wait_until("the nodes that were given back are gone", || {
        nodes
            .iter()
            .all(|returned| node(&client, &returned["id"]).is_none())
    });
    assert_eq!(node(&client, &held).unwrap()["state"], "hold");
    client.release(&hold).unwrap();
    wait_until("the released node is gone", || {
        node(&client, &held).is_none()
    });

    // A client that is away for long loses its locks, and the launcher takes the node back.
    client.disconnect().unwrap();
    let observer = ZuulClient::start(&zookeeper, &ClientOptions::default()).unwrap();
    wait_until("the node of the lost session is gone", || {
        node(&observer, &single).is_none()
    });
    assert!(client.reconnect().unwrap(), "the session is a new one");
    let (request, _) = request_and_accept(&client, "single");
    client.give_back(&request).unwrap();
    client.close().unwrap();
    observer.close().unwrap();
}

#[test]
fn a_short_interruption_does_not_cost_the_session() {
    let zookeeper = ZooKeeperServer::start().unwrap();
    let options = ClientOptions {
        session: Duration::from_secs(60),
        ..ClientOptions::default()
    };
    let client = ZuulClient::start(&zookeeper, &options).unwrap();
    let request = client.submit(&["any"]).unwrap();
    client.disconnect().unwrap();
    assert!(!client.reconnect().unwrap(), "the session is the same");
    assert_eq!(client.requests().unwrap()[0]["id"], request.as_str());
    client.close().unwrap();
}
