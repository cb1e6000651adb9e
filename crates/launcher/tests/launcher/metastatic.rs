//! Slots on machines of a simulated cloud.

use std::collections::BTreeSet;
use std::sync::Arc;

use nodeyard_driver::backing::Note;
use nodeyard_model::{Node, NodeId, NodeState, RequestState, Resources};
use nodeyard_store::registry::Registry;

use crate::bed::{Running, Store, eventually, logs, nodes};
use crate::cloud::nothing_is_left;
use crate::fake::{FakeCloud, config, simulate};
use crate::zuul::Zuul;

pub(crate) const OWNER: &str = "NodePool:metastatic:meta";
const LABELS: &str = "  - name: small\n  - name: slot\n";

/// A cloud with room for so many machines, and slots on them. `keys` are those of the label of the slots.
pub(crate) fn slots(max_servers: usize, keys: &str) -> String {
    let cloud = config(max_servers, LABELS);
    format!(
        "{cloud}  - name: meta\n    driver: metastatic\n    launch-retries: 2\n    pools:\n      - name: slots\n        \
         node-attributes: {{pool: slots}}\n        labels:\n          - {{name: slot, backing-label: small, {keys}}}\n"
    )
}

/// The nodes that carry others, with what is noted on them.
pub(crate) async fn carriers(registry: &Registry) -> Vec<(NodeId, Node, Note)> {
    let nodes = nodes(registry).await.into_iter();
    let noted = nodes.filter_map(|(id, node)| {
        let note = Note::read(&node.user_data, OWNER)?;
        Some((id, node, note))
    });
    noted.collect()
}

async fn slots_share_a_machine(store: Store) {
    logs();
    let cloud = FakeCloud::new(simulate());
    let text = slots(4, "max-parallel-jobs: 2, grace-time: 1");
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &text).await;
    let zuul = Zuul::new(store.session().await);
    let id = zuul.submit(&["slot", "slot", "slot"]).await;
    let mut nodeset = zuul.accept(id).await;
    assert_eq!(cloud.servers().await.len(), 2);

    let carriers = carriers(&zuul.registry).await;
    assert_eq!(carriers.len(), 2);
    let mut places = BTreeSet::new();
    for (id, held) in &nodeset.nodes {
        let node = &held.value;
        let data: serde_json::Value = node.driver_data.decode().unwrap();
        let (carrier, below, note) = carriers
            .iter()
            .find(|(carrier, ..)| data["backing_node"] == carrier.to_string())
            .unwrap();
        assert_eq!(data["node"], id.to_string());
        assert_eq!(data["metadata"]["nodepool_node_id"], id.to_string());
        assert_eq!(data["slot"], node.slot.unwrap());
        assert_eq!(note.slot_of(*id).map(i64::from), node.slot);
        assert!(
            places.insert((*carrier, node.slot)),
            "a slot is given twice"
        );

        assert_eq!(node.external_id.as_string(), Some(id.to_string()));
        assert_eq!(node.interface_ip, below.interface_ip);
        assert_eq!(node.public_ipv4, below.public_ipv4);
        assert_eq!(node.host_keys, below.host_keys);
        assert_eq!(node.username.as_deref(), Some("debian"));
        assert_eq!(node.az, below.az);
        assert_eq!(node.resources, Some(Resources::new(0, 1, 0)));
        let attributes: serde_json::Value = node.attributes.decode().unwrap();
        assert_eq!(attributes, serde_json::json!({"pool": "slots"}));

        assert_eq!(below.state, NodeState::InUse);
        assert_eq!(below.requestor.as_deref(), Some(OWNER));
        assert_eq!(below.tenant_name, None);
        assert_eq!((note.label.as_str(), note.slots), ("slot", 2));
        let lock = zuul.registry.nodes().lock_of(*carrier).unwrap();
        let contenders = lock.contenders().await.unwrap();
        assert_eq!(contenders[0].identifier, OWNER);
        assert_eq!(contenders[0].session, None);
    }
    // The requests for machines have gone.
    assert_eq!(zuul.registry.requests().list().await.unwrap().len(), 0);

    // There is a slot left.
    let fourth = zuul.submit(&["slot"]).await;
    let fourth_set = zuul.accept(fourth).await;
    assert_eq!(cloud.creates(), 2);
    zuul.unlock(fourth_set).await;

    zuul.set_state(&mut nodeset, NodeState::InUse).await;
    zuul.set_state(&mut nodeset, NodeState::Used).await;
    let ids: Vec<NodeId> = nodeset.nodes.iter().map(|(id, _)| *id).collect();
    zuul.unlock(nodeset).await;
    for id in ids {
        zuul.gone(id).await;
    }
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_share_a_machine_embedded() {
    slots_share_a_machine(Store::embedded()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_share_a_machine_zookeeper() {
    slots_share_a_machine(Store::zookeeper().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unused_machine_is_given_back() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let text = slots(4, "max-parallel-jobs: 2, grace-time: 1");
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &text).await;
    let zuul = Zuul::new(store.session().await);
    for _ in 0..3 {
        let id = zuul.submit(&["slot", "slot"]).await;
        zuul.run_job(id).await;
    }
    nothing_is_left(&zuul.registry, &cloud).await;
    assert_eq!(cloud.creates(), 1);
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_machines_a_request_fails() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let text = slots(4, "max-parallel-jobs: 4");
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &text).await;
    let zuul = Zuul::new(store.session().await);
    // Two attempts to get a slot, each asks for a machine, for which there are two attempts of four tries.
    cloud.refuse(&["the cloud is upset"; 16]);
    let id = zuul.submit(&["slot", "slot"]).await;
    let done = zuul.done(id).await;
    assert_eq!(done.state, RequestState::Failed, "{done:?}");
    zuul.registry.requests().delete(id).await.unwrap();
    nothing_is_left(&zuul.registry, &cloud).await;
    eventually("no request is left", || async {
        let requests = zuul.registry.requests().list().await.unwrap();
        requests.is_empty().then_some(())
    })
    .await;
    launcher.stop().await;
}
