//! The embedded backend follows ZooKeeper's rules.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use nodeyard_store::embedded::Embedded;
use nodeyard_store::tree::MAX_DATA;
use nodeyard_store::{
    CreateMode, Error, Op, OpOutcome, Session, SessionId, Tree, TreePath, Version, WatchEvent,
};
use tempfile::TempDir;

struct Bed {
    _dir: TempDir,
    engine: Arc<Embedded>,
    tree: Arc<dyn Tree>,
}

fn bed() -> Bed {
    let dir = tempfile::tempdir().unwrap();
    let engine = Embedded::open(dir.path()).unwrap();
    let tree = engine.session();
    Bed {
        _dir: dir,
        engine,
        tree,
    }
}

fn path(text: &str) -> TreePath {
    TreePath::new(text).unwrap()
}

async fn put(tree: &Arc<dyn Tree>, at: &str) -> nodeyard_store::Created {
    let data = Bytes::copy_from_slice(at.as_bytes());
    tree.create(&path(at), data, CreateMode::Persistent)
        .await
        .unwrap()
}

fn session_of(tree: &Arc<dyn Tree>) -> SessionId {
    tree.session().borrow().id().unwrap()
}

#[tokio::test]
async fn stats_count_as_zookeeper_does() {
    let Bed { tree, .. } = &bed();
    let created = put(tree, "/a").await;
    assert_eq!(created.stat.czxid, created.stat.mzxid);
    assert_eq!(created.stat.czxid, created.stat.pzxid);
    assert_eq!((created.stat.version, created.stat.cversion), (0, 0));
    assert_eq!(created.stat.data_length, 2);
    assert_eq!(created.stat.ephemeral_owner, 0);

    let b = put(tree, "/a/b").await;
    let c = put(tree, "/a/c").await;
    tree.delete(&path("/a/b"), Version::Exactly(0))
        .await
        .unwrap();
    let stat = tree.stat(&path("/a")).await.unwrap().unwrap();
    assert_eq!(stat.cversion, 3, "two additions and a removal");
    assert_eq!(stat.num_children, 1);
    assert_eq!(stat.version, 0, "children do not change the record itself");
    assert_eq!(stat.mzxid, created.stat.mzxid);
    assert!(stat.pzxid > c.stat.czxid && c.stat.czxid > b.stat.czxid);

    let set = tree
        .set(&path("/a"), Bytes::from_static(b"new"), Version::Exactly(0))
        .await
        .unwrap();
    assert_eq!((set.version, set.data_length), (1, 3));
    assert!(set.mzxid > stat.pzxid && set.czxid == created.stat.czxid);
    let stale = tree
        .set(&path("/a"), Bytes::new(), Version::Exactly(0))
        .await;
    assert!(matches!(stale, Err(Error::BadVersion { .. })));
    assert_eq!(&*tree.get(&path("/a")).await.unwrap().data, b"new");
}

#[tokio::test]
async fn sequence_numbers_count_every_create_below_the_parent() {
    let Bed { tree, .. } = &bed();
    put(tree, "/q").await;
    put(tree, "/q/plain").await;
    let next = async |prefix: TreePath, mode| {
        let created = tree.create(&prefix, Bytes::new(), mode).await.unwrap();
        created.path.name().to_owned()
    };
    let mode = CreateMode::PersistentSequential;
    assert_eq!(next(path("/q/x-"), mode).await, "x-0000000001");
    tree.delete(&path("/q/x-0000000001"), Version::Any)
        .await
        .unwrap();
    let mode = CreateMode::EphemeralSequential;
    assert_eq!(next(path("/q/y-"), mode).await, "y-0000000002");
    let bare = path("/q").unnamed_child();
    assert_eq!(next(bare.clone(), mode).await, "0000000003");
    assert_eq!(next(TreePath::root(), mode).await, "0000000001");
    let plain = tree
        .create(&bare, Bytes::new(), CreateMode::Persistent)
        .await;
    assert!(matches!(plain, Err(Error::InvalidPath(_))));
}

#[tokio::test]
async fn invalid_operations_fail_as_in_zookeeper() {
    let Bed { tree, .. } = &bed();
    let create = async |at: &str, mode| tree.create(&path(at), Bytes::new(), mode).await;
    put(tree, "/a").await;
    put(tree, "/a/b").await;
    tree.create(&path("/e"), Bytes::new(), CreateMode::Ephemeral)
        .await
        .unwrap();

    let below_nothing = create("/x/y", CreateMode::Persistent).await.unwrap_err();
    assert!(below_nothing.is_no_node());
    let twice = create("/a", CreateMode::Persistent).await.unwrap_err();
    assert!(twice.is_node_exists());
    let root = create("/", CreateMode::Persistent).await.unwrap_err();
    assert!(root.is_node_exists());
    let child = create("/e/c", CreateMode::Persistent).await;
    assert!(matches!(child, Err(Error::NoChildrenForEphemerals { .. })));
    let full = tree.delete(&path("/a"), Version::Any).await;
    assert!(matches!(full, Err(Error::NotEmpty { .. })));
    let root = tree.delete(&TreePath::root(), Version::Any).await;
    assert!(matches!(root, Err(Error::InvalidPath(_))));
    let missing = tree.delete(&path("/none"), Version::Any).await;
    assert!(missing.unwrap_err().is_no_node());
    let stale = tree.delete(&path("/a/b"), Version::Exactly(1)).await;
    assert!(matches!(stale, Err(Error::BadVersion { .. })));
    let large = Bytes::from(vec![0; MAX_DATA + 1]);
    let large = tree.set(&path("/a"), large, Version::Any).await;
    assert!(matches!(large, Err(Error::TooLarge { .. })));
    assert!(
        tree.children(&path("/none"))
            .await
            .unwrap_err()
            .is_no_node()
    );
    assert!(tree.list(&path("/none")).await.unwrap_err().is_no_node());

    let root = tree
        .set(&TreePath::root(), Bytes::from_static(b"r"), Version::Any)
        .await
        .unwrap();
    assert_eq!((root.version, root.num_children), (1, 2));
}

#[tokio::test]
async fn a_multi_is_applied_as_a_whole_or_not_at_all() {
    let Bed { tree, .. } = &bed();
    put(tree, "/a").await;
    let create = |at: &str| Op::Create {
        path: path(at),
        data: Bytes::new(),
        mode: CreateMode::Persistent,
    };
    let check = |version| Op::Check {
        path: path("/a"),
        version: Version::Exactly(version),
    };
    let failed = tree
        .multi(vec![
            create("/a/1"),
            create("/a/1/2"),
            check(7),
            create("/a/3"),
        ])
        .await;
    match failed {
        Err(Error::Multi { index: 2, source }) => {
            assert!(matches!(*source, Error::BadVersion { .. }));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(tree.stat(&path("/a/1")).await.unwrap(), None);
    assert_eq!(tree.stat(&path("/a")).await.unwrap().unwrap().cversion, 0);

    let mut watcher = tree.watch(&path("/a")).await.unwrap();
    let done = tree
        .multi(vec![
            check(0),
            create("/a/1"),
            create("/a/1/2"),
            Op::Set {
                path: path("/a/1"),
                data: Bytes::from_static(b"x"),
                version: Version::Exactly(0),
            },
            Op::Delete {
                path: path("/a/1/2"),
                version: Version::Any,
            },
        ])
        .await
        .unwrap();
    let [
        OpOutcome::Checked,
        OpOutcome::Created(first),
        OpOutcome::Created(second),
        OpOutcome::Set(set),
        OpOutcome::Deleted,
    ] = &done[..]
    else {
        panic!("{done:?}")
    };
    assert_eq!((first.as_str(), second.as_str()), ("/a/1", "/a/1/2"));
    assert_eq!(set.mzxid, set.czxid, "one transaction");
    for expected in [
        WatchEvent::Created(path("/a/1")),
        WatchEvent::Created(path("/a/1/2")),
        WatchEvent::Changed(path("/a/1")),
        WatchEvent::Deleted(path("/a/1/2")),
    ] {
        assert_eq!(watcher.next().await, Some(expected));
    }
    assert!(tree.multi(Vec::new()).await.unwrap().is_empty());
}

#[tokio::test]
async fn ephemeral_records_are_deleted_with_their_session() {
    let Bed { tree, engine, .. } = &bed();
    put(tree, "/locks").await;
    let mut watcher = tree.watch(&path("/locks")).await.unwrap();
    for by_drop in [false, true] {
        let other = engine.session();
        assert_ne!(session_of(&other), session_of(tree));
        let held = other
            .create(&path("/locks/l"), Bytes::new(), CreateMode::Ephemeral)
            .await
            .unwrap();
        assert_eq!(held.stat.ephemeral_owner, session_of(&other).0);
        let (stat, once) = tree.watch_once(&path("/locks/l")).await.unwrap();
        assert!(stat.unwrap().is_ephemeral());
        if by_drop {
            drop(other);
        } else {
            other.close().await;
            assert_eq!(*other.session().borrow(), Session::Closed);
            let late = other.get(&path("/locks")).await;
            assert!(matches!(late, Err(Error::Closed)));
        }
        once.fired().await;
        let event = watcher.next().await;
        assert_eq!(event, Some(WatchEvent::Created(path("/locks/l"))));
        let event = watcher.next().await;
        assert_eq!(event, Some(WatchEvent::Deleted(path("/locks/l"))));
        assert_eq!(tree.stat(&path("/locks/l")).await.unwrap(), None);
        let parent = tree.stat(&path("/locks")).await.unwrap().unwrap();
        assert_eq!(parent.num_children, 0);
    }
}

#[tokio::test]
async fn a_closed_session_ends_its_watches() {
    let Bed { tree, engine, .. } = &bed();
    let other = engine.session();
    let mut watcher = other.watch(&TreePath::root()).await.unwrap();
    let (_, once) = other.watch_once(&path("/none")).await.unwrap();
    put(tree, "/a").await;
    other.close().await;
    assert_eq!(watcher.next().await, Some(WatchEvent::Created(path("/a"))));
    assert_eq!(watcher.next().await, None);
    once.fired().await;
}

#[tokio::test]
async fn lists_are_sorted_and_hold_children_only() {
    let Bed { tree, .. } = &bed();
    for at in [
        "/n",
        "/n/b",
        "/n/a",
        "/n/a/deep",
        "/n/ä",
        "/n!",
        "/n!/x",
        "/o",
    ] {
        put(tree, at).await;
    }
    let listing = tree.children(&path("/n")).await.unwrap();
    assert_eq!(listing.names, ["a", "b", "ä"]);
    assert_eq!(listing.stat.num_children, 3);
    let records = tree.list(&path("/n")).await.unwrap();
    let names: Vec<_> = records.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["a", "b", "ä"]);
    assert_eq!(&*records[0].1.data, b"/n/a");
    assert_eq!(records[0].1.stat.num_children, 1);
    let top = tree.children(&TreePath::root()).await.unwrap();
    assert_eq!(top.names, ["n", "n!", "o"]);
}

#[tokio::test]
async fn operations_of_a_handle_take_effect_in_the_order_they_were_begun() {
    let Bed { tree, .. } = &bed();
    put(tree, "/a").await;
    let (at, root) = (path("/a"), TreePath::root());
    let set = |text: &'static str| tree.set(&at, Bytes::from_static(text.as_bytes()), Version::Any);
    let (first, second, read, listed) =
        tokio::join!(set("first"), set("second"), tree.get(&at), tree.list(&root));
    assert_eq!(first.unwrap().version, 1);
    assert_eq!(second.unwrap().version, 2);
    assert_eq!(&*read.unwrap().data, b"second");
    assert_eq!(&*listed.unwrap()[0].1.data, b"second");
}

#[tokio::test]
async fn a_pinned_handle_works_in_its_session_only() {
    let Bed { tree, engine, .. } = &bed();
    let mine = tree.pinned(session_of(tree));
    put(&mine, "/a").await;
    let foreign = tree.pinned(session_of(&engine.session()));
    let refused = foreign.get(&path("/a")).await;
    assert!(matches!(refused, Err(Error::SessionExpired)));
    let refused = foreign.delete(&path("/a"), Version::Any).await;
    assert!(matches!(refused, Err(Error::SessionExpired)));
}

#[tokio::test]
async fn persistent_records_survive_and_ephemeral_ones_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Embedded::open(dir.path()).unwrap();
    let tree = engine.session();
    put(&tree, "/a").await;
    let sequential = CreateMode::EphemeralSequential;
    tree.create(&path("/a/e-"), Bytes::new(), sequential)
        .await
        .unwrap();
    put(&tree, "/a/p").await;
    let before = tree.get(&path("/a/p")).await.unwrap();
    let session = session_of(&tree);
    engine.close().await;
    assert!(matches!(tree.get(&path("/a")).await, Err(Error::Closed)));

    let engine = Embedded::open(dir.path()).unwrap();
    let tree = engine.session();
    assert!(session_of(&tree) > session, "no session id comes twice");
    assert_eq!(tree.get(&path("/a/p")).await.unwrap(), before);
    assert_eq!(tree.children(&path("/a")).await.unwrap().names, ["p"]);
    let next = tree
        .create(&path("/a/e-"), Bytes::new(), sequential)
        .await
        .unwrap();
    assert_eq!(next.path.name(), "e-0000000002", "the counter is kept");
    assert!(next.stat.czxid > before.stat.czxid);
}

#[tokio::test]
async fn the_file_is_private_and_locked() {
    let top = tempfile::tempdir().unwrap();
    let dir = top.path().join("state/store");
    let engine = Embedded::open(&dir).unwrap();
    let mode = |at: &Path| std::fs::metadata(at).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    assert_eq!(mode(&dir.join("store.redb")), 0o600);

    let second = Embedded::open(&dir).unwrap_err().to_string();
    assert!(second.contains("store.redb"), "{second}");
    assert!(second.contains("socket"), "{second}");
    engine.close().await;
    Embedded::open(&dir).unwrap();
}

#[tokio::test]
async fn other_files_are_rejected_and_not_changed() {
    let top = tempfile::tempdir().unwrap();
    let file = top.path().join("store.redb");
    std::fs::write(&file, vec![7; 100_000]).unwrap();
    let error = Embedded::open(top.path()).unwrap_err().to_string();
    assert!(
        error.contains("store.redb") && error.contains("damaged"),
        "{error}"
    );
    assert_eq!(std::fs::read(&file).unwrap(), vec![7; 100_000]);

    let error = Embedded::open(&file).unwrap_err().to_string();
    assert!(error.contains("not a directory"), "{error}");
}
