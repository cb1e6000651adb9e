//! Ready nodes, expiry, orphans and leaks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::common::{Launcher, ask, cost, limits, node_id, pool_key, request_id, setup, time};
use nodeyard_model::{
    Allocation, BuildId, Label, LauncherId, Node, NodeState, ProviderName, RequestState, UploadId,
};
use nodeyard_plan::assign::DecisionInputs;
use nodeyard_plan::expiry::{self, Reason};
use nodeyard_plan::leaks::{self, FoundResource, LeakScan, LeakSightings, Leaks, ResourceOwner};
use nodeyard_plan::protocol::{WriteRefused, node::ObservedState};
use nodeyard_plan::{
    LabelPolicy, LabelReadiness, MIN_READY_REQUESTOR, Policy, ProviderSetup, min_ready,
};
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
        let plan = min_ready::plan(&launcher.scheduler, &policies(count, None), &none);
        let submit = plan.submit.iter();
        let submit = submit.map(|s| (s.count, s.without_room));
        submit.collect::<Vec<_>>()
    };
    assert_eq!(plan(&launcher, 3), [(3, 0)]);
    assert_eq!(plan(&launcher, 7), [(5, 2)]);
    // One is there, one is coming, two are in use.
    launcher
        .scheduler
        .put_node(node_id(1), &node(NodeState::Ready, 1.0));
    let mut record = ask(&["small"], launcher.now);
    record.requestor = Some(MIN_READY_REQUESTOR.into());
    record.reuse = false;
    let coming = launcher.submit(900, record.clone());
    for id in [2, 3] {
        launcher
            .scheduler
            .put_node(node_id(id), &node(NodeState::InUse, 1.0));
    }
    assert_eq!(plan(&launcher, 2), []);
    assert_eq!(plan(&launcher, 4), [(2, 0)]);
    assert_eq!(plan(&launcher, 9), [(2, 5)]);

    record.state = RequestState::Fulfilled;
    record.nodes = vec![node_id(9)];
    launcher
        .scheduler
        .put_request(coming, &record, launcher.now);
    let own = BTreeSet::from([coming]);
    let plan = min_ready::plan(&launcher.scheduler, &policies(0, None), &own);
    assert_eq!(plan.finished.collect, [(coming, vec![node_id(9)])]);
}

#[test]
fn ready_nodes_are_planned_again_only_after_a_change() {
    let mut launcher = launcher();
    let scheduler = &mut launcher.scheduler;
    let labels = policies(6, None);
    scheduler.set_ready_nodes(&labels);
    assert!(scheduler.ready_nodes_wanted());
    assert!(!scheduler.ready_nodes_wanted(), "nothing has changed");
    for id in 1..=5 {
        scheduler.put_node(node_id(id), &node(NodeState::Ready, 1.0));
    }
    assert!(
        !scheduler.ready_nodes_wanted(),
        "there is no room for the sixth"
    );
    scheduler.put_node(node_id(1), &node(NodeState::InUse, 2.0));
    assert!(!scheduler.ready_nodes_wanted(), "nor for another one");
    scheduler.remove_node(node_id(1));
    assert!(scheduler.ready_nodes_wanted());
    scheduler.recheck_ready_nodes();
    assert!(scheduler.ready_nodes_wanted());

    let mut record = ask(&["small"], launcher.now);
    record.requestor = Some(MIN_READY_REQUESTOR.into());
    for number in 1..=2 {
        scheduler.put_request(request_id(900, number), &record, launcher.now);
    }
    assert!(!scheduler.ready_nodes_wanted(), "two are on their way");
    scheduler.remove_request(request_id(900, 1));
    assert!(
        !scheduler.ready_nodes_wanted(),
        "its node may not be known yet"
    );
    let removed_min_ready = scheduler.removed_min_ready();
    scheduler.nodes_seen(&removed_min_ready);
    assert!(scheduler.ready_nodes_wanted());
    scheduler.set_ready_nodes(&policies(0, None));
    assert!(!scheduler.ready_nodes_wanted() && !scheduler.keeps_nodes_ready());
}

#[test]
fn what_is_as_it_was_wakes_no_pool() {
    let mut launcher = launcher();
    launcher.decide();
    let scheduler = &mut launcher.scheduler;
    let (key, name) = (
        pool_key("cloud", "main"),
        ProviderName::new("cloud").unwrap(),
    );
    scheduler.set_readiness(&key, &"small".into(), LabelReadiness::Ready);
    let setup = scheduler.provider(&name).unwrap().clone();
    scheduler.set_provider_quota(&name, setup.limits, setup.foreign, setup.leaked);
    assert!(scheduler.take_stale().is_empty());
    let broken = LabelReadiness::Broken {
        reason: "no such flavor".into(),
    };
    scheduler.set_readiness(&key, &"small".into(), broken);
    assert_eq!(scheduler.take_stale(), [key].into());
}

#[test]
fn a_full_pool_is_not_woken_by_a_request_behind_another_one_that_is_the_same() {
    let mut launcher = launcher();
    launcher.decide();
    for expected in [true, false] {
        launcher.submit(200, ask(&["small"], launcher.now));
        assert_eq!(!launcher.scheduler.take_stale().is_empty(), expected);
    }
}

#[test]
fn old_nodes_expire_and_the_next_look_is_known() {
    let mut launcher = launcher();
    let scheduler = &mut launcher.scheduler;
    scheduler.put_node(node_id(1), &node(NodeState::Ready, 100.0));
    scheduler.put_node(node_id(2), &node(NodeState::Ready, 900.0));
    let mut allocated = node(NodeState::Ready, 100.0);
    allocated.allocated_to = Some(request_id(200, 7).into());
    scheduler.put_node(node_id(3), &allocated);
    let mut held = node(NodeState::Hold, 500.0);
    held.hold_expiration = Some(400);
    scheduler.put_node(node_id(4), &held);
    held.hold_expiration = Some(0);
    scheduler.put_node(node_id(5), &held);
    let mut foreign = node(NodeState::Ready, 1.0);
    foreign.provider = Some(ProviderName::new("elsewhere").unwrap());
    scheduler.put_node(node_id(6), &foreign);

    let labels = policies(0, Some(600));
    let plan = expiry::plan(scheduler, &labels, None, time(1000.0));
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
    assert_eq!(
        hold.to_string(),
        "held for 8 min 20 s, the limit is 6 min 40 s"
    );
    let plan = expiry::plan(scheduler, &BTreeMap::new(), Some(secs(500)), time(1000.0));
    let expired: Vec<_> = plan.expired.iter().map(|e| e.node).collect();
    assert_eq!(expired, [node_id(4), node_id(5)]);
}

#[test]
fn orphans_are_unlocked() {
    let mut launcher = launcher();
    let scheduler = &mut launcher.scheduler;
    for (id, state) in [
        (1, NodeState::Building),
        (2, NodeState::Used),
        (3, NodeState::Hold),
        (4, NodeState::Ready),
        (5, NodeState::InUse),
    ] {
        scheduler.put_node(node_id(id), &node(state, 1.0));
    }
    scheduler.set_node_locked(node_id(5), true);
    let mut given = node(NodeState::Ready, 1.0);
    given.allocated_to = Some(request_id(200, 1).into());
    scheduler.put_node(node_id(6), &given);
    given.allocated_to = Some(request_id(200, 2).into());
    scheduler.put_node(node_id(7), &given);
    given.state = NodeState::Hold;
    scheduler.put_node(node_id(8), &given);
    scheduler.put_empty_node(node_id(9));
    // What no request can be called by is as good as a request that is gone.
    let text = Allocation::Other("static driver".into());
    let mut given = node(NodeState::Ready, 1.0);
    given.allocated_to = Some(text.clone());
    scheduler.put_node(node_id(10), &given);
    let mut pending = ask(&["small"], time(1.0));
    pending.state = RequestState::Pending;
    scheduler.put_request(request_id(200, 1), &pending, time(1.0));

    let found = orphans::find(scheduler);
    let building = (node_id(1), NodeState::Building);
    assert_eq!(found.nodes, [building, (node_id(2), NodeState::Used)]);
    let gone = request_id(200, 2).into();
    assert_eq!(
        found.dangling,
        [(node_id(7), gone), (node_id(10), text.clone())]
    );
    assert!(protocol::node::free(Some(&given), request_id(200, 2)).is_err());
    let freed = protocol::node::free(Some(&given), text).unwrap();
    assert_eq!(freed.allocated_to, None);
    assert_eq!(found.empty, [node_id(9)]);

    scheduler.set_node_locked(node_id(1), true);
    scheduler.remove_node(node_id(9));
    let found = orphans::find(scheduler);
    assert_eq!((found.nodes.len(), found.empty.len()), (1, 0));
    scheduler.remove_request(request_id(200, 1));
    let dangling = orphans::find(scheduler).dangling;
    assert_eq!(dangling.len(), 3, "its request is gone, too");
}

/// Many nodes that cannot be deleted must not be checked on every other change.
#[test]
fn an_orphan_is_told_once_until_it_changes_or_is_asked_for() {
    let mut launcher = launcher();
    let scheduler = &mut launcher.scheduler;
    let used = (node_id(1), NodeState::Used);
    scheduler.put_node(used.0, &node(NodeState::Used, 1.0));
    assert_eq!(orphans::take(scheduler).nodes, [used]);
    assert_eq!(orphans::take(scheduler), orphans::Orphans::default());
    assert_eq!(orphans::find(scheduler).nodes, [used]);
    scheduler.mark_for_orphan_check(used.0);
    scheduler.mark_for_orphan_check(node_id(77));
    assert_eq!(orphans::take(scheduler).nodes, [used]);
    scheduler.set_node_locked(used.0, true);
    assert_eq!(orphans::take(scheduler).nodes, []);
    scheduler.set_node_locked(used.0, false);
    assert_eq!(orphans::take(scheduler).nodes, [used]);

    // Its request goes.
    let mut given = node(NodeState::Ready, 1.0);
    given.allocated_to = Some(request_id(200, 1).into());
    scheduler.put_request(request_id(200, 1), &ask(&["small"], time(1.0)), time(1.0));
    scheduler.put_node(node_id(2), &given);
    assert_eq!(orphans::take(scheduler).dangling, []);
    scheduler.remove_request(request_id(200, 1));
    assert_eq!(orphans::take(scheduler).dangling.len(), 1);

    // Its provider starts.
    let other = ProviderName::new("other").unwrap();
    let mut foreign = node(NodeState::Used, 1.0);
    foreign.provider = Some(other.clone());
    scheduler.put_node(node_id(3), &foreign);
    assert_eq!(orphans::take(scheduler), orphans::Orphans::default());
    for _ in 0..2 {
        scheduler.set_provider(&other, ProviderSetup::default());
    }
    assert_eq!(
        orphans::take(scheduler).nodes,
        [(node_id(3), NodeState::Used)]
    );
}

#[test]
fn a_request_is_abandoned_when_it_is_pending_and_not_in_our_hands() {
    let mut launcher = launcher();
    let ours = launcher.submit(200, ask(&["small"], time(1.0)));
    let key = launcher.scheduler.take_stale().pop_first().unwrap();
    let moment = DecisionInputs {
        now: launcher.now,
        seed: 1,
    };
    let pass = launcher.scheduler.assign(&key, moment);
    assert_eq!(pass.decisions.len(), 1);
    let scheduler = &mut launcher.scheduler;
    let mut pending = ask(&["small"], time(1.0));
    pending.state = RequestState::Pending;
    let others = request_id(200, 77);
    for id in [ours, others] {
        scheduler.put_request(id, &pending, time(1.0));
    }
    assert_eq!(scheduler.take_abandoned(), BTreeSet::from([others]));
    assert_eq!(scheduler.take_abandoned(), BTreeSet::new(), "returned once");
    scheduler.put_request(others, &pending, time(2.0));
    scheduler.release(&key, ours);
    assert_eq!(scheduler.take_abandoned(), BTreeSet::from([ours, others]));

    // It was finished or deleted before it is returned.
    for id in [ours, others] {
        scheduler.put_request(id, &pending, time(3.0));
    }
    pending.state = RequestState::Requested;
    scheduler.put_request(others, &pending, time(3.0));
    scheduler.remove_request(ours);
    assert_eq!(scheduler.take_abandoned(), BTreeSet::new());
}

/// Judges what is listed of the provider, a leak being seen twice with a minute in between.
fn leaked(
    launcher: &Launcher,
    sightings: &mut LeakSightings,
    at: f64,
    listing: &[FoundResource],
    uploads: &BTreeSet<(BuildId, UploadId)>,
) -> Result<Vec<String>, usize> {
    let scan = LeakScan {
        system: "us",
        provider: &ProviderName::new("cloud").unwrap(),
        listing,
        uploads,
        any_upload: !uploads.is_empty(),
        at: time(at),
    };
    match leaks::find_leaks(
        &launcher.scheduler,
        &scan,
        Duration::from_secs(60),
        sightings,
    ) {
        Leaks::Found(found) => Ok(found.iter().map(|r| r.id.to_string()).collect()),
        Leaks::NoRecords { resources } => Err(resources),
    }
}

fn resource(id: &str, system: Option<&str>, belongs_to: ResourceOwner) -> FoundResource {
    FoundResource {
        kind: "instances".into(),
        id: id.into(),
        system: system.map(Into::into),
        belongs_to,
    }
}

#[test]
fn a_leak_is_ours_unrecorded_and_seen_twice() {
    let mut launcher = launcher();
    let of = |id, system, node| resource(id, system, ResourceOwner::Node(node_id(node)));
    let listing = [
        of("recorded", Some("us"), 1),
        of("left over", Some("us"), 2),
        of("python's", None, 3),
        of("of another system", Some("them"), 4),
        of("of another provider", Some("us"), 5),
    ];
    let mut sightings = LeakSightings::default();
    let mut scan = |launcher: &Launcher, at, listing: &[FoundResource]| {
        leaked(launcher, &mut sightings, at, listing, &BTreeSet::new())
    };
    assert_eq!(
        scan(&launcher, 0.0, &listing),
        Err(3),
        "an empty store is not a reason to delete"
    );
    launcher
        .scheduler
        .put_node(node_id(1), &node(NodeState::Ready, 1.0));
    let mut elsewhere = node(NodeState::Ready, 1.0);
    elsewhere.provider = Some(ProviderName::new("elsewhere").unwrap());
    launcher.scheduler.put_node(node_id(5), &elsewhere);
    let none = Ok(vec![]);
    assert_eq!(scan(&launcher, 100.0, &listing), none, "once is not enough");
    assert_eq!(scan(&launcher, 101.0, &listing), none, "twice at a time");
    assert_eq!(scan(&launcher, 159.0, &listing), none, "nor is a burst");
    let both = ["left over", "of another provider"].map(str::to_owned);
    assert_eq!(scan(&launcher, 160.0, &listing), Ok(both.to_vec()));
    assert_eq!(
        scan(&launcher, 161.0, &listing),
        none,
        "it is being deleted"
    );
    assert_eq!(scan(&launcher, 200.0, &listing[2..]), none);
    assert_eq!(
        scan(&launcher, 221.0, &listing),
        Ok(both[1..].to_vec()),
        "the other one was not there in between"
    );
}

#[test]
fn resources_of_an_unreadable_record_are_no_leak() {
    let mut launcher = launcher();
    let scheduler = &mut launcher.scheduler;
    scheduler.put_node(node_id(1), &node(NodeState::Ready, 1.0));
    scheduler.put_node(node_id(2), &node(NodeState::Ready, 1.0));
    scheduler.put_unreadable_node(node_id(2));
    scheduler.put_unreadable_node(node_id(3));
    let build = |digit: &str| digit.repeat(32).parse::<BuildId>().unwrap();
    let upload = "0000000001".parse::<UploadId>().unwrap();
    let listing = [
        resource("changed", Some("us"), ResourceOwner::Node(node_id(2))),
        resource(
            "read at the start",
            Some("us"),
            ResourceOwner::Node(node_id(3)),
        ),
        resource("left over", Some("us"), ResourceOwner::Node(node_id(4))),
        resource(
            "uploaded",
            Some("us"),
            ResourceOwner::Upload(build("a"), upload),
        ),
        resource(
            "image",
            Some("us"),
            ResourceOwner::Upload(build("b"), upload),
        ),
    ];
    let uploads = BTreeSet::from([(build("a"), upload)]);
    let mut sightings = LeakSightings::default();
    leaked(&launcher, &mut sightings, 100.0, &listing, &uploads).unwrap();
    let found = leaked(&launcher, &mut sightings, 200.0, &listing, &uploads);
    assert_eq!(found, Ok(vec!["left over".to_owned(), "image".to_owned()]));

    // It is nobody's to use, keeps its room, and is forgotten when it goes.
    let ready_and_room = |launcher: &Launcher| {
        let none = BTreeSet::new();
        let plan = min_ready::plan(&launcher.scheduler, &policies(9, None), &none);
        (
            9 - plan.submit[0].count - plan.submit[0].without_room,
            plan.submit[0].count,
        )
    };
    assert_eq!(ready_and_room(&launcher), (1, 3));
    let scheduler = &mut launcher.scheduler;
    assert_eq!(orphans::find(scheduler), orphans::Orphans::default());
    assert_eq!(scheduler.node_ids().count(), 3);
    scheduler.remove_node(node_id(2));
    scheduler.put_node(node_id(3), &node(NodeState::Ready, 1.0));
    assert_eq!(scheduler.node_ids().count(), 2);
}

#[test]
fn a_node_is_retired_only_if_unchanged() {
    let (old, now) = (time(1.0), time(9.0));
    let retire = |node: &Node, seen| protocol::node::retire(Some(node), seen, now);
    let mut idle = node(NodeState::Ready, 1.0);
    assert_eq!(
        retire(&idle, ObservedState::ready(old)).unwrap().state,
        NodeState::Deleting
    );
    let on_hold = node(NodeState::Hold, 5.0);
    assert_eq!(
        retire(&on_hold, ObservedState::ready(old)),
        Err(WriteRefused::NodeIs {
            state: NodeState::Hold
        }),
        "its lock has a contender"
    );
    assert_eq!(
        retire(&on_hold, ObservedState::held(old)),
        Err(WriteRefused::Renewed),
        "it was held again"
    );
    assert!(retire(&on_hold, ObservedState::held(time(5.0))).is_ok());
    idle.allocated_to = Some(request_id(200, 1).into());
    assert!(retire(&idle, ObservedState::ready(old)).is_err());
}

#[test]
fn a_request_does_not_fail_while_no_pool_is_seen() {
    let own = LauncherId::new("host-PoolWorker.cloud-main-0");
    let record = ask(&["small"], time(1.0));
    let decline = |registered: &[LauncherId]| {
        let declined = protocol::request::decline(Some(&record), &own, registered, time(2.0));
        declined.unwrap().state
    };
    assert_eq!(decline(&[]), RequestState::Requested);
    assert_eq!(decline(std::slice::from_ref(&own)), RequestState::Failed);
}
