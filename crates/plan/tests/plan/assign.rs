//! Single decisions that matter: who is next, what goes to make room, who yields, what two launchers do at once.

use std::time::Duration;

use crate::common::{Launcher, ask, component, cost, limits, node_id, pool_key, setup, time};
use nodeyard_model::{Label, Node, NodeState, RequestId, RequestState};
use nodeyard_plan::assign::DecisionInputs;
use nodeyard_plan::verdict::NodeStep;
use nodeyard_plan::{LabelSetup, Policy, RequestVerdict, Supply};

fn one_pool(servers: i64) -> Launcher {
    let mut launcher = Launcher::new(Policy {
        patience: Duration::from_secs(60),
    });
    launcher.provider("cloud", limits(&[]), None);
    let servers = limits(&[("instances", servers)]);
    launcher.pool(setup("cloud", "main", &["small", "large"], servers), 10);
    launcher
}

fn submit(launcher: &mut Launcher, precedence: u16, labels: &[&str]) -> RequestId {
    launcher.submit(precedence, ask(labels, launcher.now))
}

fn run(launcher: &mut Launcher) {
    launcher.decide();
    launcher.carry_out_all();
    for node in launcher.building() {
        launcher.finish_launch(node);
    }
}

fn idle(label: &str, since: f64) -> Node {
    let mut node = Node::new(NodeState::Ready, time(since));
    let key = pool_key("cloud", "main");
    node.provider = Some(key.provider);
    node.pool = Some(key.pool);
    node.labels = vec![label.into()];
    node.resources = Some(cost(label));
    node
}

#[test]
fn an_urgent_request_is_next() {
    let mut launcher = one_pool(1);
    let first = submit(&mut launcher, 200, &["small"]);
    run(&mut launcher);
    for _ in 0..5 {
        submit(&mut launcher, 200, &["small"]);
        launcher.decide();
    }
    let urgent = submit(&mut launcher, 100, &["small"]);
    launcher.advance(1000.0);
    launcher.decide();
    launcher.use_and_return(first);
    launcher.clean();
    run(&mut launcher);
    assert_eq!(launcher.fulfilled(), [urgent]);
}

#[test]
fn small_requests_pass_until_patience_ends() {
    let mut launcher = one_pool(3);
    let [first, second] = [1, 2].map(|_| submit(&mut launcher, 200, &["small"]));
    run(&mut launcher);
    let large = submit(&mut launcher, 200, &["small", "small", "small"]);
    let early = submit(&mut launcher, 200, &["small"]);
    run(&mut launcher);
    assert_eq!(launcher.fulfilled(), [first, second, early]);
    assert_eq!(
        launcher.requests[&large].state,
        RequestState::Pending,
        "held"
    );

    launcher.advance(60.0);
    let late = submit(&mut launcher, 200, &["small"]);
    for returned in [first, early] {
        launcher.use_and_return(returned);
        launcher.clean();
        run(&mut launcher);
        assert_eq!(launcher.requests[&late].state, RequestState::Requested);
    }
    launcher.use_and_return(second);
    launcher.clean();
    run(&mut launcher);
    assert_eq!(launcher.fulfilled(), [large]);
}

#[test]
fn the_pool_wants_to_be_asked_again_when_patience_ends() {
    let mut launcher = one_pool(1);
    submit(&mut launcher, 200, &["small"]);
    run(&mut launcher);
    let since = launcher.now.as_secs();
    submit(&mut launcher, 200, &["small"]);
    let at = DecisionInputs {
        now: launcher.now,
        seed: 0,
    };
    let pass = launcher.scheduler.assign(&pool_key("cloud", "main"), at);
    assert_eq!(
        (pass.paused, pass.again_at),
        (true, Some(time(since + 60.0)))
    );
}

#[test]
fn the_oldest_idle_nodes_make_room_and_no_more_than_needed() {
    let mut launcher = one_pool(4);
    for (id, label, since) in [
        (1, "large", 30.0),
        (2, "large", 10.0),
        (3, "large", 20.0),
        (4, "small", 5.0),
    ] {
        launcher
            .scheduler
            .put_node(node_id(id), &idle(label, since));
    }
    let record = ask(&["small", "small", "small"], launcher.now);
    let request = launcher.submit(200, record);
    let at = DecisionInputs {
        now: launcher.now,
        seed: 0,
    };
    let key = pool_key("cloud", "main");
    let pass = launcher.scheduler.assign(&key, at);
    let evicted: Vec<_> = pass
        .evictions
        .iter()
        .map(|e| (e.node, e.wanted_by))
        .collect();
    // Node 4 is older than all, and the request can use it.
    assert_eq!(evicted, [(node_id(2), request), (node_id(3), request)]);
    let again = launcher.scheduler.assign(&key, at);
    assert_eq!(again.evictions, [], "enough is on its way out");

    for id in [2, 3] {
        launcher.scheduler.remove_node(node_id(id));
    }
    let pass = launcher.scheduler.assign(&key, at);
    let [decision] = pass.decisions.as_slice() else {
        panic!("{pass:?}");
    };
    let RequestVerdict::Accept(acceptance) = &decision.verdict else {
        panic!("{decision:?}");
    };
    let reused: Vec<_> = acceptance.reused().collect();
    assert_eq!(
        (reused, acceptance.launched().count()),
        (vec![node_id(4)], 2)
    );
}

#[test]
fn a_pool_of_machines_serves_what_is_free_and_waits_without_pausing() {
    let mut launcher = Launcher::new(Policy::default());
    launcher.provider("cloud", limits(&[]), None);
    let mut pool = setup("cloud", "main", &[], limits(&[]));
    for label in ["small", "large"] {
        let mut setup = LabelSetup::launched(cost(label));
        setup.supply = Supply::Fixed(2);
        pool.labels.insert(label.into(), setup);
    }
    launcher.pool(pool, 10);
    let mut both = idle("small", 1.0);
    both.labels = vec!["small".into(), "large".into()];
    launcher.scheduler.put_node(node_id(1), &both);
    let key = pool_key("cloud", "main");
    let at = DecisionInputs {
        now: launcher.now,
        seed: 0,
    };
    submit(&mut launcher, 200, &["small", "large"]);
    let pass = launcher.scheduler.assign(&key, at);
    assert_eq!((pass.decisions.len(), pass.paused), (0, false));
    launcher.scheduler.put_node(node_id(2), &idle("small", 2.0));
    let pass = launcher.scheduler.assign(&key, at);
    let RequestVerdict::Accept(acceptance) = &pass.decisions[0].verdict else {
        panic!("{pass:?}");
    };
    let reuse = |label: &str, id| NodeStep::Reuse {
        label: Label::from(label),
        node: node_id(id),
    };
    assert_eq!(acceptance.steps, [reuse("small", 2), reuse("large", 1)]);
}

#[test]
fn a_python_pool_with_lower_priority_number_goes_first_unless_it_is_paused() {
    let mut launcher = one_pool(2);
    let theirs = setup("other", "main", &["small"], limits(&[]));
    let mut registered = component(&theirs, 1);
    launcher.scheduler.put_pool("other0", &registered);
    submit(&mut launcher, 200, &["small"]);
    run(&mut launcher);
    assert_eq!(launcher.fulfilled(), []);
    registered.paused = true;
    launcher.scheduler.put_pool("other0", &registered);
    run(&mut launcher);
    assert_eq!(launcher.fulfilled().len(), 1);
}

#[test]
fn a_request_fails_only_when_every_registered_pool_has_declined() {
    let mut launcher = one_pool(2);
    let theirs = setup("other", "main", &["arm"], limits(&[]));
    launcher
        .scheduler
        .put_pool("other0", &component(&theirs, 1));
    let id = submit(&mut launcher, 200, &["unknown"]);
    run(&mut launcher);
    let record = &launcher.requests[&id];
    assert_eq!(
        (record.state, record.declined_by.len()),
        (RequestState::Requested, 1)
    );
    launcher.scheduler.remove_pool("other0");
    let id = submit(&mut launcher, 200, &["unknown"]);
    run(&mut launcher);
    assert_eq!(launcher.requests[&id].state, RequestState::Failed);
}

#[test]
fn of_two_launchers_that_record_at_once_the_later_one_steps_back() {
    let mut launcher = one_pool(2);
    let mut init = idle("small", 1.0);
    init.state = NodeState::Init;
    for id in [1, 2, 3] {
        launcher.scheduler.put_node(node_id(id), &init);
    }
    let excess = [1, 2, 3].map(|id| launcher.scheduler.excess(node_id(id)));
    assert_eq!((excess[0].as_ref(), excess[1].as_ref()), (None, None));
    let text = excess[2].as_ref().unwrap().to_string();
    assert_eq!(
        text,
        "1 instances needed, pool cloud/main has 2 of 2 in use"
    );
}

#[test]
fn the_seed_chooses_the_zone() {
    let zone = |seed| {
        let mut launcher = one_pool(1);
        submit(&mut launcher, 200, &["small"]);
        let at = DecisionInputs {
            now: launcher.now,
            seed,
        };
        let pass = launcher.scheduler.assign(&pool_key("cloud", "main"), at);
        match &pass.decisions[0].verdict {
            RequestVerdict::Accept(acceptance) => acceptance.zone.as_deref().unwrap().to_owned(),
            other => panic!("{other}"),
        }
    };
    assert_eq!([zone(0), zone(1), zone(2)], ["zone-1", "zone-2", "zone-1"]);
}

#[test]
fn a_pool_whose_cloud_refuses_launches_yields() {
    let mut launcher = one_pool(5);
    launcher.provider("spare", limits(&[]), None);
    launcher.pool(setup("spare", "main", &["small"], limits(&[])), 20);
    let (cloud, spare) = (pool_key("cloud", "main"), pool_key("spare", "main"));
    let refused = submit(&mut launcher, 200, &["small"]);
    launcher.decide();
    assert_eq!(launcher.scheduler.taken_by(refused), Some(&cloud));
    launcher
        .scheduler
        .record_quota_refusal(refused, launcher.now);
    launcher.decide();
    let next = submit(&mut launcher, 200, &["small"]);
    launcher.decide();
    assert_eq!(launcher.scheduler.taken_by(next), Some(&spare));

    launcher.cancel(refused);
    launcher.advance(1.0);
    launcher.decide();
    let last = submit(&mut launcher, 200, &["small"]);
    launcher.decide();
    assert_eq!(launcher.scheduler.taken_by(last), Some(&cloud));
}
