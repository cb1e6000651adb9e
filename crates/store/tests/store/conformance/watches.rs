use bytes::Bytes;
use nodeyard_store::CreateMode::{Ephemeral, Persistent, PersistentSequential};
use nodeyard_store::WatchEvent::{Changed, Created, Deleted};
use nodeyard_store::{Op, Version, WatchEvent, Watcher};

use crate::conformance::backend::{Backend, p, within};

async fn events(watcher: &mut Watcher, count: usize) -> Vec<WatchEvent> {
    let mut events = Vec::new();
    while events.len() < count {
        events.push(within(watcher.next()).await.unwrap());
    }
    events
}

pub(crate) async fn every_change_is_seen_in_order(backend: &impl Backend) {
    let (watching, writing) = (backend.session().await, backend.session().await);
    let mut watcher = watching.watch(&p("/a")).await.unwrap();
    writing
        .create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap();
    writing
        .set(&p("/a"), "1".into(), Version::Any)
        .await
        .unwrap();
    writing
        .set(&p("/a"), "1".into(), Version::Any)
        .await
        .unwrap();
    writing.delete(&p("/a"), Version::Any).await.unwrap();
    writing
        .create(&p("/a"), Bytes::new(), Ephemeral)
        .await
        .unwrap();
    writing.close().await;
    assert_eq!(
        events(&mut watcher, 6).await,
        [
            Created(p("/a")),
            Changed(p("/a")),
            Changed(p("/a")),
            Deleted(p("/a")),
            Created(p("/a")),
            Deleted(p("/a")),
        ]
    );
}

pub(crate) async fn everything_below_is_watched(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap();
    let mut watcher = tree.watch(&p("/a")).await.unwrap();
    tree.create(&p("/a/b"), Bytes::new(), Persistent)
        .await
        .unwrap();
    let numbered = tree
        .create(&p("/a/b/n"), Bytes::new(), PersistentSequential)
        .await
        .unwrap();
    tree.set(&numbered.path, "x".into(), Version::Any)
        .await
        .unwrap();
    tree.delete(&numbered.path, Version::Any).await.unwrap();
    tree.delete(&p("/a/b"), Version::Any).await.unwrap();
    tree.set(&p("/a"), "x".into(), Version::Any).await.unwrap();
    assert_eq!(
        events(&mut watcher, 6).await,
        [
            Created(p("/a/b")),
            Created(p("/a/b/n0000000000")),
            Changed(p("/a/b/n0000000000")),
            Deleted(p("/a/b/n0000000000")),
            Deleted(p("/a/b")),
            Changed(p("/a")),
        ]
    );
}

pub(crate) async fn neighbours_are_not_watched(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/parent"), Bytes::new(), Persistent)
        .await
        .unwrap();
    let mut watcher = tree.watch(&p("/parent/a")).await.unwrap();
    for path in ["/parent/aa", "/parent/b", "/a"] {
        tree.create(&p(path), Bytes::new(), Persistent)
            .await
            .unwrap();
    }
    tree.set(&p("/parent"), "x".into(), Version::Any)
        .await
        .unwrap();
    tree.create(&p("/parent/a"), Bytes::new(), Persistent)
        .await
        .unwrap();
    tree.sync().await.unwrap();
    assert_eq!(watcher.try_next(), Some(Created(p("/parent/a"))));
    assert_eq!(watcher.try_next(), None);
}

pub(crate) async fn a_missing_record_can_be_watched(backend: &impl Backend) {
    let tree = backend.session().await;
    let mut watcher = tree.watch(&p("/x/y")).await.unwrap();
    tree.create(&p("/x"), Bytes::new(), Persistent)
        .await
        .unwrap();
    tree.create(&p("/x/y"), Bytes::new(), Persistent)
        .await
        .unwrap();
    tree.create(&p("/x/y/z"), Bytes::new(), Persistent)
        .await
        .unwrap();
    assert_eq!(
        events(&mut watcher, 2).await,
        [Created(p("/x/y")), Created(p("/x/y/z"))]
    );
}

pub(crate) async fn only_later_changes_are_seen(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap();
    tree.create(&p("/a/before"), Bytes::new(), Persistent)
        .await
        .unwrap();
    let mut watcher = tree.watch(&p("/a")).await.unwrap();
    tree.create(&p("/a/after"), Bytes::new(), Persistent)
        .await
        .unwrap();
    assert_eq!(events(&mut watcher, 1).await, [Created(p("/a/after"))]);
}

pub(crate) async fn events_are_here_when_sync_returns(backend: &impl Backend) {
    let (watching, writing) = (backend.session().await, backend.session().await);
    let mut watcher = watching.watch(&p("/")).await.unwrap();
    for i in 0..50 {
        let path = p(&format!("/n{i}"));
        writing
            .create(&path, Bytes::new(), Persistent)
            .await
            .unwrap();
        watching.sync().await.unwrap();
        assert_eq!(watcher.try_next(), Some(Created(path)));
    }
}

pub(crate) async fn every_watcher_sees_the_same(backend: &impl Backend) {
    let tree = backend.session().await;
    let other = backend.session().await;
    let mut watchers = vec![
        tree.watch(&p("/a")).await.unwrap(),
        tree.watch(&p("/a")).await.unwrap(),
        tree.watch(&p("/")).await.unwrap(),
        other.watch(&p("/a")).await.unwrap(),
    ];
    tree.create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap();
    tree.create(&p("/a/b"), Bytes::new(), Persistent)
        .await
        .unwrap();
    for watcher in &mut watchers {
        assert_eq!(
            events(watcher, 2).await,
            [Created(p("/a")), Created(p("/a/b"))]
        );
    }
    // One that goes does not take the others with it.
    drop(watchers.remove(0));
    tree.delete(&p("/a/b"), Version::Any).await.unwrap();
    for watcher in &mut watchers {
        assert_eq!(events(watcher, 1).await, [Deleted(p("/a/b"))]);
    }
}

pub(crate) async fn a_multi_is_seen_in_its_order(backend: &impl Backend) {
    let tree = backend.session().await;
    let mut watcher = tree.watch(&p("/")).await.unwrap();
    let create = |path: &str| Op::Create {
        path: p(path),
        data: Bytes::new(),
        mode: Persistent,
    };
    let version = Version::Any;
    tree.multi(vec![
        create("/b"),
        create("/a"),
        Op::Check {
            path: p("/a"),
            version,
        },
        Op::Set {
            path: p("/b"),
            data: "x".into(),
            version,
        },
        Op::Delete {
            path: p("/a"),
            version,
        },
    ])
    .await
    .unwrap();
    assert_eq!(
        events(&mut watcher, 4).await,
        [
            Created(p("/b")),
            Created(p("/a")),
            Changed(p("/b")),
            Deleted(p("/a"))
        ]
    );
}

pub(crate) async fn refused_writes_are_not_seen(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap();
    let mut watcher = tree.watch(&p("/")).await.unwrap();
    tree.create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap_err();
    tree.set(&p("/a"), "x".into(), Version::Exactly(9))
        .await
        .unwrap_err();
    tree.multi(vec![
        Op::Set {
            path: p("/a"),
            data: "x".into(),
            version: Version::Any,
        },
        Op::Delete {
            path: p("/missing"),
            version: Version::Any,
        },
    ])
    .await
    .unwrap_err();
    tree.sync().await.unwrap();
    assert_eq!(watcher.try_next(), None);
}

pub(crate) async fn once_fires_for_create_change_and_delete(backend: &impl Backend) {
    let (watching, writing) = (backend.session().await, backend.session().await);
    let path = p("/a");
    let (stat, created) = watching.watch_once(&path).await.unwrap();
    assert_eq!(stat, None);
    writing
        .create(&path, Bytes::new(), Persistent)
        .await
        .unwrap();
    within(created.fired()).await;
    let (_, changed) = watching.watch_once(&path).await.unwrap();
    writing.set(&path, "x".into(), Version::Any).await.unwrap();
    within(changed.fired()).await;
    let (_, first) = watching.watch_once(&path).await.unwrap();
    let (_, second) = watching.watch_once(&path).await.unwrap();
    writing.delete(&path, Version::Any).await.unwrap();
    within(first.fired()).await;
    within(second.fired()).await;
}

pub(crate) async fn once_tells_what_is_there_now(backend: &impl Backend) {
    let tree = backend.session().await;
    let created = tree.create(&p("/a"), "x".into(), Persistent).await.unwrap();
    let (stat, once) = tree.watch_once(&p("/a")).await.unwrap();
    assert_eq!(stat, Some(created.stat));
    // The end of the handle is a reason to look again, too.
    tree.close().await;
    within(once.fired()).await;
}

pub(crate) async fn closing_ends_a_watch(backend: &impl Backend) {
    let tree = backend.session().await;
    let mut watcher = tree.watch(&p("/a")).await.unwrap();
    tree.create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap();
    tree.sync().await.unwrap();
    tree.close().await;
    assert_eq!(within(watcher.next()).await, Some(Created(p("/a"))));
    assert_eq!(within(watcher.next()).await, None);
}
