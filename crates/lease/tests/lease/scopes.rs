//! Scopes: ownership, placement and expiry.

use nodeyard_lease::{
    EndCause, Error, LeasePhase, LeasePlacement, LeaseSpec, LeaseStatus, ScopeAffinity, ScopeName,
    ScopeStatus,
};
use nodeyard_model::{NodeRequest, NodeState, Opaque, RequestState};
use nodeyard_store::registry::{Lifetime, Patience};

use crate::bed::{HOUR, PATIENCE, Store, Yard, admin, ask, caller, eventually};
use crate::cloud::{config, small_and_large};

fn scope(name: &str) -> ScopeName {
    name.parse().unwrap()
}

fn within(name: &str, affinity: ScopeAffinity, labels: &[&str]) -> LeaseSpec {
    LeaseSpec {
        scope: Some(scope(name)),
        affinity,
        ..ask(labels)
    }
}

async fn provider(yard: &Yard, status: &LeaseStatus) -> String {
    let node = status.lease.nodes[0].node;
    let node = yard.records.nodes().get(node).await.unwrap().unwrap();
    node.value.provider.unwrap().to_string()
}

/// Both clouds have `common`, each has one of its own.
fn two_clouds() -> String {
    config(
        9,
        &[
            ("east", &["common", "eastern"]),
            ("west", &["common", "western"]),
        ],
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_nodes_pin_the_others() {
    let yard = Yard::start(Store::embedded(), two_clouds()).await;
    let me = caller("acme");
    let first = yard
        .lease(&me, &within("s", ScopeAffinity::Prefer, &["western"]))
        .await;
    assert_eq!(first.lease.placement, LeasePlacement::Anywhere);
    for _ in 0..3 {
        let next = yard
            .lease(&me, &within("s", ScopeAffinity::Prefer, &["common"]))
            .await;
        assert_eq!(provider(&yard, &next).await, "west");
        assert!(
            next.lease
                .placement
                .to_string()
                .starts_with("provider west")
        );
    }
    // The provider in a spec takes precedence.
    let named = LeaseSpec {
        provider: Some("east".parse().unwrap()),
        ..within("s", ScopeAffinity::Strict, &["common"])
    };
    assert_eq!(
        provider(&yard, &yard.lease(&me, &named).await).await,
        "east"
    );

    let fallback = yard
        .lease(&me, &within("s", ScopeAffinity::Prefer, &["eastern"]))
        .await;
    assert_eq!(provider(&yard, &fallback).await, "east");
    let placement = &fallback.lease.placement;
    assert!(
        matches!(placement, LeasePlacement::Fallback { .. }),
        "{placement}"
    );

    let strict = yard
        .lease(&me, &within("s", ScopeAffinity::Strict, &["eastern"]))
        .await;
    let strict = yard.ended(&me, strict.id).await;
    assert_eq!(strict.lease.end.as_ref().unwrap().cause, EndCause::Failed);
    assert!(matches!(
        strict.lease.placement,
        LeasePlacement::Scope { .. }
    ));

    // Another tenant has another scope of this name.
    let theirs = caller("umbrella");
    let other = yard
        .lease(&theirs, &within("s", ScopeAffinity::Strict, &["eastern"]))
        .await;
    assert_eq!(provider(&yard, &other).await, "east");
    yard.leases()
        .close_scope(&me, None, &scope("s"))
        .await
        .unwrap();
    eventually("the scope is gone", || async {
        let gone = yard.leases().scope(&me, None, &scope("s")).await;
        matches!(gone, Err(Error::NoSuchScope { .. })).then_some(())
    })
    .await;
    assert_eq!(
        yard.leases()
            .get(&theirs, other.id)
            .await
            .unwrap()
            .lease
            .phase,
        LeasePhase::Active
    );
    let anew = yard
        .lease(&me, &within("s", ScopeAffinity::Strict, &["eastern"]))
        .await;
    assert_eq!(provider(&yard, &anew).await, "east");
    yard.leases().release(&me, anew.id).await.unwrap();
    yard.leases().release(&theirs, other.id).await.unwrap();
    yard.nothing_is_left().await;
    // They were not opened explicitly, so they are deleted with their leases.
    eventually("no scope is left", || async {
        yard.leases().scopes(&admin()).is_empty().then_some(())
    })
    .await;
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_ends_with_its_time_and_takes_its_leases_along() {
    let yard = Yard::start(Store::embedded(), small_and_large(1)).await;
    let me = caller("acme");
    let name = scope("afternoon");
    let leases = yard.leases();
    leases.open_scope(&me, None, &name, 600).await.unwrap();
    let twice = leases.open_scope(&me, None, &name, 600).await;
    assert!(matches!(twice, Err(Error::ScopeExists { .. })), "{twice:?}");
    let has = yard
        .lease(&me, &within("afternoon", ScopeAffinity::Prefer, &["small"]))
        .await;
    let waits = within("afternoon", ScopeAffinity::Prefer, &["large"]);
    let waits = leases.create(&me, &waits, None).await.unwrap();

    yard.time.jump(HOUR / 10);
    leases.renew_scope(&me, None, &name, None).await.unwrap();
    yard.time.jump(HOUR / 10);
    let status = leases.scope(&me, None, &name).await.unwrap();
    let ScopeStatus::Own { leases: owned, .. } = &status else {
        panic!("{status:?}");
    };
    assert_eq!(owned.len(), 2);
    assert!(leases.scopes(&caller("umbrella")).is_empty());
    let refused = leases.close_scope(&caller("umbrella"), None, &name).await;
    assert!(
        matches!(refused, Err(Error::NoSuchScope { .. })),
        "{refused:?}"
    );

    yard.time.jump(HOUR / 10);
    for id in [has.id, waits.id] {
        let ended = yard.ended(&me, id).await;
        assert_eq!(
            ended.lease.end.as_ref().unwrap().cause,
            EndCause::ScopeEnded
        );
    }
    yard.nothing_is_left().await;
    eventually("the scope is gone", || async {
        leases.scopes(&admin()).is_empty().then_some(())
    })
    .await;
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn its_nodes_are_an_inventory() {
    let yard = Yard::start(Store::embedded(), small_and_large(9)).await;
    let me = caller("acme");
    let asked = within("jobs", ScopeAffinity::Prefer, &["small", "large", "small"]);
    let status = yard.lease(&me, &asked).await;
    eventually("the nodes are seen to be in use", || async {
        let scope = yard
            .leases()
            .scope(&me, None, &scope("jobs"))
            .await
            .unwrap();
        (scope.nodes().len() == 3).then_some(())
    })
    .await;
    let shown = yard
        .leases()
        .scope(&me, None, &scope("jobs"))
        .await
        .unwrap();
    let inventory = shown.inventory();
    let names = |label: &str| -> Vec<String> {
        let parts = status.lease.nodes.iter();
        let parts = parts.filter(|leased| leased.label.as_str() == label);
        parts
            .map(|leased| format!("{label}-{}", leased.node))
            .collect()
    };
    for label in ["small", "large"] {
        assert_eq!(inventory[label]["hosts"], serde_json::json!(names(label)));
    }
    let node = status.lease.nodes[0].node;
    let node = yard.records.nodes().get(node).await.unwrap().unwrap().value;
    let host = &inventory["_meta"]["hostvars"][&names("small")[0]];
    assert_eq!(host["ansible_host"], serde_json::json!(node.interface_ip));
    assert_eq!(host["ansible_port"], 22);
    assert_eq!(host["ansible_user"], "debian");
    assert_eq!(host["ansible_connection"], "ssh");
    assert_eq!(host["ansible_python_interpreter"], "/usr/bin/python3");
    assert_eq!(host["nodepool"]["provider"], "east");

    yard.leases()
        .release_node(&me, status.id, status.lease.nodes[0].node)
        .await
        .unwrap();
    let shown = yard
        .leases()
        .scope(&me, None, &scope("jobs"))
        .await
        .unwrap();
    assert_eq!(shown.nodes().len(), 2);
    yard.leases().release(&me, status.id).await.unwrap();
    yard.nothing_is_left().await;
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buildset_of_zuul_is_seen_and_left_alone() {
    let yard = Yard::start(Store::embedded(), small_and_large(9)).await;
    let now = nodeyard_model::now();
    let mut record = NodeRequest::new(RequestState::Requested, now);
    record.labels = vec!["small".into(), "large".into()];
    record.requestor = Some("zuul-system-id".into());
    record.tenant_name = Some("acme".into());
    record.requestor_data = Opaque::encode(&serde_json::json!({
        "build_set_uuid": "0f3c", "tenant_name": "acme", "pipeline_name": "check", "job_name": "unit",
    }))
    .unwrap();
    let requests = yard.records.requests();
    let made = requests.create(200, &record, Lifetime::UntilDeleted).await;
    let (request, _) = made.unwrap();
    let nodes = eventually("Zuul's request is fulfilled", || async {
        let record = requests.get(request).await.unwrap()?.value;
        (record.state == RequestState::Fulfilled).then_some(record.nodes)
    })
    .await;
    let mut guards = Vec::new();
    for node in &nodes {
        let lock = yard
            .records
            .nodes()
            .lock(*node, Patience::For(PATIENCE))
            .await
            .unwrap();
        let mut held = lock.held().unwrap();
        held.value.set_state(NodeState::InUse, now);
        yard.records
            .nodes()
            .store(&held.guard, *node, &held.value)
            .await
            .unwrap();
        guards.push(held.guard);
    }
    requests.delete(request).await.unwrap();

    let name = scope("zuul:0f3c");
    let me = caller("acme");
    let shown = eventually("its nodes are shown", || async {
        let shown = yard.leases().scope(&me, None, &name).await.ok()?;
        let ScopeStatus::Buildset(buildset) = &shown else {
            panic!("{shown:?}");
        };
        let done = buildset.requests.is_empty() && buildset.nodes.len() == 2;
        done.then_some(shown)
    })
    .await;
    assert_eq!(
        shown.inventory()["large"]["hosts"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(yard.leases().scopes(&me).len(), 1);
    assert!(yard.leases().scopes(&caller("umbrella")).is_empty());
    for refused in [
        yard.leases().close_scope(&me, None, &name).await.err(),
        yard.leases()
            .renew_scope(&me, None, &name, None)
            .await
            .err(),
        yard.leases().open_scope(&me, None, &name, 60).await.err(),
        yard.leases()
            .create(
                &me,
                &within("zuul:0f3c", ScopeAffinity::Prefer, &["small"]),
                None,
            )
            .await
            .err(),
    ] {
        assert!(
            matches!(refused, Some(Error::ScopeOfZuul { .. })),
            "{refused:?}"
        );
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
    yard.nothing_is_left().await;
    eventually("it is seen no more", || async {
        yard.leases().scopes(&me).is_empty().then_some(())
    })
    .await;
    yard.stop().await;
}
