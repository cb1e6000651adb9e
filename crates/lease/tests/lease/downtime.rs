//! Leases that are overdue because nobody could renew them.

use std::time::Duration;

use nodeyard_lease::{EndCause, LeasePhase, LeaseSpec, Options, ScopeAffinity};

use crate::bed::{HOUR, Keeping, Store, Yard, ask, caller, leases, options};
use crate::cloud::small_and_large;

fn window(of: Duration) -> Options {
    Options {
        renewal_window: of,
        ..options()
    }
}

/// Replaces the keeper by one with a renewal window, after a downtime.
async fn restart(mut yard: Yard, window_of: Duration, downtime: Duration) -> Yard {
    yard.keeping.service.stop().await;
    yard.time.jump(downtime);
    let tree = yard.store.session().await;
    let leases = leases(&tree, &yard.time);
    yard.keeping = Keeping::start_with(tree, leases, window(window_of));
    yard
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_can_be_renewed_after_a_downtime_that_outlasts_them() {
    let yard = Yard::start(Store::embedded(), small_and_large(9)).await;
    let me = caller("acme");
    let name = "afternoon".parse().unwrap();
    yard.leases()
        .open_scope(&me, None, &name, 3600)
        .await
        .unwrap();
    let within = LeaseSpec {
        scope: Some(name.clone()),
        affinity: ScopeAffinity::Prefer,
        ..ask(&["small"])
    };
    let alone = yard.lease(&me, &ask(&["small"])).await.id;
    let within = yard.lease(&me, &within).await.id;

    let yard = restart(yard, HOUR, 2 * HOUR).await;
    // Once it is served, the keeper has reconciled everything else.
    let later = yard.lease(&me, &ask(&["large"])).await.id;
    for id in [alone, within] {
        yard.leases().renew(&me, id, None).await.unwrap();
    }
    let renewed = yard.leases().renew_scope(&me, None, &name, None).await;
    assert!(renewed.unwrap().is_some());
    for id in [alone, within, later] {
        let status = yard.leases().get(&me, id).await.unwrap();
        assert_eq!(status.lease.phase, LeasePhase::Active);
        yard.leases().release(&me, id).await.unwrap();
    }
    yard.nothing_is_left().await;
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_can_be_renewed_after_a_step_of_the_clock() {
    let yard = Yard::start(Store::embedded(), small_and_large(9)).await;
    let yard = restart(yard, HOUR, Duration::ZERO).await;
    let me = caller("acme");
    let id = yard.lease(&me, &ask(&["small"])).await.id;
    yard.time.jump(2 * HOUR);
    let later = yard.lease(&me, &ask(&["large"])).await.id;
    yard.leases().renew(&me, id, None).await.unwrap();
    for id in [id, later] {
        let status = yard.leases().get(&me, id).await.unwrap();
        assert_eq!(status.lease.phase, LeasePhase::Active);
        yard.leases().release(&me, id).await.unwrap();
    }
    yard.nothing_is_left().await;
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_nobody_renews_ends_after_the_window() {
    let yard = Yard::start(Store::embedded(), small_and_large(9)).await;
    let me = caller("acme");
    let id = yard.lease(&me, &ask(&["small"])).await.id;
    let yard = restart(yard, Duration::from_secs(1), 2 * HOUR).await;
    let ended = yard.ended(&me, id).await;
    assert_eq!(ended.lease.end.as_ref().unwrap().cause, EndCause::Expired);
    yard.nothing_is_left().await;
    yard.stop().await;
}
