//! Slots on machines of a simulated cloud.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_driver::backing::{Placement, SlotTable};
use nodeyard_model::{Node, NodeId, NodeState, RequestState, Resources};
use nodeyard_nodescan::{Scan, ScanError, ScanTarget, Scanner};
use nodeyard_store::registry::Registry;
use nodeyard_store::testing::{Fuse, Moment, Mortal};

use crate::bed::{Running, Store, eventually, logs, nodes, parse, quick};
use crate::cloud::nothing_is_left;
use crate::fake::{FakeCloud, config, simulate};
use crate::kill::{Successor, at_every_step};
use crate::zuul::{Zuul, now};

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
pub(crate) async fn carriers(registry: &Registry) -> Vec<(NodeId, Node, SlotTable)> {
    let nodes = nodes(registry).await.into_iter();
    let noted = nodes.filter_map(|(id, node)| {
        let note = SlotTable::read(&node.user_data, OWNER)?;
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
    eventually("the requests for machines have gone", || async {
        let requests = zuul.registry.requests().list().await.unwrap();
        requests.is_empty().then_some(())
    })
    .await;

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
    let text = |grace| slots(4, &format!("max-parallel-jobs: 2, grace-time: {grace}"));
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &text(3600)).await;
    let zuul = Zuul::new(store.session().await);
    for _ in 0..3 {
        let id = zuul.submit(&["slot", "slot"]).await;
        for slot in zuul.run_job(id).await {
            zuul.gone(slot).await;
        }
    }
    launcher.config.send_replace(parse(&text(1)));
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

/// Which slots are in use at this moment, as their users see it.
#[derive(Debug, Default)]
struct Users(Mutex<BTreeSet<(NodeId, u32)>>);

impl Users {
    /// Runs a job on the nodes of a request, and sees to it that nobody else is on their slots.
    async fn run_job(&self, zuul: &Zuul, labels: &[&str]) -> Vec<NodeId> {
        let id = zuul.submit(labels).await;
        let mut nodeset = zuul.accept(id).await;
        let place = |node: &Node| {
            let placement = Placement::read(&node.driver_data).unwrap();
            (placement.backing_node, placement.slot)
        };
        for (id, held) in &nodeset.nodes {
            let place = place(&held.value);
            let new = self.0.lock().unwrap().insert(place);
            assert!(new, "{id} is on {place:?}, and so is somebody else");
        }
        zuul.set_state(&mut nodeset, NodeState::InUse).await;
        for (_, held) in &nodeset.nodes {
            self.0.lock().unwrap().remove(&place(&held.value));
        }
        zuul.set_state(&mut nodeset, NodeState::Used).await;
        let nodes = nodeset.nodes.iter().map(|(id, _)| *id).collect();
        zuul.unlock(nodeset).await;
        nodes
    }
}

async fn jobs_on_slots(zuul: &Arc<Zuul>, jobs: usize) {
    let users = Arc::new(Users::default());
    let jobs = (0..jobs).map(|number| {
        let (zuul, users) = (Arc::clone(zuul), Arc::clone(&users));
        let labels = if number % 3 == 0 {
            &["slot", "slot"][..]
        } else {
            &["slot"]
        };
        tokio::spawn(async move { users.run_job(&zuul, labels).await })
    });
    for job in jobs.collect::<Vec<_>>() {
        job.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_jobs_shares_few_machines() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let text = slots(2, "max-parallel-jobs: 3, grace-time: 1");
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &text).await;
    let zuul = Arc::new(Zuul::new(store.session().await));
    jobs_on_slots(&zuul, 30).await;
    assert!(cloud.peak() <= 2, "{} servers at once", cloud.peak());
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_launchers_never_give_out_the_same_slot() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let text = slots(2, "max-parallel-jobs: 3, grace-time: 1");
    let one = Running::start(&store, Arc::clone(&cloud) as _, &text).await;
    let two = Running::start(&store, Arc::clone(&cloud) as _, &text).await;
    let zuul = Arc::new(Zuul::new(store.session().await));
    jobs_on_slots(&zuul, 30).await;
    assert!(cloud.peak() <= 2, "{} servers at once", cloud.peak());
    nothing_is_left(&zuul.registry, &cloud).await;
    one.stop().await;
    two.stop().await;
}

async fn a_new_launcher_knows_the_machines_of_the_old_one(store: Store) {
    logs();
    let cloud = FakeCloud::new(simulate());
    let text = slots(4, "max-parallel-jobs: 2, grace-time: 1");
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &text).await;
    let zuul = Zuul::new(store.session().await);
    let first = zuul.submit(&["slot"]).await;
    let first = zuul.accept(first).await;
    launcher.kill().await;

    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &text).await;
    let second = zuul.submit(&["slot"]).await;
    let second = zuul.accept(second).await;
    assert_eq!(cloud.creates(), 1);
    assert_ne!(first.nodes[0].1.value.slot, second.nodes[0].1.value.slot);
    for nodeset in [first, second] {
        zuul.unlock(nodeset).await;
    }
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_launcher_knows_the_machines_of_the_old_one_embedded() {
    a_new_launcher_knows_the_machines_of_the_old_one(Store::embedded()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_launcher_knows_the_machines_of_the_old_one_zookeeper() {
    a_new_launcher_knows_the_machines_of_the_old_one(Store::zookeeper().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_request_takes_the_one_for_its_machine_along() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    cloud.hold_boots(true);
    let launcher =
        Running::start(&store, Arc::clone(&cloud) as _, &slots(4, "grace-time: 1")).await;
    let zuul = Zuul::new(store.session().await);
    let id = zuul.submit(&["slot"]).await;
    eventually("the machine boots", || async {
        (!cloud.servers().await.is_empty()).then_some(())
    })
    .await;
    eventually("it says what it waits for", || async {
        let why = launcher.handle.explain(id).await?.to_string();
        why.contains("waits for a node with label small")
            .then_some(())
    })
    .await;
    assert!(zuul.registry.requests().delete(id).await.unwrap());
    eventually("its machine is not wanted any more", || async {
        let requests = zuul.registry.requests().list().await.unwrap();
        requests.is_empty().then_some(())
    })
    .await;
    cloud.hold_boots(false);
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

/// Machines answer, but not when a slot is looked at: that has a second.
#[derive(Debug)]
struct DeafSlots;

#[async_trait]
impl Scanner for DeafSlots {
    async fn scan(&self, target: &ScanTarget) -> Result<Scan, ScanError> {
        if target.timeout == Duration::from_secs(1) {
            return Err(ScanError::unreachable(target, "no answer".to_owned()));
        }
        Ok(Scan {
            keys: vec!["ssh-rsa KEY".into()],
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_does_not_answer_is_replaced() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let text = slots(
        4,
        "max-parallel-jobs: 2, grace-time: 3600, host-key-checking: true",
    );
    let text = text.replace(
        "driver: metastatic\n",
        "driver: metastatic\n    boot-timeout: 1\n",
    );
    let (drivers, scanner) = (Arc::clone(&cloud) as _, Arc::new(DeafSlots));
    let tree = store.session().await;
    let launcher = Running::start_with(tree, drivers, scanner, &text, quick()).await;
    let zuul = Zuul::new(store.session().await);
    let id = zuul.submit(&["slot"]).await;
    assert_eq!(zuul.done(id).await.state, RequestState::Failed);
    assert_eq!(
        cloud.creates(),
        2,
        "each attempt is on a machine of its own"
    );
    zuul.registry.requests().delete(id).await.unwrap();
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_that_leaves_takes_its_idle_machines_along() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let text = slots(4, "max-parallel-jobs: 2, grace-time: 3600");
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &text).await;
    let zuul = Zuul::new(store.session().await);
    let id = zuul.submit(&["slot"]).await;
    zuul.run_job(id).await;
    assert_eq!(carriers(&zuul.registry).await.len(), 1);

    let other = text.replace("name: slot", "name: other");
    launcher.config.send_replace(parse(&other));
    nothing_is_left(&zuul.registry, &cloud).await;
    let id = zuul.submit(&["other"]).await;
    zuul.run_job(id).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_whose_record_vanished_comes_free() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let text = slots(4, "max-parallel-jobs: 2, grace-time: 1");
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &text).await;
    let zuul = Zuul::new(store.session().await);
    let id = zuul.submit(&["slot"]).await;
    let mut nodeset = zuul.accept(id).await;
    // As somebody does who deletes records by hand.
    let (id, held) = nodeset.nodes.remove(0);
    let nodes = zuul.registry.nodes();
    nodes.delete(id, held, now()).await.unwrap();
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_outlast_lost_connections() {
    logs();
    let store = Store::zookeeper().await;
    let (tree, proxy) = store.through_a_proxy(Duration::from_secs(60)).await;
    let cloud = FakeCloud::new(simulate());
    let text = slots(2, "max-parallel-jobs: 3, grace-time: 1");
    let launcher = Running::start_on(tree, Arc::clone(&cloud) as _, &text, quick()).await;
    let zuul = Arc::new(Zuul::new(store.session().await));
    let breaking = tokio::spawn(async move {
        // Not for ever: a busy machine must get its work done in between.
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(70)).await;
            proxy.drop_connections();
        }
        proxy
    });
    jobs_on_slots(&zuul, 30).await;
    let _proxy = breaking.await.unwrap();
    assert!(cloud.peak() <= 2, "{} servers at once", cloud.peak());
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_outlast_a_lost_session() {
    logs();
    let store = Store::zookeeper().await;
    let (tree, proxy) = store.through_a_proxy(Duration::from_secs(2)).await;
    let cloud = FakeCloud::new(simulate());
    let text = slots(2, "max-parallel-jobs: 1, grace-time: 1");
    let drivers = Arc::clone(&cloud) as _;
    let launcher = Running::start_on(Arc::clone(&tree), drivers, &text, quick()).await;
    let zuul = Zuul::new(store.session().await);
    let first = zuul.submit(&["slot"]).await;
    let first = zuul.accept(first).await;
    cloud.hold_boots(true);
    let second = zuul.submit(&["slot"]).await;
    eventually("another machine boots", || async {
        (cloud.servers().await.len() == 2).then_some(())
    })
    .await;

    proxy.refuse(true);
    eventually("the session is over", || async {
        let requests = zuul.registry.requests().list().await.unwrap();
        let theirs = requests.iter().all(|(id, _)| *id == second);
        theirs.then_some(())
    })
    .await;
    proxy.refuse(false);
    cloud.hold_boots(false);
    let second = zuul.accept(second).await;
    let machines = carriers(&zuul.registry).await;
    assert_eq!(machines.len(), 2, "the first is still in use");
    for nodeset in [first, second] {
        zuul.unlock(nodeset).await;
    }
    launcher.stop().await;
}

/// False if the launcher had nothing left to do before it came to its end.
async fn die_with_slots(at: usize, moment: Moment, successor: Successor) -> bool {
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let text = slots(2, "max-parallel-jobs: 2, grace-time: 0");
    let zuul = Arc::new(Zuul::new(store.session().await));
    let beside = match successor {
        Successor::Beside => Some(Running::start(&store, Arc::clone(&cloud) as _, &text).await),
        Successor::Afterwards => None,
    };
    let fuse = Fuse::new(at, moment);
    let tree = Mortal::new(store.session().await, &fuse);
    let victim = Running::start_on(tree as _, cloud.until(Arc::clone(&fuse)), &text, quick()).await;
    let mut done = tokio::spawn({
        let zuul = Arc::clone(&zuul);
        async move { jobs_on_slots(&zuul, 2).await }
    });
    let died = tokio::select! {
        () = fuse.blown() => true,
        result = &mut done => {
            result.unwrap();
            done = tokio::spawn(async {});
            tokio::select! {
                () = fuse.blown() => true,
                () = nothing_is_left(&zuul.registry, &cloud) => false,
            }
        }
    };
    victim.kill().await;
    let heir = match beside {
        Some(beside) => beside,
        None => Running::start(&store, Arc::clone(&cloud) as _, &text).await,
    };
    done.await.unwrap();
    assert!(
        cloud.peak() <= 2,
        "{} servers at once ({at}, {moment:?}, {successor:?})",
        cloud.peak()
    );
    // What was ready when its launcher died is nobody's, and stays for the next one.
    eventually("only idle slots and machines are left", || async {
        let nodes = nodes(&zuul.registry).await;
        let is_idle = |node: &Node| match SlotTable::read(&node.user_data, OWNER) {
            Some(note) => {
                let known = |id| nodes.iter().any(|(other, _)| other == id);
                !note.nodes.is_empty() && note.nodes.values().all(known)
            }
            None => node.state == NodeState::Ready && node.allocated_to.is_none(),
        };
        let is_slot = |node: &Node| node.slot.is_some();
        let machines = nodes.iter().filter(|(_, node)| !is_slot(node)).count();
        let requests = zuul.registry.requests().list().await.unwrap();
        let settled = nodes.iter().all(|(_, node)| is_idle(node)) && requests.is_empty();
        (settled && cloud.servers().await.len() == machines).then_some(())
    })
    .await;
    heir.stop().await;
    died
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_launcher_goes_on_with_slots() {
    at_every_step(5, |at, moment| {
        die_with_slots(at, moment, Successor::Afterwards)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_launcher_takes_over_slots() {
    at_every_step(11, |at, moment| {
        die_with_slots(at, moment, Successor::Beside)
    })
    .await;
}
