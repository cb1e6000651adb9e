//! Lost connections and sessions.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use nodeyard_lease::{EndCause, LeasePhase};
use nodeyard_model::layout;
use nodeyard_store::{Session, TreePath};

use crate::bed::{HOUR, Keeping, Store, Yard, ask, caller, eventually, wait_settled};
use crate::cloud::small_and_large;

#[tokio::test(flavor = "multi_thread")]
async fn lost_connections_lose_nothing() {
    let store = Store::zookeeper().await;
    let (tree, proxy) = store.through_a_proxy(Duration::from_secs(60)).await;
    let mut yard = Yard::start(store, small_and_large(30)).await;
    yard.keeping.service.stop().await;
    yard.keeping = Keeping::start(tree, &yard.time);
    let me = caller("acme");
    let lives = (0..20).map(|_| {
        let (leases, me) = (yard.leases().clone(), me.clone());
        tokio::spawn(async move {
            let asked = leases.create(&me, &ask(&["small"]), None).await.unwrap();
            let status = wait_settled(&leases, &me, asked.id).await;
            assert_eq!(status.lease.phase, LeasePhase::Active, "{status:?}");
            leases.renew(&me, asked.id, None).await.unwrap();
            let ended = leases.release(&me, asked.id).await.unwrap();
            assert_eq!(ended.end.as_ref().unwrap().cause, EndCause::Released);
            status.lease.nodes[0].node
        })
    });
    let lives: Vec<_> = lives.collect();
    // A limited number, so that a slow machine gets work done.
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(70)).await;
        proxy.drop_connections();
    }
    let nodes = join_all(lives).await.into_iter();
    let mut nodes: Vec<_> = nodes.map(Result::unwrap).collect();
    nodes.sort_unstable();
    nodes.dedup();
    assert_eq!(nodes.len(), 20, "each lease has its own node");
    yard.nothing_is_left().await;
    yard.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keeper_goes_on_in_a_new_session() {
    let store = Store::zookeeper().await;
    let (tree, proxy) = store.through_a_proxy(Duration::from_secs(2)).await;
    let mut yard = Yard::start(store, small_and_large(4)).await;
    yard.keeping.service.stop().await;
    yard.keeping = Keeping::start(Arc::clone(&tree), &yard.time);
    yard.keeping.until_working().await;
    let me = caller("acme");
    let active = yard.lease(&me, &ask(&["small"])).await;
    let before = tree.session().borrow().id();
    proxy.refuse(true);
    eventually("the session is over", || async {
        let lock = TreePath::new(layout::LEASES_ELECTION).unwrap();
        let candidates = yard.records.tree().children(&lock).await.unwrap();
        candidates.names.is_empty().then_some(())
    })
    .await;
    proxy.refuse(false);
    eventually("there is another session", || async {
        let session = *tree.session().borrow();
        (matches!(session, Session::Connected(_)) && session.id() != before).then_some(())
    })
    .await;
    // The lease is still active, and new ones are served.
    let next = yard.lease(&me, &ask(&["large"])).await;
    assert_eq!(next.lease.phase, LeasePhase::Active);
    let status = yard.leases().get(&me, active.id).await.unwrap();
    assert_eq!(status.lease, active.lease);
    yard.time.jump(HOUR);
    yard.ended(&me, active.id).await;
    yard.nothing_is_left().await;
    yard.stop().await;
}
