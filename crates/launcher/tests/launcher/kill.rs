//! `kill -9` at every step of a request's and a node's life.
//!
//! A launcher dies before or after its n-th operation on the store or the cloud, for every n there is. Another one
//! takes over. Whatever n is, the job runs, nodes are given once, limits hold, and nothing is left.

use std::sync::Arc;

use futures_util::future::join_all;
use nodeyard_store::testing::{Fuse, Moment, Mortal};
use nodeyard_testbeds::sample;

use crate::bed::{Drivers, Running, Store, logs, quick};
use crate::cloud::{SMALL, nothing_is_left};
use crate::fake::{FakeCloud, config, simulate};
use crate::static_nodes;
use crate::zuul::Zuul;

/// Runs at the same time; each waits most of the time.
const AT_ONCE: usize = 6;

/// Whether the second launcher is there when the first dies.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Successor {
    Beside,
    Afterwards,
}

/// False if the launcher had nothing left to do before it came to its end.
async fn die_in_a_cloud(at: usize, moment: Moment, successor: Successor) -> bool {
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let text = config(2, SMALL);
    let zuul = Arc::new(Zuul::new(store.session().await));
    let beside = match successor {
        Successor::Beside => Some(Running::start(&store, Arc::clone(&cloud) as _, &text).await),
        Successor::Afterwards => None,
    };
    let fuse = Fuse::new(at, moment);
    let session = store.session().await;
    let tree = Mortal::new(Arc::clone(&session), &fuse);
    let victim = Running::start_on(tree as _, cloud.until(Arc::clone(&fuse)), &text, quick()).await;
    let jobs = [&["small", "small"][..], &["small"]].map(|labels| {
        let zuul = Arc::clone(&zuul);
        tokio::spawn(async move {
            let id = zuul.submit(labels).await;
            zuul.run_job(id).await
        })
    });
    let mut done = tokio::spawn(async move {
        let mut used = Vec::new();
        for job in jobs {
            used.extend(job.await.unwrap());
        }
        used
    });
    let died = tokio::select! {
        () = fuse.blown() => true,
        used = &mut done => {
            done = tokio::spawn(async move { used.unwrap() });
            // The machines still have to go.
            tokio::select! {
                () = fuse.blown() => true,
                () = nothing_is_left(&zuul.registry, &cloud) => false,
            }
        }
    };
    victim.kill().await;
    let heir = match beside {
        Some(beside) => beside,
        None => Running::start(&store, Arc::clone(&cloud) as _, &text).await,
    };
    let mut used = done.await.unwrap();
    used.sort_unstable();
    used.dedup();
    assert_eq!(
        used.len(),
        3,
        "a node was given to two jobs ({at}, {moment:?}, {successor:?})"
    );
    assert!(
        cloud.peak() <= 2,
        "{} servers at once ({at}, {moment:?}, {successor:?})",
        cloud.peak()
    );
    nothing_is_left(&zuul.registry, &cloud).await;
    heir.stop().await;
    died
}

async fn die_with_static_nodes(at: usize, moment: Moment) -> bool {
    let store = Store::embedded();
    let text = static_nodes::config(2, 1);
    let zuul = Arc::new(Zuul::new(store.session().await));
    let fuse = Fuse::new(at, moment);
    let tree = Mortal::new(store.session().await, &fuse);
    let victim = Running::start_on(tree as _, Arc::new(Drivers), &text, quick()).await;
    let mut done = tokio::spawn({
        let zuul = Arc::clone(&zuul);
        async move {
            let id = zuul.submit(&["small", "big"]).await;
            zuul.run_job(id).await
        }
    });
    let died = tokio::select! {
        () = fuse.blown() => true,
        used = &mut done => {
            done = tokio::spawn(async move { used.unwrap() });
            tokio::select! {
                () = fuse.blown() => true,
                () = static_nodes::complete(&zuul.registry, 2) => false,
            }
        }
    };
    victim.kill().await;
    let heir = Running::start(&store, Arc::new(Drivers), &text).await;
    assert_eq!(done.await.unwrap().len(), 2);
    static_nodes::complete(&zuul.registry, 2).await;
    heir.stop().await;
    died
}

/// Tries a sample of all n, or each `step`-th in `make soak`, until the launcher survives a whole run.
pub(crate) async fn at_every_step<F>(step: usize, run: impl Fn(usize, Moment) -> F)
where
    F: Future<Output = bool> + Send + 'static,
{
    logs();
    let step = step * sample(2);
    for moment in [Moment::Before, Moment::After] {
        let (mut at, mut deaths) = (1, 0);
        loop {
            let batch = (0..AT_ONCE).map(|number| run(at + number * step, moment));
            let died = join_all(batch.map(tokio::spawn)).await;
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
        eprintln!("died {deaths} times {moment:?} a step");
        assert!(deaths > AT_ONCE, "the launcher has more to do than that");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_launcher_goes_on_in_a_cloud() {
    at_every_step(1, |at, moment| {
        die_in_a_cloud(at, moment, Successor::Afterwards)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_launcher_takes_over_in_a_cloud() {
    at_every_step(3, |at, moment| {
        die_in_a_cloud(at, moment, Successor::Beside)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_launcher_goes_on_with_static_nodes() {
    at_every_step(1, die_with_static_nodes).await;
}
