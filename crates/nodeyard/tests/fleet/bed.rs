//! Launchers and what tests see through the eyes of Zuul.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nodeyard_testbeds::{ClientOptions, Launcher, LauncherOptions, ZooKeeperServer, ZuulClient};
use serde_json::Value;

/// So long that only a hang exceeds it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(900);

/// No session ends because the machine is busy.
pub(crate) const LONG_SESSION: Duration = Duration::from_secs(60);

pub(crate) fn nodeyard(zookeeper: &ZooKeeperServer, configuration: &str) -> Launcher {
    nodeyard_with(zookeeper, configuration, LONG_SESSION)
}

pub(crate) fn nodeyard_with(
    zookeeper: &ZooKeeperServer,
    configuration: &str,
    session: Duration,
) -> Launcher {
    let binary = Path::new(env!("CARGO_BIN_EXE_nodeyard"));
    let options = LauncherOptions::nodeyard(binary, configuration).session(session);
    Launcher::start(zookeeper, &options).unwrap()
}

pub(crate) fn client(zookeeper: &ZooKeeperServer) -> ZuulClient {
    let options = ClientOptions {
        session: LONG_SESSION,
        ..ClientOptions::default()
    };
    ZuulClient::start(zookeeper, &options).unwrap()
}

#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

pub(crate) fn node(client: &ZuulClient, id: &Value) -> Option<Value> {
    let nodes = client.nodes().unwrap();
    nodes.into_iter().find(|node| &node["id"] == id)
}

pub(crate) fn request(client: &ZuulClient, id: &str) -> Option<Value> {
    let requests = client.requests().unwrap();
    requests.into_iter().find(|request| request["id"] == id)
}

/// Waits for the nodes of a request and begins to use them.
#[track_caller]
pub(crate) fn take(client: &ZuulClient, request: &str) -> Vec<Value> {
    assert_eq!(client.wait(request).unwrap(), "fulfilled");
    let nodes = client.accept(request).unwrap();
    client.use_nodes(request).unwrap();
    nodes
}

/// Uses and gives back the nodes of all requests, each as soon as it is fulfilled: requests may pass each other, and
/// those behind wait for the nodes of those in front.
#[track_caller]
pub(crate) fn run_all(client: &ZuulClient, mut requests: Vec<(String, usize)>) {
    wait_until("all requests are served", || {
        for record in client.requests().unwrap() {
            assert_ne!(record["state"], "failed", "{record}");
            let mine = requests.iter().position(|(id, _)| record["id"] == **id);
            if let (Some(index), "fulfilled") = (mine, record["state"].as_str().unwrap()) {
                let (id, count) = requests.swap_remove(index);
                assert_eq!(take(client, &id).len(), count);
                client.give_back(&id).unwrap();
            }
        }
        requests.is_empty()
    });
}

/// Waits until so many nodes are ready, nobody's, and all that there are.
#[track_caller]
pub(crate) fn wait_for_idle(client: &ZuulClient, count: usize) {
    wait_until(&format!("{count} nodes and no more are idle"), || {
        let nodes = client.nodes().unwrap();
        let idle = |node: &Value| {
            node["state"] == "ready" && node["allocated_to"].is_null() && node["locked"] == false
        };
        nodes.len() == count && nodes.iter().all(idle)
    });
}
