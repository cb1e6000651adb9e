//! Every kind of limit, on every kind of resource: what is left of it is given out, and no more.

use crate::common::{Launcher, ask, limits, setup};
use nodeyard_model::{Limits, RequestId, RequestState, ResourceName, Resources};
use nodeyard_plan::Policy;
use nodeyard_plan::assign::DecisionInputs;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Ledger {
    Pool,
    Provider,
    Tenant,
}

/// What one node of the label costs. The last one is a resource that only a driver knows.
const COST: [(&str, i64); 6] = [
    ("cores", 2),
    ("instances", 1),
    ("ram", 4000),
    ("volumes", 1),
    ("volume-gb", 40),
    ("nvidia.com/gpu", 3),
];

/// There is room for two nodes and a bit, by one limit.
fn launcher(ledger: Ledger, resource: &str, cost: i64) -> Launcher {
    let most = limits(&[(resource, 3 * cost - 1)]);
    let of = |limited| {
        if ledger == limited {
            most.clone()
        } else {
            Limits::unlimited()
        }
    };
    let mut launcher = Launcher::new(Policy::default());
    launcher.provider("cloud", of(Ledger::Provider), None);
    let mut pool = setup("cloud", "main", &["big", "plain"], of(Ledger::Pool));
    let big: Resources = COST
        .iter()
        .map(|(name, cost)| (ResourceName::from(*name), *cost))
        .collect();
    pool.labels.get_mut("big").unwrap().cost = big;
    pool.labels.get_mut("plain").unwrap().cost = Resources::default();
    launcher.pool(pool, 10);
    launcher.tenants(&[("t", of(Ledger::Tenant))]);
    launcher
}

fn submit(launcher: &mut Launcher, labels: &[&str]) -> RequestId {
    let mut record = ask(labels, launcher.now);
    record.tenant_name = Some("t".into());
    launcher.submit(200, record)
}

fn run(launcher: &mut Launcher) {
    launcher.decide();
    launcher.check();
    launcher.carry_out_all();
    launcher.check();
    for node in launcher.building() {
        launcher.finish_launch(node);
    }
    launcher.decide();
}

#[test]
fn no_more_is_given_than_a_limit_allows() {
    for ledger in [Ledger::Pool, Ledger::Provider, Ledger::Tenant] {
        for (resource, cost) in COST {
            let mut launcher = launcher(ledger, resource, cost);
            // All at once: what is promised counts before a record does.
            let ids = [(); 3].map(|()| submit(&mut launcher, &["big"]));
            let plain = submit(&mut launcher, &["plain"]);
            run(&mut launcher);
            let case = format!("{ledger:?}, {resource}");
            assert_eq!(launcher.fulfilled(), [ids[0], ids[1], plain], "{case}");
            let whose = match ledger {
                Ledger::Pool => "pool cloud/main",
                Ledger::Provider => "provider cloud",
                Ledger::Tenant => "tenant t",
            };
            let at = DecisionInputs {
                now: launcher.now,
                seed: 0,
            };
            let why = launcher.scheduler.explain(ids[2], at).unwrap().to_string();
            let sum = format!(
                "{cost} {resource} needed, {whose} has {} of {} in use",
                2 * cost,
                3 * cost - 1
            );
            assert!(why.contains(&sum), "{case}: {why}");

            launcher.use_and_return(ids[0]);
            launcher.clean();
            run(&mut launcher);
            assert_eq!(launcher.fulfilled(), [ids[1], ids[2], plain], "{case}");
        }
    }
}

#[test]
fn what_exceeds_a_limit_by_itself_is_declined_by_the_pool_and_waits_at_the_tenant() {
    for (resource, cost) in COST {
        for ledger in [Ledger::Pool, Ledger::Provider] {
            let mut launcher = launcher(ledger, resource, cost);
            let id = submit(&mut launcher, &["big"; 3]);
            run(&mut launcher);
            let state = launcher.requests[&id].state;
            assert_eq!(state, RequestState::Failed, "{ledger:?}, {resource}");
        }
        let mut launcher = launcher(Ledger::Tenant, resource, cost);
        let id = submit(&mut launcher, &["big"; 3]);
        run(&mut launcher);
        assert_eq!(launcher.requests[&id].state, RequestState::Requested);
    }
}
