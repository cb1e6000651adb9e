//! The life of a lease, on both stores where that can make a difference.

use std::time::Duration;

use futures_util::future::join_all;
use nodeyard_lease::{
    EndCause, Error, HoldOptions, LeasePhase, LeaseSpec, LeasedNodeState, NodeConnection,
};
use nodeyard_model::{NodeState, RequestState};

use crate::bed::{HOUR, Store, Yard, admin, ask, caller, eventually};
use crate::cloud::small_and_large;

async fn a_whole_life(store: Store) {
    let yard = Yard::start(store, small_and_large(4)).await;
    let me = caller("acme");
    let asked = ask(&["large", "small", "large"]);
    let status = yard.lease(&me, &asked).await;
    assert_eq!(status.lease.phase, LeasePhase::Active, "{status:?}");
    let request = status.lease.request.unwrap();
    assert!(
        yard.records
            .requests()
            .get(request)
            .await
            .unwrap()
            .is_none()
    );

    let mut ids = Vec::new();
    for (leased, label) in status.lease.nodes.iter().zip(&asked.labels) {
        assert_eq!(
            (&leased.label, leased.state),
            (label, LeasedNodeState::Leased)
        );
        ids.push(leased.node);
        let node = yard
            .records
            .nodes()
            .get(leased.node)
            .await
            .unwrap()
            .unwrap();
        let node = node.value;
        assert_eq!(node.labels[0], *label);
        assert_eq!(node.state, NodeState::InUse);
        assert_eq!(node.request(), Some(request));
        assert_eq!(node.tenant_name, me.tenant);
        assert_eq!(node.requestor.as_deref(), Some("nodeyard:somebody of acme"));
        let lock = yard.records.nodes().lock_of(leased.node).unwrap();
        // A launcher may be in the queue, behind the lease.
        let contenders = lock.contenders().await.unwrap();
        assert_eq!(contenders[0].session, None, "outlives every session");
        assert!(contenders[0].identifier.contains(&status.id.to_string()));

        let connection = NodeConnection::from_node(&node);
        assert_eq!(connection.kind, "ssh");
        assert_eq!(connection.user.as_deref(), Some("debian"));
        assert_eq!(connection.port, Some(22));
        assert!(connection.host.is_some());
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 3, "each node is given once");
    eventually("it is found by its nodes and its request", || async {
        let found = [
            yard.leases().find_by_node(ids[0]),
            yard.leases().find_by_request(request),
        ];
        (found == [Some(status.id); 2]).then_some(())
    })
    .await;

    let ended = yard.leases().release(&me, status.id).await.unwrap();
    assert_eq!(ended.end.as_ref().unwrap().cause, EndCause::Released);
    yard.nothing_is_left().await;
    // Releasing is idempotent.
    yard.leases().release(&me, status.id).await.unwrap();
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_asked_for_used_and_given_back_on_the_embedded_store() {
    a_whole_life(Store::embedded()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_asked_for_used_and_given_back_on_zookeeper() {
    a_whole_life(Store::zookeeper().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_stands_for_one_request() {
    let yard = Yard::start(Store::embedded(), small_and_large(4)).await;
    let me = caller("acme");
    let small = ask(&["small"]);
    let many = (0..8).map(|_| yard.leases().create(&me, &small, Some("once")));
    let many: Vec<_> = join_all(many)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert!(many.iter().all(|asked| asked.id == many[0].id));
    assert_eq!(many.iter().filter(|asked| asked.new).count(), 1);
    yard.wait_settled(&me, many[0].id).await;
    let again = yard
        .leases()
        .create(&me, &small, Some("once"))
        .await
        .unwrap();
    assert_eq!((again.id, again.new), (many[0].id, false));

    let other = ask(&["large"]);
    let refused = yard.leases().create(&me, &other, Some("once")).await;
    assert!(
        matches!(refused, Err(Error::KeyReused { .. })),
        "{refused:?}"
    );
    let theirs = yard
        .leases()
        .create(&caller("umbrella"), &other, Some("once"))
        .await
        .unwrap();
    assert!(theirs.new && theirs.id != many[0].id);
    eventually("both are listed", || async {
        (yard.leases().list(&admin()).len() == 2).then_some(())
    })
    .await;
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_not_renewed_ends() {
    let yard = Yard::start(Store::embedded(), small_and_large(4)).await;
    let me = caller("acme");
    let [kept, left] = [&["small"], &["large"]].map(|labels| ask(labels));
    let kept = yard.lease(&me, &kept).await.id;
    let left = yard.lease(&me, &left).await.id;
    // Shorter than the retention of ended leases.
    for _ in 0..3 {
        yard.time.jump(HOUR / 2);
        yard.leases().renew(&me, kept, None).await.unwrap();
    }
    let ended = yard.ended(&me, left).await;
    assert_eq!(ended.lease.end.as_ref().unwrap().cause, EndCause::Expired);
    let refused = yard.leases().renew(&me, left, None).await;
    let cause = match refused {
        Err(Error::Over { cause, .. }) => cause,
        other => panic!("{other:?}"),
    };
    assert_eq!(cause, EndCause::Expired);
    let status = yard.leases().get(&me, kept).await.unwrap();
    assert_eq!(status.lease.phase, LeasePhase::Active);
    yard.leases().release(&me, kept).await.unwrap();
    yard.nothing_is_left().await;

    // The retention time is over.
    yard.time.jump(2 * HOUR);
    eventually("the records are gone", || async {
        yard.leases().list(&admin()).is_empty().then_some(())
    })
    .await;
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_waits_can_be_cancelled_and_ends_with_its_time() {
    let yard = Yard::start(Store::embedded(), small_and_large(1)).await;
    let me = caller("acme");
    let first = yard.lease(&me, &ask(&["small"])).await.id;
    let waits = |labels: &'static [&str]| async {
        yard.leases().create(&me, &ask(labels), None).await.unwrap()
    };
    let cancelled = waits(&["small"]).await;
    let forgotten = waits(&["large"]).await;
    let state = |status: nodeyard_lease::LeaseStatus| status.request.map(|request| request.state);
    for waiting in [&cancelled, &forgotten] {
        let status = yard.leases().get(&me, waiting.id).await.unwrap();
        assert_eq!(status.lease.phase, LeasePhase::Waiting);
        let request = waiting.lease.request.unwrap();
        eventually("it is found by its request", || async {
            (yard.leases().find_by_request(request) == Some(waiting.id)).then_some(())
        })
        .await;
        assert_ne!(state(status), Some(RequestState::Fulfilled));
    }
    let lease = yard.leases().release(&me, cancelled.id).await.unwrap();
    assert_eq!(lease.end.as_ref().unwrap().cause, EndCause::Cancelled);
    yard.time.jump(HOUR * 9 / 10);
    yard.leases().renew(&me, first, None).await.unwrap();
    yard.time.jump(HOUR * 2 / 10);
    let ended = yard.ended(&me, forgotten.id).await;
    assert_eq!(ended.lease.end.as_ref().unwrap().cause, EndCause::Expired);
    eventually("no request is left", || async {
        let requests = yard.records.requests().list().await.unwrap();
        requests.is_empty().then_some(())
    })
    .await;
    yard.leases().release(&me, first).await.unwrap();
    yard.nothing_is_left().await;
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_has_fails_and_says_so() {
    let yard = Yard::start(Store::embedded(), small_and_large(4)).await;
    let me = caller("acme");
    let status = yard.lease(&me, &ask(&["small", "unheard-of"])).await;
    let status = yard.ended(&me, status.id).await;
    let end = status.lease.end.clone().unwrap();
    assert_eq!(end.cause, EndCause::Failed);
    assert!(end.text.unwrap().contains("declined"));
    yard.nothing_is_left().await;
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_elses_deletion_of_the_request_is_its_end() {
    let yard = Yard::start(Store::embedded(), small_and_large(1)).await;
    let me = caller("acme");
    let first = yard.lease(&me, &ask(&["small"])).await.id;
    let waiting = yard
        .leases()
        .create(&me, &ask(&["small"]), None)
        .await
        .unwrap();
    let request = waiting.lease.request.unwrap();
    assert!(yard.records.requests().delete(request).await.unwrap());
    let ended = yard.ended(&me, waiting.id).await;
    assert_eq!(ended.lease.end.as_ref().unwrap().cause, EndCause::Withdrawn);
    yard.leases().release(&me, first).await.unwrap();
    yard.nothing_is_left().await;
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_leave_one_by_one_and_held_ones_stay() {
    let yard = Yard::start(Store::embedded(), small_and_large(4)).await;
    let me = caller("acme");
    let status = yard.lease(&me, &ask(&["small", "large", "small"])).await;
    let id = status.id;
    let nodes: Vec<_> = status
        .lease
        .nodes
        .iter()
        .map(|leased| leased.node)
        .collect();
    yard.leases().release_node(&me, id, nodes[0]).await.unwrap();
    eventually("the first node goes", || async {
        let node = yard.records.nodes().get(nodes[0]).await.unwrap();
        node.is_none().then_some(())
    })
    .await;
    let hold = HoldOptions {
        comment: Some("look at this".to_owned()),
        expiration: Some(86_400),
    };
    let lease = yard
        .leases()
        .hold(&me, id, nodes[1], hold.clone())
        .await
        .unwrap();
    let states: Vec<_> = lease.nodes.iter().map(|leased| leased.state).collect();
    assert_eq!(
        states,
        [
            LeasedNodeState::Returned,
            LeasedNodeState::Held,
            LeasedNodeState::Leased
        ]
    );
    let refused = yard.leases().hold(&me, id, nodes[0], hold).await;
    assert!(matches!(refused, Err(Error::NodeIs { .. })), "{refused:?}");
    let held = yard.records.nodes().get(nodes[1]).await.unwrap().unwrap();
    assert_eq!(held.value.state, NodeState::Hold);
    assert_eq!(held.value.comment.as_deref(), Some("look at this"));
    assert_eq!(held.value.hold_expiration, Some(86_400));
    let lock = yard.records.nodes().lock_of(nodes[1]).unwrap();
    eventually("nobody locks it", || async {
        lock.contenders().await.unwrap().is_empty().then_some(())
    })
    .await;

    // The record of an ended lease is kept as long as it has nodes on hold.
    yard.time.jump(HOUR + Duration::from_secs(1));
    yard.ended(&me, id).await;
    yard.time.jump(10 * HOUR);
    eventually("only the node on hold is left", || async {
        let nodes = yard.records.nodes().list().await.unwrap();
        (nodes.len() == 1 && nodes[0].1.value.state == NodeState::Hold).then_some(())
    })
    .await;
    let lease = yard.leases().release_hold(&me, id, nodes[1]).await.unwrap();
    assert_eq!(lease.held().count(), 0);
    yard.nothing_is_left().await;
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_do_not_see_each_other() {
    let yard = Yard::start(Store::embedded(), small_and_large(4)).await;
    let (me, other) = (caller("acme"), caller("umbrella"));
    let status = yard.lease(&me, &ask(&["small"])).await;
    let (id, node) = (status.id, status.lease.nodes[0].node);
    let leases = yard.leases();
    let refusals = [
        leases.get(&other, id).await.err(),
        leases.renew(&other, id, None).await.err(),
        leases.release(&other, id).await.err(),
        leases.release_node(&other, id, node).await.err(),
        leases
            .hold(&other, id, node, HoldOptions::default())
            .await
            .err(),
        leases.release_hold(&other, id, node).await.err(),
    ];
    for refusal in refusals {
        assert!(
            matches!(refusal, Some(Error::NoSuchLease { .. })),
            "{refusal:?}"
        );
    }
    assert!(leases.list(&other).is_empty());
    let for_me = LeaseSpec {
        tenant: me.tenant.clone(),
        ..ask(&["small"])
    };
    let refused = leases.create(&other, &for_me, None).await;
    assert!(
        matches!(refused, Err(Error::OtherTenant { .. })),
        "{refused:?}"
    );
    let made = leases.create(&admin(), &for_me, None).await.unwrap();
    assert_eq!(made.lease.tenant, me.tenant);
    assert_eq!(leases.get(&me, made.id).await.unwrap().id, made.id);
    leases.release(&me, made.id).await.unwrap();
    leases.release(&admin(), id).await.unwrap();
    yard.nothing_is_left().await;
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_refused_before_anything_is_written() {
    let yard = Yard::start(Store::embedded(), small_and_large(4)).await;
    let me = caller("acme");
    let long = "x".repeat(300);
    let wrong = [
        ask(&[]),
        ask(&["small"; 101]),
        ask(&[""]),
        ask(&["a\nb"]),
        ask(&[&long]),
        LeaseSpec {
            duration: 0,
            ..ask(&["small"])
        },
        LeaseSpec {
            duration: u64::MAX,
            ..ask(&["small"])
        },
    ];
    for ask in wrong {
        let refused = yard.leases().create(&me, &ask, None).await;
        assert!(
            matches!(refused, Err(Error::Invalid { .. })),
            "{ask:?}: {refused:?}"
        );
    }
    let refused = yard.leases().create(&me, &ask(&["small"]), Some("")).await;
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    assert!(yard.records.requests().list().await.unwrap().is_empty());
    yard.stop().await;
}
