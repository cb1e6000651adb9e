use std::time::Duration;

use nodeyard_store::{CreateMode, Tree, TreePath, Version, WatchEvent};

use super::support::*;

#[tokio::test]
async fn a_watch_reports_the_record_and_everything_below_it_and_nothing_else() {
    let tree = fresh().await;
    let mut watcher = tree.watch(&path("/a")).await.unwrap();
    let (a, b, beside) = (path("/a"), path("/a/b"), path("/aside"));
    for at in [&beside, &a, &b] {
        tree.create(at, data(""), CreateMode::Persistent)
            .await
            .unwrap();
    }
    tree.set(&b, data("x"), Version::Any).await.unwrap();
    tree.delete(&b, Version::Any).await.unwrap();
    tree.delete(&a, Version::Any).await.unwrap();
    for expected in [
        WatchEvent::Created(a.clone()),
        WatchEvent::Created(b.clone()),
        WatchEvent::Changed(b.clone()),
        WatchEvent::Deleted(b),
        WatchEvent::Deleted(a),
    ] {
        assert_eq!(next(&mut watcher).await, expected);
    }
    assert_eq!(watcher.try_next(), None);
}

/// How many watches the server keeps for a path, by its own account.
async fn watches_on(path: &TreePath) -> usize {
    let answer = blocking(|| shared_server().ask("wchp").unwrap()).await;
    answer
        .lines()
        .skip_while(|line| *line != path.as_str())
        .skip(1)
        .take_while(|line| line.starts_with('\t'))
        .count()
}

#[tokio::test]
async fn watchers_of_one_path_share_a_watch_that_goes_with_the_last() {
    // The server is told that nobody watches any more in the pace of the session.
    let mut short = options(shared_server().port());
    short.session_timeout = Duration::from_secs(15);
    let root = connect(short).await;
    let chroot = fresh_chroot(&*root).await;
    let tree = root.with_chroot(&chroot);
    let mut from_chroot = tree.watch(&TreePath::root()).await.unwrap();
    let mut from_root = root.watch(&chroot).await.unwrap();
    assert_eq!(watches_on(&chroot).await, 1);

    let full = chroot.join("a").unwrap();
    root.create(&full, data(""), CreateMode::Persistent)
        .await
        .unwrap();
    assert_eq!(
        next(&mut from_chroot).await,
        WatchEvent::Created(path("/a"))
    );
    assert_eq!(
        next(&mut from_root).await,
        WatchEvent::Created(full.clone())
    );

    drop(from_chroot);
    root.set(&full, data("x"), Version::Any).await.unwrap();
    assert_eq!(next(&mut from_root).await, WatchEvent::Changed(full));
    drop(from_root);
    within("the server forgets the watch", async {
        while watches_on(&chroot).await > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let mut again = tree.watch(&TreePath::root()).await.unwrap();
    tree.delete(&path("/a"), Version::Any).await.unwrap();
    assert_eq!(next(&mut again).await, WatchEvent::Deleted(path("/a")));
}

#[tokio::test]
async fn a_once_tells_creation_change_and_deletion() {
    let tree = fresh().await;
    let a = path("/a");
    let (stat, once) = tree.watch_once(&a).await.unwrap();
    assert_eq!(stat, None);
    tree.create(&a, data(""), CreateMode::Persistent)
        .await
        .unwrap();
    within("creation", once.fired()).await;

    let (stat, once) = tree.watch_once(&a).await.unwrap();
    assert_eq!(stat.unwrap().version, 0);
    let (_, second) = tree.watch_once(&a).await.unwrap();
    tree.set(&a, data("x"), Version::Any).await.unwrap();
    within("change", once.fired()).await;
    within("change, told twice", second.fired()).await;

    let (stat, once) = tree.watch_once(&a).await.unwrap();
    assert_eq!(stat.unwrap().version, 1);
    tree.delete(&a, Version::Any).await.unwrap();
    within("deletion", once.fired()).await;
}

#[tokio::test]
async fn a_once_stays_silent_while_nothing_happens_to_its_record() {
    let tree = fresh().await;
    let a = path("/a");
    tree.create(&a, data(""), CreateMode::Persistent)
        .await
        .unwrap();
    let (_, once) = tree.watch_once(&a).await.unwrap();
    let fired = once.fired();
    tokio::pin!(fired);
    tree.create(&path("/a/b"), data(""), CreateMode::Persistent)
        .await
        .unwrap();
    tree.set(&path("/a/b"), data("x"), Version::Any)
        .await
        .unwrap();
    tree.sync().await.unwrap();
    assert!(futures_util::poll!(&mut fired).is_pending());
    tree.set(&a, data("x"), Version::Any).await.unwrap();
    within("change", fired).await;
}

/// The server keeps one mode of watching per path and connection: mixed carelessly, the recursive watch is gone
/// after the first event (ZOOKEEPER-4466).
#[tokio::test]
async fn a_once_and_a_watch_on_the_same_path_do_not_disturb_each_other() {
    let tree = fresh().await;
    let a = path("/a");
    tree.create(&a, data(""), CreateMode::Persistent)
        .await
        .unwrap();
    let (_, before) = tree.watch_once(&a).await.unwrap();
    let mut watcher = tree.watch(&a).await.unwrap();
    let (_, after) = tree.watch_once(&a).await.unwrap();
    for round in 0..3 {
        tree.set(&a, data("x"), Version::Any).await.unwrap();
        assert_eq!(
            next(&mut watcher).await,
            WatchEvent::Changed(a.clone()),
            "round {round}"
        );
    }
    within("the once before the watch", before.fired()).await;
    within("the once after the watch", after.fired()).await;

    let (_, outliving) = tree.watch_once(&a).await.unwrap();
    drop(watcher);
    tree.set(&a, data("y"), Version::Any).await.unwrap();
    within("the once that outlives the watch", outliving.fired()).await;
}

#[tokio::test]
async fn closing_ends_watchers_and_onces() {
    let tree = connect(options(shared_server().port())).await;
    let mut watcher = tree.watch(&path("/x")).await.unwrap();
    let (_, once) = tree.watch_once(&path("/x")).await.unwrap();
    tree.close().await;
    assert_eq!(within("end", watcher.next()).await, None);
    within("once", once.fired()).await;
}

#[tokio::test]
async fn dropping_the_last_handle_ends_watchers_too() {
    let tree = connect(options(shared_server().port())).await;
    let mut watcher = tree.watch(&path("/x")).await.unwrap();
    drop(tree);
    assert_eq!(within("end", watcher.next()).await, None);
}
