//! `kill -9` at every step of an image's life.
//!
//! A steward dies before or after its n-th write to the store, for every n there is. Another one takes over.
//! Whatever n is, the image is replaced as it was asked for, and no cloud, disk or store has anything left over.

use std::sync::Arc;

use futures_util::future::join_all;
use nodeyard_builder::steward::NoopStewardEvents;
use nodeyard_store::testing::{Fuse, Moment, Mortal};
use nodeyard_testbeds::sample;

use crate::steward::fixtures::{
    Records, RunningSteward, Store, TWO_PROVIDERS, TestJobServer, eventually, impatient, logs,
};
use crate::steward::worker::{ScriptedCloud, ScriptedWorker};

/// Runs at the same time; each waits most of the time.
const AT_ONCE: usize = 12;

/// Whether the second steward is running when the first is killed.
#[derive(Debug, Clone, Copy)]
enum Successor {
    Beside,
    Afterwards,
}

/// Returns `false` if the steward completed its work before it was killed.
async fn die(at: usize, moment: Moment, successor: Successor) -> bool {
    let store = Store::embedded();
    let server = TestJobServer::start().await;
    let cloud = ScriptedCloud::default();
    let worker = ScriptedWorker::start(&server, &cloud, &["ubuntu"]).await;
    let text = TWO_PROVIDERS.replace("elements: [vm]", "elements: [vm], retention: 1");
    let records = Arc::new(Records::of(&store).await);
    let beside = match successor {
        Successor::Beside => Some(RunningSteward::start_impatient(&store, &server, &text).await),
        Successor::Afterwards => None,
    };
    let fuse = Fuse::new(at, moment);
    let tree = Mortal::by_writes(store.session().await, &fuse);
    let events = Arc::new(NoopStewardEvents);
    let victim = RunningSteward::start_with(tree as _, &server, &text, events, impatient());
    let life = tokio::spawn({
        let (records, cloud) = (Arc::clone(&records), cloud.clone());
        async move {
            let first = records.settled(1, &cloud).await;
            records.request().await;
            eventually("the image is replaced", || async {
                (records.settled(1, &cloud).await != first).then_some(())
            })
            .await;
        }
    });
    let mut life = life;
    let died = tokio::select! {
        () = fuse.blown() => true,
        ended = &mut life => {
            ended.unwrap();
            life = tokio::spawn(async {});
            false
        }
    };
    victim.kill().await;
    let second = match beside {
        Some(beside) => beside,
        None => RunningSteward::start_impatient(&store, &server, &text).await,
    };
    life.await.unwrap();
    eventually("only one image is on disk", || async {
        (worker.disk.ids().len() == 1).then_some(())
    })
    .await;
    records.settled(1, &cloud).await;
    assert_eq!(
        worker.most_building(),
        1,
        "two builds at once ({at}, {moment:?}, {successor:?})"
    );
    second.stop().await;
    worker.stop().await;
    died
}

/// Runs `die` for a sample of all writes, or for each in `make soak`; it returns false where there was none left.
pub(crate) async fn at_every_write<D: Future<Output = bool>>(what: &str, die: impl Fn(usize) -> D) {
    logs();
    let step = sample(3);
    let mut at = 1;
    while !join_all((0..AT_ONCE).map(|number| die(at + number * step)))
        .await
        .contains(&false)
    {
        at += AT_ONCE * step;
    }
    eprintln!("{what}: died at up to {at} places");
    assert!(at > 20, "the fuse counts writes");
}

async fn die_everywhere(moment: Moment, successor: Successor) {
    let what = format!("{moment:?}, {successor:?}");
    at_every_write(&what, |at| die(at, moment, successor)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn before_a_write() {
    die_everywhere(Moment::Before, Successor::Afterwards).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_write() {
    die_everywhere(Moment::After, Successor::Afterwards).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_write_with_another_steward_beside() {
    die_everywhere(Moment::After, Successor::Beside).await;
}
