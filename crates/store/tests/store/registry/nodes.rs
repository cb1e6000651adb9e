//! Nodes, as the launcher uses them.

use std::sync::Arc;

use bytes::Bytes;
use nodeyard_model::{Node, NodeId, NodeState};
use nodeyard_store::registry::{Attempt, Patience, Registry};
use nodeyard_store::{CreateMode, Error, Version};

use crate::registry::{at, bed, names, node, p};

#[tokio::test]
async fn a_write_after_the_lock_is_lost_has_no_effect() {
    let bed = bed();
    let losing = Registry::new(bed.store.session());
    let (id, _) = losing.nodes().create(&node()).await.unwrap();
    let held = losing
        .nodes()
        .lock(id, Patience::None)
        .await
        .unwrap()
        .held()
        .unwrap();
    losing.tree().close().await;
    losing
        .nodes()
        .store(&held.guard, id, &held.value)
        .await
        .unwrap_err();
    let taken = bed
        .registry
        .nodes()
        .lock(id, Patience::None)
        .await
        .unwrap()
        .held()
        .unwrap();
    assert_eq!(taken.stat.version, 0);
}

#[tokio::test]
async fn a_node_goes_through_its_life() {
    let bed = bed();
    let nodes = bed.registry.nodes();
    let view = nodes.view().unwrap();
    let (id, stat) = nodes.create(&node()).await.unwrap();
    assert_eq!(id.to_string(), "0000000000");
    view.wrote(id, Arc::new(node()), stat);
    assert_eq!(view.get(&id).unwrap().value.state, NodeState::Init);
    let mut held = nodes
        .lock(id, Patience::None)
        .await
        .unwrap()
        .held()
        .unwrap();
    held.value.set_state(NodeState::Building, at(2.0));
    nodes.store(&held.guard, id, &held.value).await.unwrap();
    view.synced().await.unwrap();
    let shown = view.get(&id).unwrap();
    assert_eq!(
        (shown.value.state, shown.locked),
        (NodeState::Building, true)
    );
    nodes.delete(id, held, at(3.0)).await.unwrap();
    view.synced().await.unwrap();
    assert!(view.is_empty());
    assert_eq!(nodes.get(id).await.unwrap(), None);
    assert_eq!(names(&bed.registry, "/nodepool/nodes").await, [""; 0]);
    assert!(matches!(
        nodes.lock(id, Patience::None).await.unwrap(),
        Attempt::Gone
    ));
    assert_eq!(
        names(&bed.registry, "/nodepool/nodes").await,
        [""; 0],
        "not brought back"
    );
}

#[tokio::test]
async fn empty_and_partially_deleted_nodes_are_removed_when_locked() {
    let bed = bed();
    let nodes = bed.registry.nodes();
    let tree = bed.registry.tree();
    let mut deleted = node();
    deleted.set_state(NodeState::Deleted, at(2.0));
    let nobodys = Node::init(at(1.0));
    for remnant in [deleted, nobodys] {
        let (id, _) = nodes.create(&remnant).await.unwrap();
        assert!(matches!(
            nodes.lock(id, Patience::None).await.unwrap(),
            Attempt::Gone
        ));
        assert_eq!(nodes.get(id).await.unwrap(), None);
    }
    // What a Python locker leaves of a node that was deleted under it.
    let ghost: NodeId = "0000000077".parse().unwrap();
    nodeyard_store::ext::ensure_path(&**tree, &p("/nodepool/nodes/0000000077/lock"))
        .await
        .unwrap();
    assert_eq!(nodes.get(ghost).await.unwrap(), None);
    assert_eq!(nodes.list().await.unwrap(), []);
    assert!(matches!(
        nodes.lock(ghost, Patience::None).await.unwrap(),
        Attempt::Gone
    ));
    assert_eq!(names(&bed.registry, "/nodepool/nodes").await, [""; 0]);
}

#[tokio::test]
async fn a_backing_node_stays_locked_over_a_restart() {
    let bed = bed();
    let before = Registry::new(bed.store.session());
    let (id, _) = before.nodes().create(&node()).await.unwrap();
    let owner = "NodePool:metastatic:meta";
    let held = before
        .nodes()
        .lock_for_good(id, owner, Patience::None)
        .await
        .unwrap();
    drop(held);
    before.locks().settled().await;
    before.tree().close().await;
    let nodes = bed.registry.nodes();
    assert!(matches!(
        nodes.lock(id, Patience::None).await.unwrap(),
        Attempt::Busy
    ));
    let lock = nodes.lock_of(id).unwrap();
    let holder = &lock.contenders().await.unwrap()[0];
    assert_eq!(holder.identifier, owner);
    let tree = bed.registry.tree();
    tree.delete(&holder.path, Version::Any).await.unwrap();
    assert!(
        nodes
            .lock(id, Patience::None)
            .await
            .unwrap()
            .held()
            .is_some()
    );
}

#[tokio::test]
async fn malformed_records_are_reported_and_kept() {
    let bed = bed();
    let nodes = bed.registry.nodes();
    let (good, _) = nodes.create(&node()).await.unwrap();
    let (bad, _) = nodes.create(&node()).await.unwrap();
    let path = p(&format!("/nodepool/nodes/{bad}"));
    bed.registry
        .tree()
        .set(&path, "{".into(), Version::Any)
        .await
        .unwrap();
    let listed: Vec<_> = nodes
        .list()
        .await
        .unwrap()
        .into_iter()
        .map(|(id, _)| id)
        .collect();
    assert_eq!(listed, [good]);
    let error = nodes.lock(bad, Patience::None).await.unwrap_err();
    assert!(
        matches!(&error, Error::Malformed { path: named, .. } if *named == path),
        "{error:?}"
    );
    // The lock is free again, and the record is still there.
    assert_eq!(nodes.lock_of(bad).unwrap().contenders().await.unwrap(), []);
    assert_eq!(bed.registry.tree().get(&path).await.unwrap().data, "{");
}

#[tokio::test]
async fn what_is_not_an_id_is_not_listed() {
    let bed = bed();
    let nodes = bed.registry.nodes();
    nodes.create(&node()).await.unwrap();
    for name in ["junk", "12", "lock"] {
        let path = p("/nodepool/nodes").join(name).unwrap();
        let tree = bed.registry.tree();
        tree.create(&path, Bytes::from("{}"), CreateMode::Persistent)
            .await
            .unwrap();
    }
    assert_eq!(nodes.list().await.unwrap().len(), 1);
    let view = nodes.view().unwrap();
    view.synced().await.unwrap();
    assert_eq!((view.len(), view.flaws().len()), (1, 0));
}
