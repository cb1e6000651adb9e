//! `kill -9` at every step of a lease's life.
//!
//! A process that creates, keeps and releases a lease dies before or after its n-th operation on the store, for every n.
//! Another one repeats the call with the same key. Each node is used once, and nothing is left.

use futures_util::future::join_all;
use nodeyard_lease::{EndCause, HoldOptions, LeasePhase, LeaseSpec, Leases, ScopeAffinity};
use nodeyard_model::NodeId;
use nodeyard_store::registry::Registry;
use nodeyard_store::testing::{Fuse, Moment, Mortal};
use nodeyard_testbeds::sample;

use crate::bed::{
    Keeping, Store, Time, ask, caller, eventually, launcher, logs, nothing_is_left, wait_settled,
};
use crate::cloud::{Clouds, small_and_large};

/// Runs at the same time; they mostly wait.
const AT_ONCE: usize = 6;

/// How the life of the lease ends.
#[derive(Debug, Clone, Copy)]
enum Life {
    /// Nodes are removed one by one: released, or put on hold and released from that.
    OneByOne,
    /// Its scope is closed.
    Scope,
}

/// Makes all calls of a lessee. Can be repeated at any time.
async fn live(leases: &Leases, life: Life) -> Vec<NodeId> {
    let me = caller("acme");
    let wanted = match life {
        Life::OneByOne => ask(&["small", "large"]),
        Life::Scope => LeaseSpec {
            scope: Some("s".parse().unwrap()),
            affinity: ScopeAffinity::Strict,
            ..ask(&["large", "small"])
        },
    };
    let asked = leases.create(&me, &wanted, Some("key")).await.unwrap();
    let status = wait_settled(leases, &me, asked.id).await;
    let nodes: Vec<NodeId> = status
        .lease
        .nodes
        .iter()
        .map(|leased| leased.node)
        .collect();
    assert_eq!(nodes.len(), 2, "{status:?}");
    match life {
        Life::OneByOne => {
            leases.release_node(&me, asked.id, nodes[0]).await.unwrap();
            // Fails when it is repeated.
            let _ = leases
                .hold(&me, asked.id, nodes[1], HoldOptions::default())
                .await;
            leases.release_hold(&me, asked.id, nodes[1]).await.unwrap();
        }
        Life::Scope => {
            let scope = "s".parse().unwrap();
            // Fails if it was deleted already.
            let _ = leases.close_scope(&me, None, &scope).await;
        }
    }
    nodes
}

/// Returns false if the process completed before the n-th operation.
async fn die(at: usize, moment: Moment, life: Life) -> bool {
    let store = Store::embedded();
    let time = Time::default();
    let clouds = Clouds::new();
    let launcher = launcher(&store, &clouds, &small_and_large(4)).await;
    let records = Registry::new(store.session().await);
    let fuse = Fuse::new(at, moment);
    let victim = Keeping::start(Mortal::new(store.session().await, &fuse) as _, &time);
    let done = async {
        let nodes = live(&victim.leases, life).await;
        nothing_is_left(&records, &clouds).await;
        scopes_end(&victim.leases).await;
        nodes
    };
    let died = tokio::select! {
        () = fuse.blown() => true,
        _ = done => false,
    };
    victim.service.kill().await;
    let heir = Keeping::start(store.session().await, &time);
    let nodes = live(&heir.leases, life).await;
    let mut unique = nodes.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(
        unique.len(),
        nodes.len(),
        "a node was given twice ({at}, {moment:?})"
    );
    nothing_is_left(&records, &clouds).await;
    scopes_end(&heir.leases).await;
    let leases = eventually("the lease has ended", || async {
        let leases = heir.leases.list(&caller("acme"));
        let ended = leases.first()?.lease.phase == LeasePhase::Ended;
        ended.then_some(leases)
    })
    .await;
    assert_eq!(leases.len(), 1, "one key is one lease ({at}, {moment:?})");
    let lease = &leases[0].lease;
    let cause = lease.end.as_ref().unwrap().cause;
    assert!(
        matches!(cause, EndCause::Released | EndCause::ScopeEnded),
        "{cause} ({at}, {moment:?}, {life:?})"
    );
    heir.service.stop().await;
    launcher.stop().await;
    died
}

async fn scopes_end(leases: &Leases) {
    eventually("the scope is gone", || async {
        leases.scopes(&caller("acme")).is_empty().then_some(())
    })
    .await;
}

async fn at_every_step(moment: Moment, life: Life) {
    logs();
    let step = sample(3);
    let (mut at, mut deaths) = (1, 0);
    loop {
        let batch = (0..AT_ONCE).map(|number| tokio::spawn(die(at + number * step, moment, life)));
        let died = join_all(batch).await;
        let died = died
            .into_iter()
            .filter(|died| *died.as_ref().unwrap())
            .count();
        deaths += died;
        if died < AT_ONCE {
            break;
        }
        at += AT_ONCE * step;
    }
    eprintln!("{life:?}: died {deaths} times {moment:?} a step");
    assert!(deaths * step > 20, "there is more to do than that");
}

#[tokio::test(flavor = "multi_thread")]
async fn before_a_step_of_a_lease_whose_nodes_leave_one_by_one() {
    at_every_step(Moment::Before, Life::OneByOne).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_step_of_a_lease_whose_nodes_leave_one_by_one() {
    at_every_step(Moment::After, Life::OneByOne).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_step_of_a_lease_within_a_scope() {
    at_every_step(Moment::After, Life::Scope).await;
}
