//! `kill -9` of our launcher, at any moment: another one goes on, and nothing is lost or given twice.

use std::thread;
use std::time::Duration;

use nodeyard_testbeds::{Launcher, ZooKeeperServer};
use serde_json::Value;

use crate::bed::{client, node, nodeyard_with, request, run_all, take, wait_for_idle, wait_until};

/// Short, since its end is what others wait for when a launcher was killed.
const SESSION: Duration = Duration::from_secs(4);
const NODES: &str = "\
labels: [{name: small}]
providers:
  - name: here
    driver: static
    pools:
      - name: main
        nodes:
          - {name: 127.0.0.1, labels: [small], max-parallel-jobs: 3, host-key-checking: false}
";

fn launcher(zookeeper: &ZooKeeperServer) -> Launcher {
    nodeyard_with(zookeeper, NODES, SESSION)
}

#[test]
fn requests_and_nodes_outlive_their_launcher() {
    let zookeeper = ZooKeeperServer::start().unwrap();
    let first = launcher(&zookeeper);
    let zuul = client(&zookeeper);
    wait_for_idle(&zuul, 3);
    let in_use = zuul.submit(&["small"]).unwrap();
    let used = take(&zuul, &in_use);
    let fulfilled = zuul.submit(&["small"]).unwrap();
    assert_eq!(zuul.wait(&fulfilled).unwrap(), "fulfilled");
    let waiting = zuul.submit(&["small", "small"]).unwrap();
    first.kill();

    // Zuul goes on meanwhile: what it has it can use and give back.
    let accepted = zuul.accept(&fulfilled).unwrap();
    zuul.use_nodes(&fulfilled).unwrap();
    zuul.give_back(&in_use).unwrap();
    let late = zuul.submit(&["small"]).unwrap();
    let cancelled = zuul.submit(&["small"]).unwrap();
    zuul.cancel(&cancelled).unwrap();
    assert_eq!(node(&zuul, &used[0]["id"]).unwrap()["state"], "used");

    let _second = launcher(&zookeeper);
    wait_until("the other launcher has begun to clean up", || {
        node(&zuul, &used[0]["id"]).is_none()
    });
    let still: Value = node(&zuul, &accepted[0]["id"]).unwrap();
    assert_eq!(still["state"], "in-use");
    assert_eq!(still["locked"], true);
    zuul.give_back(&fulfilled).unwrap();
    run_all(&zuul, vec![(waiting, 2), (late, 1)]);
    assert_eq!(request(&zuul, &cancelled), None);
    wait_for_idle(&zuul, 3);
    zuul.close().unwrap();
}

#[test]
fn everything_is_served_while_launchers_are_killed() {
    const KILLS: usize = 4;
    let zookeeper = ZooKeeperServer::start().unwrap();
    let zuul = client(&zookeeper);
    thread::scope(|threads| {
        let killer = threads.spawn(|| {
            for kill in 0..KILLS {
                let launcher = launcher(&zookeeper);
                // Anywhere between its start and its work; the session of the last one may still be there.
                thread::sleep(Duration::from_millis(900 + 700 * kill as u64));
                launcher.kill();
            }
            launcher(&zookeeper)
        });
        let submit = |count| (zuul.submit(&["small"; 3][..count]).unwrap(), count);
        loop {
            let last = killer.is_finished();
            run_all(&zuul, vec![submit(2), submit(1), submit(3)]);
            if last {
                break;
            }
        }
        wait_for_idle(&zuul, 3);
        drop(killer.join().unwrap());
    });
    assert_eq!(zuul.requests().unwrap(), Vec::<Value>::new());
    zuul.close().unwrap();
}
