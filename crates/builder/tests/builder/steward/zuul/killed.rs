//! `kill -9` at every step of an import.
//!
//! A steward dies before or after its n-th write to the store, for every n there is, and another one takes over or is
//! there already. Whatever n is, both builds of Zuul are imported, and nothing is left over.

use nodeyard_builder::steward::NoopStewardEvents;
use nodeyard_store::testing::{Fuse, Moment, Mortal};

use super::*;
use crate::steward::fixtures::impatient;
use crate::steward::kill::at_every_write;

/// Returns `false` if the steward completed its work before it was killed.
async fn die(at: usize, moment: Moment, is_beside: bool) -> bool {
    let test = ZuulTest::new(TENANT).await;
    // Polls would be writes without an end.
    let text = test.text.replace("poll-interval: 5", "poll-interval: 3600");
    let test = Arc::new(ZuulTest { text, ..test });
    test.zuul.publish("aaaa", |_| {});
    let worker = test.worker().await;
    let steward = || RunningSteward::start_impatient(&test.store, &test.server, &test.text);
    let beside = match is_beside {
        true => Some(steward().await),
        false => None,
    };
    let fuse = Fuse::new(at, moment);
    let tree = Mortal::by_writes(test.store.session().await, &fuse);
    let events = Arc::new(NoopStewardEvents);
    let victim =
        RunningSteward::start_with(tree as _, &test.server, &test.text, events, impatient());
    let mut life = tokio::spawn({
        let test = Arc::clone(&test);
        async move {
            let records = Records::of(&test.store).await;
            records.settled(1, &test.clouds).await;
            test.zuul.publish("bbbb", |_| {});
            records.request().await;
            eventually("the next build is imported", || ready(&records, "bbbb")).await;
            records.settled(2, &test.clouds).await;
        }
    });
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
        None => steward().await,
    };
    life.await.unwrap();
    let records = Records::of(&test.store).await;
    records.settled(2, &test.clouds).await;
    eventually("only what is recorded is on disk", || async {
        (test.host.files() == 2).then_some(())
    })
    .await;
    let bad = market(&records).await.bad;
    let held_against = bad.values().filter(|bad| bad.tries == 0).count();
    assert_eq!(held_against, 0, "{at}, {moment:?}, {is_beside}: {bad:?}");
    second.stop().await;
    worker.stop().await;
    died
}

async fn die_everywhere(moment: Moment, is_beside: bool) {
    let what = format!("an import, {moment:?}, {is_beside}");
    at_every_write(&what, |at| die(at, moment, is_beside)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_write() {
    die_everywhere(Moment::After, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn before_a_write_with_another_steward_beside() {
    die_everywhere(Moment::Before, true).await;
}
