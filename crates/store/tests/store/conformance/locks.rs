use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::join_all;
use nodeyard_store::CreateMode::{EphemeralSequential, Persistent};
use nodeyard_store::election::Election;
use nodeyard_store::lock::{Lock, Locks, adopt};
use nodeyard_store::{Error, Tree, Version};
use tokio::sync::{mpsc, oneshot};

use crate::conformance::backend::{Backend, eventually, gone, id_of, p, within};
use crate::conformance::faulty::{Fault, Faulty};

const DIR: &str = "/locks/a";

async fn contenders(tree: &Arc<dyn Tree>) -> Vec<String> {
    tree.sync().await.unwrap();
    nodeyard_store::ext::child_names(&**tree, &p(DIR))
        .await
        .unwrap()
}

async fn locks(backend: &impl Backend) -> Locks {
    Locks::new(backend.session().await)
}

/// Takes the lock away from whoever holds it.
pub(crate) async fn take_away(tree: &Arc<dyn Tree>, lock: &Lock) {
    let holder = &lock.contenders().await.unwrap()[0];
    tree.delete(&holder.path, Version::Any).await.unwrap();
}

/// Waits until so many contend for the lock.
async fn queued(tree: &Arc<dyn Tree>, count: usize) {
    eventually(|| async { contenders(tree).await.len() == count }).await;
}

pub(crate) async fn one_at_a_time(backend: &impl Backend) {
    let first = backend.session().await;
    first
        .create(&p("/counter"), "0".into(), Persistent)
        .await
        .unwrap();
    let sessions = [first, backend.session().await, backend.session().await];
    let inside = Arc::new(AtomicUsize::new(0));
    let workers = (0..12).map(|i| {
        let locks = Locks::new(Arc::clone(&sessions[i % sessions.len()]));
        let inside = Arc::clone(&inside);
        tokio::spawn(async move {
            for _ in 0..5 {
                let guard = locks.lock(p(DIR)).acquire().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                // Read and write apart: any two at once would lose a count.
                guard.tree().sync().await.unwrap();
                let record = guard.tree().get(&p("/counter")).await.unwrap();
                let count: u32 = std::str::from_utf8(&record.data).unwrap().parse().unwrap();
                let next = Bytes::from((count + 1).to_string());
                guard
                    .tree()
                    .set(&p("/counter"), next, Version::Any)
                    .await
                    .unwrap();
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        })
    });
    for worker in join_all(workers).await {
        worker.unwrap();
    }
    sessions[0].sync().await.unwrap();
    assert_eq!(sessions[0].get(&p("/counter")).await.unwrap().data, "60");
    assert_eq!(contenders(&sessions[0]).await, [""; 0]);
}

pub(crate) async fn waiters_are_served_in_order(backend: &impl Backend) {
    let locks = locks(backend).await;
    let holder = locks.lock(p(DIR)).acquire().await.unwrap();
    let (sender, mut served) = mpsc::unbounded_channel();
    for i in 0..5 {
        let lock = Locks::new(backend.session().await).lock(p(DIR));
        let sender = sender.clone();
        tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            sender.send(i).unwrap();
            guard.release().await.unwrap();
        });
        queued(locks.tree(), i + 2).await;
    }
    holder.release().await.unwrap();
    for i in 0..5 {
        assert_eq!(within(served.recv()).await, Some(i));
    }
}

pub(crate) async fn a_try_that_fails_leaves_nothing(backend: &impl Backend) {
    let (mine, other) = (locks(backend).await, locks(backend).await);
    let guard = mine.lock(p(DIR)).try_acquire().await.unwrap().unwrap();
    for _ in 0..3 {
        assert!(other.lock(p(DIR)).try_acquire().await.unwrap().is_none());
        assert_eq!(contenders(mine.tree()).await, [guard.path().name()]);
    }
    guard.release().await.unwrap();
    let guard = other.lock(p(DIR)).try_acquire().await.unwrap().unwrap();
    guard.release().await.unwrap();
    assert_eq!(contenders(mine.tree()).await, [""; 0]);
    assert!(
        mine.tree().stat(&p(DIR)).await.unwrap().is_some(),
        "the directory stays"
    );
}

pub(crate) async fn tasks_of_one_session_exclude_each_other(backend: &impl Backend) {
    let locks = locks(backend).await;
    let lock = locks.lock(p(DIR));
    let guard = lock.acquire().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert!(locks.lock(p(DIR)).try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_some());
}

pub(crate) async fn a_wait_that_times_out_leaves_nothing(backend: &impl Backend) {
    let (mine, other) = (locks(backend).await, locks(backend).await);
    let guard = mine.lock(p(DIR)).acquire().await.unwrap();
    let limit = Duration::from_millis(50);
    let error = other.lock(p(DIR)).acquire_within(limit).await.unwrap_err();
    assert!(
        matches!(error, Error::LockTimeout(told) if told == limit),
        "{error:?}"
    );
    assert_eq!(contenders(mine.tree()).await, [guard.path().name()]);
}

pub(crate) async fn a_dropped_wait_leaves_nothing(backend: &impl Backend) {
    let (mine, other) = (locks(backend).await, locks(backend).await);
    let guard = mine.lock(p(DIR)).acquire().await.unwrap();
    // Dropped while it waits.
    let lock = other.lock(p(DIR));
    let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
    queued(mine.tree(), 2).await;
    waiting.abort();
    let _ = waiting.await;
    other.settled().await;
    assert_eq!(contenders(mine.tree()).await, [guard.path().name()]);
    // Dropped at the first wait for an answer: the create may be under way.
    let lock = other.lock(p(DIR));
    for _ in 0..20 {
        assert!(lock.acquire().now_or_never().is_none());
    }
    other.settled().await;
    assert_eq!(contenders(mine.tree()).await, [guard.path().name()]);
}

pub(crate) async fn a_dropped_guard_releases(backend: &impl Backend) {
    let (mine, other) = (locks(backend).await, locks(backend).await);
    drop(mine.lock(p(DIR)).acquire().await.unwrap());
    within(other.lock(p(DIR)).acquire())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    mine.settled().await;
    assert_eq!(contenders(mine.tree()).await, [""; 0]);
}

pub(crate) async fn a_release_is_awaited_without_standing_in_line(backend: &impl Backend) {
    let (mine, other) = (locks(backend).await, locks(backend).await);
    let lock = other.lock(p(DIR));
    within(lock.released()).await.unwrap();
    let guard = mine.lock(p(DIR)).acquire().await.unwrap();
    other.tree().sync().await.unwrap();
    let waiting = lock.clone();
    let released = tokio::spawn(async move { waiting.released().await });
    assert_eq!(contenders(other.tree()).await, [guard.path().name()]);
    guard.release().await.unwrap();
    within(released).await.unwrap().unwrap();
}

/// Another attempt has found it and goes on with it.
pub(crate) async fn an_adopted_contender_is_not_released(backend: &impl Backend) {
    let locks = locks(backend).await;
    let lock = locks.lock(p(DIR)).persistent();
    let guard = lock.try_acquire().await.unwrap().unwrap();
    let path = guard.path().clone();
    let adopted = adopt(path.clone(), "me");
    locks.tree().multi(vec![adopted.clone()]).await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(contenders(locks.tree()).await, [path.name()]);
    let holder = &lock.contenders().await.unwrap()[0];
    assert_eq!(holder.identifier, "me");
    take_away(locks.tree(), &lock).await;
    assert!(locks.tree().multi(vec![adopted]).await.is_err());
}

pub(crate) async fn a_killed_holder_wakes_the_next(backend: &impl Backend) {
    let holding = backend.session().await;
    let other = locks(backend).await;
    let guard = Locks::new(Arc::clone(&holding))
        .lock(p(DIR))
        .acquire()
        .await
        .unwrap();
    let lock = other.lock(p(DIR));
    let waiting = tokio::spawn(async move { lock.acquire().await });
    queued(other.tree(), 2).await;
    // The guard is forgotten, not dropped: a killed process releases nothing.
    let left = guard.path().clone();
    holding.close().await;
    let next = within(waiting).await.unwrap().unwrap();
    assert_eq!(contenders(other.tree()).await, [next.path().name()]);
    assert_ne!(left, *next.path());
    within(guard.lost()).await;
    assert!(!guard.is_valid());
    guard.release().await.unwrap();
}

pub(crate) async fn a_killed_waiter_is_skipped(backend: &impl Backend) {
    let first = locks(backend).await;
    let second = backend.mortal().await;
    let third = locks(backend).await;
    let guard = first.lock(p(DIR)).acquire().await.unwrap();
    let contender = p(DIR)
        .join("0123456789abcdef0123456789abcdef__lock__")
        .unwrap();
    second
        .create(&contender, Bytes::new(), EphemeralSequential)
        .await
        .unwrap();
    let lock = third.lock(p(DIR));
    let waiting = tokio::spawn(async move { lock.acquire().await });
    queued(first.tree(), 3).await;
    backend.kill(second).await;
    queued(first.tree(), 2).await;
    assert!(!waiting.is_finished(), "the first still holds the lock");
    guard.release().await.unwrap();
    within(waiting)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
}

pub(crate) async fn only_the_number_counts(backend: &impl Backend) {
    let locks = locks(backend).await;
    let tree = locks.tree();
    nodeyard_store::ext::ensure_path(&**tree, &p(DIR))
        .await
        .unwrap();
    // This name sorts after every other, but its number is the lowest.
    let first = p(DIR)
        .join("ffffffffffffffffffffffffffffffff__lock__")
        .unwrap();
    let first = tree
        .create(&first, Bytes::new(), EphemeralSequential)
        .await
        .unwrap();
    assert!(locks.lock(p(DIR)).try_acquire().await.unwrap().is_none());
    let lock = locks.lock(p(DIR));
    let waiting = tokio::spawn(async move { lock.acquire().await });
    queued(tree, 2).await;
    tree.delete(&first.path, Version::Any).await.unwrap();
    within(waiting)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
}

pub(crate) async fn what_is_not_a_contender_is_ignored(backend: &impl Backend) {
    let locks = locks(backend).await;
    let tree = locks.tree();
    nodeyard_store::ext::ensure_path(&**tree, &p(DIR))
        .await
        .unwrap();
    for name in [
        "0000000000",
        "lock",
        "a__lock__1",
        "a__lock__",
        "a__rlock__0000000000",
    ] {
        tree.create(&p(DIR).join(name).unwrap(), Bytes::new(), Persistent)
            .await
            .unwrap();
    }
    let lock = locks.lock(p(DIR));
    let guard = lock.try_acquire().await.unwrap().unwrap();
    assert_eq!(lock.contenders().await.unwrap().len(), 1);
    guard.release().await.unwrap();
    assert_eq!(lock.contenders().await.unwrap(), []);
    assert_eq!(contenders(tree).await.len(), 5);
}

pub(crate) async fn contenders_are_listed_in_order(backend: &impl Backend) {
    let (mine, other) = (locks(backend).await, locks(backend).await);
    let lock = mine.lock(p(DIR)).identifier("the holder");
    assert_eq!(lock.contenders().await.unwrap(), []);
    let guard = lock.acquire().await.unwrap();
    let waiting = other.lock(p(DIR)).identifier("wärter");
    let waiting = tokio::spawn(async move { waiting.acquire().await.map(drop) });
    queued(mine.tree(), 2).await;
    let listed = lock.contenders().await.unwrap();
    let identifiers: Vec<_> = listed.iter().map(|c| c.identifier.as_str()).collect();
    assert_eq!(identifiers, ["the holder", "wärter"]);
    assert_eq!(listed[0].path, *guard.path());
    assert_eq!(listed[0].session, Some(id_of(mine.tree())));
    assert_eq!(listed[1].session, Some(id_of(other.tree())));
    waiting.abort();
}

pub(crate) async fn a_persistent_contender_outlives_its_session(backend: &impl Backend) {
    let leaving = backend.session().await;
    let other = locks(backend).await;
    {
        let lock = Locks::new(Arc::clone(&leaving)).lock(p(DIR));
        let guard = lock.persistent().identifier("me").acquire().await.unwrap();
        drop(guard);
    }
    leaving.close().await;
    let lock = other.lock(p(DIR));
    assert!(lock.try_acquire().await.unwrap().is_none());
    let holder = &lock.contenders().await.unwrap()[0];
    assert_eq!((holder.identifier.as_str(), holder.session), ("me", None));
    // An attempt that is not granted leaves nothing, persistent or not.
    assert!(
        lock.clone()
            .persistent()
            .try_acquire()
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(contenders(other.tree()).await, [holder.path.name()]);
    take_away(other.tree(), &lock).await;
    let guard = lock.persistent().try_acquire().await.unwrap().unwrap();
    guard.release().await.unwrap();
    assert_eq!(contenders(other.tree()).await, [""; 0]);
}

pub(crate) async fn a_lock_that_is_taken_away_goes_to_the_next(backend: &impl Backend) {
    let (mine, other) = (locks(backend).await, locks(backend).await);
    let guard = mine.lock(p(DIR)).acquire().await.unwrap();
    let lock = other.lock(p(DIR));
    let waiting = tokio::spawn(async move { lock.acquire().await });
    queued(mine.tree(), 2).await;
    take_away(other.tree(), &other.lock(p(DIR))).await;
    let next = within(waiting).await.unwrap().unwrap();
    assert_eq!(contenders(mine.tree()).await, [next.path().name()]);
    // What is no longer ours is not released a second time.
    guard.release().await.unwrap();
    assert_eq!(contenders(mine.tree()).await, [next.path().name()]);
}

pub(crate) async fn a_lock_of_something_gone_does_not_bring_it_back(backend: &impl Backend) {
    let locks = locks(backend).await;
    let tree = locks.tree();
    tree.create(&p("/node"), "data".into(), Persistent)
        .await
        .unwrap();
    let lock = locks.lock(p("/node/lock")).of_existing();
    // The directory itself is made.
    lock.acquire().await.unwrap().release().await.unwrap();
    nodeyard_store::ext::delete_recursive(&**tree, &p("/node"))
        .await
        .unwrap();
    for _ in 0..2 {
        assert!(lock.acquire().await.unwrap_err().is_no_node());
        assert!(lock.try_acquire().await.unwrap_err().is_no_node());
    }
    assert_eq!(tree.stat(&p("/node")).await.unwrap(), None);
    // It goes while somebody waits for it.
    tree.create(&p("/node"), "data".into(), Persistent)
        .await
        .unwrap();
    let guard = lock.acquire().await.unwrap();
    let waiting = {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire().await })
    };
    eventually(|| async { lock.contenders().await.unwrap().len() == 2 }).await;
    nodeyard_store::ext::delete_recursive(&**tree, &p("/node"))
        .await
        .unwrap();
    // The waiter may have been first in the queue for a moment, between two of the deletes.
    match within(waiting).await.unwrap() {
        Ok(brief) => brief.release().await.unwrap(),
        Err(error) => assert!(error.is_no_node(), "{error:?}"),
    }
    guard.release().await.unwrap();
    assert_eq!(tree.stat(&p("/node")).await.unwrap(), None);
}

pub(crate) async fn a_missing_directory_is_made(backend: &impl Backend) {
    let locks = locks(backend).await;
    let guard = locks
        .lock(p("/x/y/z"))
        .try_acquire()
        .await
        .unwrap()
        .unwrap();
    assert_eq!(guard.path().parent(), Some(p("/x/y/z")));
    let parent = locks.tree().get(&p("/x")).await.unwrap();
    assert_eq!((parent.data.len(), parent.stat.ephemeral_owner), (0, 0));
}

pub(crate) async fn a_lost_answer_is_looked_for(backend: &impl Backend) {
    let faulty = Faulty::new(backend.session().await);
    let locks = Locks::new(Arc::clone(&faulty) as Arc<dyn Tree>);
    let lock = locks.lock(p(DIR));
    lock.acquire().await.unwrap().release().await.unwrap();
    faulty.next(Fault::LoseAnswerOfCreate);
    let guard = within(lock.acquire()).await.unwrap();
    // The child of the lost answer is the one we hold the lock by.
    assert_eq!(contenders(locks.tree()).await, [guard.path().name()]);
    guard.release().await.unwrap();
    // A try does not wait for the connection, but nothing is left either.
    faulty.next(Fault::LoseAnswerOfCreate);
    assert!(matches!(
        lock.try_acquire().await,
        Err(Error::ConnectionLoss)
    ));
    locks.settled().await;
    assert_eq!(contenders(locks.tree()).await, [""; 0]);
}

/// Once it was: the missing parent was taken for a reason to create again, although the first create had come later.
pub(crate) async fn a_contender_enters_once_while_others_make_the_parents(backend: &impl Backend) {
    let faulty = Faulty::new(backend.session().await);
    let locks = Locks::new(Arc::clone(&faulty) as Arc<dyn Tree>);
    faulty.next(Fault::ParentsAppear);
    let lock = locks.lock(p(DIR)).likely_new();
    let guard = within(lock.acquire()).await.unwrap();
    assert_eq!(contenders(locks.tree()).await, [guard.path().name()]);
}

pub(crate) async fn a_lost_create_is_done_again(backend: &impl Backend) {
    let faulty = Faulty::new(backend.session().await);
    let locks = Locks::new(Arc::clone(&faulty) as Arc<dyn Tree>);
    for persistent in [false, true] {
        let mut lock = locks.lock(p(DIR));
        if persistent {
            lock = lock.persistent();
        }
        faulty.next(Fault::LoseCreate);
        let guard = within(lock.acquire()).await.unwrap();
        assert_eq!(contenders(locks.tree()).await, [guard.path().name()]);
        guard.release().await.unwrap();
    }
}

pub(crate) async fn a_lost_release_is_done_in_the_end(backend: &impl Backend) {
    let faulty = Faulty::new(backend.session().await);
    let locks = Locks::new(Arc::clone(&faulty) as Arc<dyn Tree>);
    let guard = locks.lock(p(DIR)).acquire().await.unwrap();
    faulty.next(Fault::LoseDelete);
    within(guard.release()).await.unwrap();
    assert_eq!(contenders(locks.tree()).await, [""; 0]);
}

pub(crate) async fn a_guard_ends_with_its_session(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/work"), Bytes::new(), Persistent)
        .await
        .unwrap();
    let guard = Locks::new(Arc::clone(&tree))
        .lock(p(DIR))
        .acquire()
        .await
        .unwrap();
    assert!(guard.is_valid());
    assert_eq!(guard.session(), id_of(&tree));
    guard
        .tree()
        .set(&p("/work"), "held".into(), Version::Any)
        .await
        .unwrap();
    tree.close().await;
    within(guard.lost()).await;
    assert!(!guard.is_valid());
    guard
        .tree()
        .set(&p("/work"), "lost".into(), Version::Any)
        .await
        .unwrap_err();
    let other = backend.session().await;
    assert_eq!(other.get(&p("/work")).await.unwrap().data, "held");
}

pub(crate) async fn a_candidate_takes_over_from_a_killed_leader(backend: &impl Backend) {
    let leading = backend.session().await;
    let following = locks(backend).await;
    let path = p("/elections/stats");
    let first = Election::new(&Locks::new(Arc::clone(&leading)), path.clone(), "one");
    let second = Election::new(&following, path.clone(), "two");
    let leadership = first.lead().await.unwrap();
    let (done, told) = oneshot::channel();
    let candidate = second.clone();
    let run = tokio::spawn(async move {
        let mut done = Some(done);
        let work = |tree: Arc<dyn Tree>| {
            let done = done.take();
            async move {
                tree.create(&p("/led"), Bytes::new(), Persistent)
                    .await
                    .unwrap();
                done.unwrap().send(()).unwrap();
                "result"
            }
        };
        candidate.run(work).await.unwrap()
    });
    eventually(|| async { second.candidates().await.unwrap().len() == 2 }).await;
    assert_eq!(second.candidates().await.unwrap()[0].identifier, "one");
    leading.close().await;
    within(leadership.lost()).await;
    within(told).await.unwrap();
    assert_eq!(within(run).await.unwrap(), "result");
    gone(following.tree(), &path.join("none").unwrap()).await;
    assert_eq!(second.candidates().await.unwrap(), []);
}
