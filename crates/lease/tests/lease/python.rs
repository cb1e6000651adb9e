//! A launcher of Python Nodepool serves leases, and does not clean up their nodes.

use nodeyard_lease::LeasePhase;
use nodeyard_model::NodeState;
use nodeyard_store::registry::Registry;
use nodeyard_store::{TreePath, ext};
use nodeyard_testbeds::store::connect;
use nodeyard_testbeds::{Launcher, LauncherOptions, ZooKeeperServer};

use crate::bed::{HOUR, Keeping, PATIENCE, Time, ask, caller, eventually, wait_settled};

const NODES: &str = "labels: [{name: small}]\n\
     providers:\n\
     - name: theirs\n  \
       driver: static\n  \
       pools:\n  \
       - name: main\n    \
         nodes:\n    \
         - {name: 127.0.0.4, labels: [small], max-parallel-jobs: 2, host-key-checking: false}\n";

#[tokio::test(flavor = "multi_thread")]
async fn python_serves_leases_and_respects_them() {
    let zookeeper = ZooKeeperServer::start().unwrap();
    // Its safety net is what would take the nodes away.
    let options = LauncherOptions::python(NODES);
    let mut python = Launcher::start(&zookeeper, &options).unwrap();
    let session = || async {
        let tree = connect(zookeeper.port(), TreePath::root(), PATIENCE);
        ext::connected(&*tree).await.unwrap();
        tree
    };
    let time = Time::default();
    let keeping = Keeping::start(session().await, &time);
    let records = Registry::new(session().await);
    let me = caller("acme");
    let leases = &keeping.leases;
    let asked = leases
        .create(&me, &ask(&["small", "small"]), None)
        .await
        .unwrap();
    let status = wait_settled(leases, &me, asked.id).await;
    python.check().unwrap();
    assert_eq!(status.lease.phase, LeasePhase::Active, "{status:?}");
    let nodes: Vec<_> = status
        .lease
        .nodes
        .iter()
        .map(|leased| leased.node)
        .collect();

    // One node goes around once more: it was used, deleted and registered anew, while the other one stays.
    leases.release_node(&me, asked.id, nodes[0]).await.unwrap();
    let again = leases.create(&me, &ask(&["small"]), None).await.unwrap();
    let again = wait_settled(leases, &me, again.id).await;
    assert_eq!(again.lease.phase, LeasePhase::Active, "{again:?}");
    assert!(!nodes.contains(&again.lease.nodes[0].node));
    let kept = records.nodes().get(nodes[1]).await.unwrap().unwrap();
    assert_eq!(kept.value.state, NodeState::InUse);

    time.jump(HOUR);
    eventually("both nodes are free again", || async {
        let nodes = records.nodes().list().await.unwrap();
        let idle = nodes.iter().filter(|(_, node)| {
            node.value.state == NodeState::Ready && node.value.allocated_to.is_none()
        });
        (idle.count() == 2 && nodes.len() == 2).then_some(())
    })
    .await;
    keeping.service.stop().await;
    records.tree().close().await;
}
