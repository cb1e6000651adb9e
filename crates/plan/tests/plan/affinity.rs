//! Where a request goes that names a provider, and nodes that are for one request alone.

use std::collections::BTreeMap;

use crate::common::{Launcher, ask, component, limits, pool_key, setup, time};
use nodeyard_model::{Label, NodeRequest, NodeState, ProviderName, RequestId, RequestState};
use nodeyard_plan::expiry::{self, Reason};
use nodeyard_plan::{Policy, PoolKey, ProviderSetup};

/// Providers with one pool each: the name, the cluster, and whether `affinity: require` is set.
fn launcher(providers: &[(&str, Option<&str>, bool)]) -> Launcher {
    let mut launcher = Launcher::new(Policy::default());
    for (name, cluster, require) in providers {
        let provider = ProviderName::new(*name).unwrap();
        launcher.provider(name, limits(&[]), None);
        let setup_of_provider = ProviderSetup {
            keeps_to_cluster: *require,
            ..ProviderSetup::default()
        };
        launcher
            .scheduler
            .set_provider(&provider, setup_of_provider);
        let pool = setup(name, "main", &["small"], limits(&[]));
        let mut registered = component(&pool, 100);
        registered.cluster = cluster.map(Into::into);
        launcher.scheduler.set_own_pool(pool.clone());
        launcher.scheduler.put_pool(name, &registered);
        launcher.pools.insert(pool.key.clone(), pool);
    }
    launcher
}

fn asking_for(launcher: &Launcher, provider: &str) -> NodeRequest {
    let mut request = ask(&["small"], launcher.now);
    request.provider = Some(ProviderName::new(provider).unwrap());
    request
}

/// Returns which pool serves a request that names `provider` after those of `declined` have declined.
fn served_by(launcher: &mut Launcher, provider: &str, declined: &[&str]) -> Option<PoolKey> {
    let mut request = asking_for(launcher, provider);
    for name in declined {
        let pool = &launcher.pools[&pool_key(name, "main")];
        request.declined_by.push(pool.id.clone());
    }
    let id = launcher.submit(200, request);
    launcher.decide();
    launcher.carry_out_all();
    launcher.scheduler.taken_by(id).cloned()
}

fn state(launcher: &Launcher, id: RequestId) -> RequestState {
    launcher.requests[&id].state
}

#[test]
fn the_named_provider_comes_first_then_its_cluster_then_any_pool() {
    let mut launcher = launcher(&[
        ("another", Some("elsewhere"), false),
        ("cloud", None, false),
        ("near", Some("here"), false),
        ("wanted", Some("here"), false),
    ]);
    let mut served = |declined: &[&str]| {
        let key = served_by(&mut launcher, "wanted", declined);
        key.map(|key| key.provider.to_string())
    };
    assert_eq!(served(&[]).as_deref(), Some("wanted"));
    assert_eq!(served(&["wanted"]).as_deref(), Some("near"));
    assert!(served(&["wanted", "near"]).is_some());
}

#[test]
fn a_named_provider_that_is_in_no_cluster_has_no_neighbours() {
    let mut launcher = launcher(&[
        ("a", None, false),
        ("b", None, false),
        ("wanted", None, false),
    ]);
    let served = served_by(&mut launcher, "wanted", &["wanted"]).unwrap();
    assert_eq!(
        served,
        pool_key("a", "main"),
        "the first pool that runs a pass"
    );
}

#[test]
fn who_keeps_to_a_cluster_does_not_stand_in_for_another() {
    let mut launcher = launcher(&[
        ("cloud", None, false),
        ("strict", Some("elsewhere"), true),
        ("wanted", Some("here"), false),
    ]);
    let cloud = served_by(&mut launcher, "wanted", &["wanted"]).unwrap();
    assert_eq!(cloud, pool_key("cloud", "main"));
    assert_eq!(
        served_by(&mut launcher, "wanted", &["wanted", "cloud"]),
        None
    );
    // Of the named provider's own cluster, or if the named one is in none, it is as good as any.
    let strict = served_by(&mut launcher, "cloud", &["cloud", "wanted"]).unwrap();
    assert_eq!(strict, pool_key("strict", "main"));
    let same = served_by(&mut launcher, "strict", &[]).unwrap();
    assert_eq!(same, pool_key("strict", "main"));
}

#[test]
fn it_is_said_why() {
    let mut launcher = launcher(&[("strict", Some("elsewhere"), true)]);
    let id = launcher.submit(200, asking_for(&launcher, "gone"));
    launcher.decide();
    assert!(
        launcher.log[0].contains("affinity: require"),
        "{:?}",
        launcher.log
    );
    launcher.carry_out_all();
    assert_eq!(state(&launcher, id), RequestState::Failed);
}

#[test]
fn a_node_for_one_request_is_never_given_to_another() {
    let mut launcher = Launcher::new(Policy::default());
    launcher.provider("cloud", limits(&[]), None);
    let mut pool = setup("cloud", "main", &["small"], limits(&[]));
    pool.labels.get_mut(&Label::from("small")).unwrap().bound = true;
    launcher.pool(pool, 100);
    let first = launcher.submit(200, ask(&["small"], launcher.now));
    launcher.decide();
    launcher.carry_out_all();
    let [node] = launcher.building()[..] else {
        panic!("one launch")
    };
    launcher.finish_launch(node);
    // The request is withdrawn, and its node is free.
    launcher.requests.remove(&first);
    launcher.scheduler.remove_request(first);
    let mut record = launcher.nodes[&node].clone();
    record.allocated_to = None;
    launcher.scheduler.put_node(node, &record);
    launcher.nodes.insert(node, record);
    assert_eq!(launcher.nodes[&node].state, NodeState::Ready);

    launcher.submit(200, ask(&["small"], launcher.now));
    launcher.decide();
    launcher.carry_out_all();
    assert_eq!(launcher.building().len(), 1, "another one is launched");
    let plan = expiry::plan(&launcher.scheduler, &BTreeMap::new(), None, time(1000.0));
    let [expired] = plan.expired.as_slice() else {
        panic!("{plan:?}")
    };
    assert_eq!((expired.node, expired.reason), (node, Reason::Bound));
}
