//! Ready nodes, expiry, orphans and leaks.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use common::{Launcher, ask, cost, limits, node_id, request_id, setup, time};
use nodeyard_model::{Allocation, Label, Node, NodeState, ProviderName, RequestState};
use nodeyard_plan::expiry::{self, Reason};
use nodeyard_plan::leaks::{self, Leaks, Owner, Resource, Sightings, Uploads};
use nodeyard_plan::{LabelPolicy, MIN_READY_REQUESTOR, Policy, min_ready};
use nodeyard_plan::{orphans, protocol};

fn launcher() -> Launcher {
    let mut launcher = Launcher::new(Policy::default());
    launcher.provider("cloud", limits(&[]), None);
    launcher.pool(
        setup(
            "cloud",
            "main",
            &["small", "large"],
            limits(&[("instances", 5)]),
        ),
        10,
    );
    launcher
}

fn node(state: NodeState, since: f64) -> Node {
    let mut node = Node::new(state, time(since));
    node.provider = Some(ProviderName::new("cloud").unwrap());
    node.pool = Some("main".into());
    node.labels = vec!["small".into()];
    node.resources = Some(cost("small"));
    node
}

fn policies(min_ready: usize, max_ready_age: Option<u64>) -> BTreeMap<Label, LabelPolicy> {
    let policy = LabelPolicy {
        min_ready,
        max_ready_age: max_ready_age.map(Duration::from_secs),
    };
    BTreeMap::from([("small".into(), policy)])
}

#[test]
fn ready_nodes_are_asked_for_only_while_there_is_room() {
    let mut launcher = launcher();
    let none = BTreeSet::new();
    let plan = |launcher: &Launcher, count| {
        let plan = min_ready::plan(&launcher.world, &policies(count, None), &none);
        let submit = plan.submit.iter();
        let submit = submit.map(|s| (s.count, s.without_room));
        submit.collect::<Vec<_>>()
    };
    assert_eq!(plan(&launcher, 3), [(3, 0)]);
    assert_eq!(plan(&launcher, 7), [(5, 2)]);
    // One is there, one is coming, two are in use.
    launcher
        .world
        .put_node(node_id(1), &node(NodeState::Ready, 1.0));
    let mut record = ask(&["small"], launcher.now);
    record.requestor = Some(MIN_READY_REQUESTOR.into());
    record.reuse = false;
    let coming = launcher.submit(900, record.clone());
    for id in [2, 3] {
        launcher
            .world
            .put_node(node_id(id), &node(NodeState::InUse, 1.0));
    }
    assert_eq!(plan(&launcher, 2), []);
    assert_eq!(plan(&launcher, 4), [(2, 0)]);
    assert_eq!(plan(&launcher, 9), [(2, 5)]);

    record.state = RequestState::Fulfilled;
    record.nodes = vec![node_id(9)];
    launcher.world.put_request(coming, &record, launcher.now);
    let own = BTreeSet::from([coming]);
    let plan = min_ready::plan(&launcher.world, &policies(0, None), &own);
    assert_eq!(plan.collect, [(coming, vec![node_id(9)])]);
}

#[test]
fn old_nodes_expire_and_the_next_look_is_known() {
    let mut launcher = launcher();
    let world = &mut launcher.world;
    world.put_node(node_id(1), &node(NodeState::Ready, 100.0));
    world.put_node(node_id(2), &node(NodeState::Ready, 900.0));
    let mut allocated = node(NodeState::Ready, 100.0);
    allocated.allocated_to = Some(request_id(200, 7).into());
    world.put_node(node_id(3), &allocated);
    let mut held = node(NodeState::Hold, 500.0);
    held.hold_expiration = Some(400);
    world.put_node(node_id(4), &held);
    held.hold_expiration = Some(0);
    world.put_node(node_id(5), &held);
    let mut foreign = node(NodeState::Ready, 1.0);
    foreign.provider = Some(ProviderName::new("elsewhere").unwrap());
    world.put_node(node_id(6), &foreign);

    let labels = policies(0, Some(600));
    let plan = expiry::plan(world, &labels, None, time(1000.0));
    let expired: Vec<_> = plan.expired.iter().map(|e| (e.node, e.reason)).collect();
    let secs = Duration::from_secs;
    let ready = Reason::Ready {
        age: secs(900),
        limit: secs(600),
    };
    let hold = Reason::Hold {
        age: secs(500),
        limit: secs(400),
    };
    assert_eq!(expired, [(node_id(1), ready), (node_id(4), hold)]);
    assert_eq!(plan.again_at, Some(time(1500.0)));
    assert_eq!(hold.to_string(), "held for 500 s, the limit is 400 s");
    let plan = expiry::plan(world, &BTreeMap::new(), Some(secs(500)), time(1000.0));
    let expired: Vec<_> = plan.expired.iter().map(|e| e.node).collect();
    assert_eq!(expired, [node_id(4), node_id(5)]);
}

#[test]
fn orphans_are_what_nobody_holds() {
    let mut launcher = launcher();
    let world = &mut launcher.world;
    for (id, state) in [
        (1, NodeState::Building),
        (2, NodeState::Used),
        (3, NodeState::Hold),
        (4, NodeState::Ready),
        (5, NodeState::InUse),
    ] {
        world.put_node(node_id(id), &node(state, 1.0));
    }
    world.set_node_locked(node_id(5), true);
    let mut given = node(NodeState::Ready, 1.0);
    given.allocated_to = Some(request_id(200, 1).into());
    world.put_node(node_id(6), &given);
    given.allocated_to = Some(request_id(200, 2).into());
    world.put_node(node_id(7), &given);
    given.state = NodeState::Hold;
    world.put_node(node_id(8), &given);
    world.put_empty_node(node_id(9));
    // What no request can be called by is as good as a request that is gone.
    let text = Allocation::Other("static driver".into());
    let mut given = node(NodeState::Ready, 1.0);
    given.allocated_to = Some(text.clone());
    world.put_node(node_id(10), &given);
    let mut pending = ask(&["small"], time(1.0));
    pending.state = RequestState::Pending;
    world.put_request(request_id(200, 1), &pending, time(1.0));

    let found = orphans::find(world);
    assert_eq!(found.requests, [request_id(200, 1)]);
    let building = (node_id(1), NodeState::Building);
    assert_eq!(found.nodes, [building, (node_id(2), NodeState::Used)]);
    let gone = request_id(200, 2).into();
    assert_eq!(
        found.stranded,
        [(node_id(7), gone), (node_id(10), text.clone())]
    );
    assert!(protocol::node::free(Some(&given), request_id(200, 2)).is_err());
    let freed = protocol::node::free(Some(&given), text).unwrap();
    assert_eq!(freed.allocated_to, None);
    assert_eq!(found.empty, [node_id(9)]);

    world.set_node_locked(node_id(1), true);
    world.remove_node(node_id(9));
    let found = orphans::find(world);
    assert_eq!(
        (found.requests.len(), found.nodes.len(), found.empty.len()),
        (1, 1, 0)
    );
    world.remove_request(request_id(200, 1));
    let stranded = orphans::find(world).stranded;
    assert_eq!(stranded.len(), 3, "its request is gone, too");
}

#[test]
fn a_leak_is_ours_unrecorded_and_seen_twice() {
    let mut launcher = launcher();
    let resource = |id: &str, system: Option<&str>, node| Resource {
        kind: "instances".into(),
        id: id.into(),
        system: system.map(Into::into),
        belongs_to: Owner::Node(node_id(node)),
    };
    let listing = [
        resource("recorded", Some("us"), 1),
        resource("left over", Some("us"), 2),
        resource("python's", None, 3),
        resource("of another system", Some("them"), 4),
        resource("of another provider", Some("us"), 5),
    ];
    let provider = ProviderName::new("cloud").unwrap();
    let uploads = Uploads {
        is_recorded: &|_| false,
        none_recorded: true,
    };
    let mut sightings = Sightings::default();
    let mut look = |launcher: &Launcher, listing: &[Resource]| {
        let world = &launcher.world;
        match leaks::judge(world, "us", &provider, listing, &uploads, &mut sightings) {
            Leaks::Found(found) => Ok(found.iter().map(|r| r.id.to_string()).collect::<Vec<_>>()),
            Leaks::NoRecords { resources } => Err(resources),
        }
    };
    assert_eq!(
        look(&launcher, &listing),
        Err(3),
        "an empty store is not a reason to delete"
    );
    launcher
        .world
        .put_node(node_id(1), &node(NodeState::Ready, 1.0));
    let mut elsewhere = node(NodeState::Ready, 1.0);
    elsewhere.provider = Some(ProviderName::new("elsewhere").unwrap());
    launcher.world.put_node(node_id(5), &elsewhere);
    assert_eq!(look(&launcher, &listing), Ok(vec![]), "once is not enough");
    let both = ["left over", "of another provider"].map(str::to_owned);
    assert_eq!(look(&launcher, &listing), Ok(both.to_vec()));
    assert_eq!(look(&launcher, &listing[2..]), Ok(both[1..].to_vec()));
    assert_eq!(
        look(&launcher, &listing),
        Ok(both[1..].to_vec()),
        "two looks in a row"
    );
}
