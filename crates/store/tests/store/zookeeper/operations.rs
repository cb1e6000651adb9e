use nodeyard_store::tree::MAX_DATA;
use nodeyard_store::zookeeper::ZooKeeper;
use nodeyard_store::{CreateMode, Error, Op, OpOutcome, Session, Tree, TreePath, Version};

use super::support::*;

#[tokio::test]
async fn records_are_created_read_changed_and_deleted() {
    let tree = fresh().await;
    let a = path("/a");
    let created = tree
        .create(&a, data("one"), CreateMode::Persistent)
        .await
        .unwrap();
    assert_eq!(created.path, a);
    assert_eq!(created.stat.data_length, 3);
    assert_eq!(created.stat.ephemeral_owner, 0);
    assert!(created.stat.czxid > 0);

    let record = tree.get(&a).await.unwrap();
    assert_eq!(record.data, "one");
    assert_eq!(record.stat, created.stat);

    let stat = tree
        .set(&a, data("two!"), Version::Exactly(0))
        .await
        .unwrap();
    assert_eq!((stat.version, stat.data_length), (1, 4));
    assert_eq!(tree.stat(&a).await.unwrap(), Some(stat));

    let b = path("/a/b");
    tree.create(&b, data(""), CreateMode::Persistent)
        .await
        .unwrap();
    let listing = tree.children(&a).await.unwrap();
    assert_eq!(listing.names, ["b"]);
    assert_eq!(listing.stat.num_children, 1);

    tree.delete(&b, Version::Any).await.unwrap();
    tree.delete(&a, Version::Exactly(1)).await.unwrap();
    assert_eq!(tree.stat(&a).await.unwrap(), None);
}

#[tokio::test]
async fn refusals_have_their_own_errors() {
    let tree = fresh().await;
    let (a, b, below) = (path("/a"), path("/a/b"), path("/e/x"));
    let create = |path: &TreePath, mode| {
        let (tree, path) = (tree.clone(), path.clone());
        async move { tree.create(&path, data(""), mode).await }
    };
    create(&a, CreateMode::Persistent).await.unwrap();
    create(&b, CreateMode::Persistent).await.unwrap();
    create(&path("/e"), CreateMode::Ephemeral).await.unwrap();

    let error = create(&a, CreateMode::Persistent).await.unwrap_err();
    assert!(matches!(error, Error::NodeExists { path } if path == a));
    let error = create(&path("/x/y"), CreateMode::Persistent)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NoNode { path: at } if at == path("/x/y")));
    let error = create(&below, CreateMode::Persistent).await.unwrap_err();
    assert!(matches!(error, Error::NoChildrenForEphemerals { .. }));
    let error = tree.delete(&a, Version::Any).await.unwrap_err();
    assert!(matches!(error, Error::NotEmpty { .. }));
    let error = tree
        .set(&a, data(""), Version::Exactly(7))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::BadVersion { .. }));
    assert!(tree.get(&path("/x")).await.unwrap_err().is_no_node());
    assert!(tree.children(&path("/x")).await.unwrap_err().is_no_node());
    assert!(tree.list(&path("/x")).await.unwrap_err().is_no_node());
    let error = create(&a.unnamed_child(), CreateMode::Persistent)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::InvalidPath(_)), "{error:?}");
}

#[tokio::test]
async fn sequential_names_count_on_with_and_without_a_prefix() {
    let tree = fresh().await;
    let nodes = path("/nodes");
    tree.create(&nodes, data(""), CreateMode::Persistent)
        .await
        .unwrap();
    let mut names = Vec::new();
    for target in [
        path("/nodes/x-"),
        nodes.unnamed_child(),
        nodes.unnamed_child(),
    ] {
        let created = tree
            .create(&target, data(""), CreateMode::PersistentSequential)
            .await
            .unwrap();
        names.push(created.path.to_string());
    }
    assert_eq!(
        names,
        [
            "/nodes/x-0000000000",
            "/nodes/0000000001",
            "/nodes/0000000002"
        ]
    );
    let created = tree
        .create(
            &TreePath::root().unnamed_child(),
            data(""),
            CreateMode::PersistentSequential,
        )
        .await
        .unwrap();
    assert_eq!(created.path, path("/0000000001"));
}

#[tokio::test]
async fn ephemeral_records_carry_the_session_and_go_with_it() {
    let observer = fresh().await;
    let chroot = fresh_chroot(&*connect(options(shared_server().port())).await).await;
    let observer = observer.with_chroot(&chroot);
    let owner = connect(options(shared_server().port()))
        .await
        .with_chroot(&chroot);
    let created = owner
        .create(&path("/e"), data(""), CreateMode::EphemeralSequential)
        .await
        .unwrap();
    assert_eq!(created.stat.ephemeral_owner, session_id(&*owner).await.0);

    owner.close().await;
    assert_eq!(*owner.session().borrow(), Session::Closed);
    assert!(matches!(owner.get(&path("/e")).await, Err(Error::Closed)));
    assert_eq!(observer.stat(&created.path).await.unwrap(), None);
    owner.close().await;
}

#[tokio::test]
async fn a_multi_is_all_or_nothing() {
    let tree = fresh().await;
    let create = |name: &str, mode| Op::Create {
        path: path(name),
        data: data("x"),
        mode,
    };
    let outcomes = tree
        .multi(vec![
            create("/a", CreateMode::Persistent),
            create("/a/s-", CreateMode::PersistentSequential),
            Op::Set {
                path: path("/a"),
                data: data("y"),
                version: Version::Exactly(0),
            },
            Op::Check {
                path: path("/a"),
                version: Version::Exactly(1),
            },
            Op::Delete {
                path: path("/a/s-0000000000"),
                version: Version::Any,
            },
        ])
        .await
        .unwrap();
    assert_eq!(outcomes.len(), 5);
    assert_eq!(outcomes[1], OpOutcome::Created(path("/a/s-0000000000")));
    assert!(matches!(&outcomes[2], OpOutcome::Set(stat) if stat.version == 1));
    assert_eq!(outcomes[3..], [OpOutcome::Checked, OpOutcome::Deleted]);

    let error = tree
        .multi(vec![
            create("/b", CreateMode::Persistent),
            Op::Check {
                path: path("/a"),
                version: Version::Exactly(9),
            },
            create("/c", CreateMode::Persistent),
        ])
        .await
        .unwrap_err();
    let Error::Multi { index: 1, source } = error else {
        panic!("{error:?}");
    };
    assert!(matches!(*source, Error::BadVersion { path: at } if at == path("/a")));
    assert_eq!(tree.stat(&path("/b")).await.unwrap(), None);
    assert_eq!(tree.multi(Vec::new()).await.unwrap(), []);
}

#[tokio::test]
async fn a_list_has_the_records_and_skips_what_vanishes_meanwhile() {
    let tree = fresh().await;
    let parent = path("/p");
    tree.create(&parent, data(""), CreateMode::Persistent)
        .await
        .unwrap();
    for i in 0..1000 {
        let child = parent.join(&format!("{i:04}")).unwrap();
        tree.create(&child, data(format!("{i}")), CreateMode::Persistent)
            .await
            .unwrap();
    }
    let list = tree.list(&parent).await.unwrap();
    assert_eq!(list.len(), 1000);
    for (i, (name, record)) in list.iter().enumerate() {
        assert_eq!(*name, format!("{i:04}"));
        assert_eq!(record.data, format!("{i}"));
    }

    let other = tree.clone();
    let vanish = async {
        for i in 0..1000 {
            let child = path(&format!("/p/{i:04}"));
            other.delete(&child, Version::Any).await.unwrap();
        }
    };
    let list_on = async {
        loop {
            if tree.list(&parent).await.unwrap().is_empty() {
                break;
            }
        }
    };
    within("lists while records vanish", async {
        tokio::join!(vanish, list_on)
    })
    .await;
}

#[tokio::test]
async fn a_chroot_hides_the_rest_of_the_tree() {
    let root = connect(options(shared_server().port())).await;
    let chroot = fresh_chroot(&*root).await;
    let tree = root.with_chroot(&chroot);
    let created = tree
        .create(&path("/a"), data("x"), CreateMode::Persistent)
        .await
        .unwrap();
    assert_eq!(created.path, path("/a"));
    let full = chroot.join("a").unwrap();
    assert_eq!(root.get(&full).await.unwrap().data, "x");
    assert_eq!(tree.children(&TreePath::root()).await.unwrap().names, ["a"]);
    let error = tree.get(&path("/zookeeper")).await.unwrap_err();
    assert!(matches!(error, Error::NoNode { path: at } if at == path("/zookeeper")));

    let mut from_start = options(shared_server().port());
    from_start.chroot = chroot;
    let tree = connect(from_start).await;
    assert_eq!(tree.get(&path("/a")).await.unwrap().data, "x");
}

#[tokio::test]
async fn the_largest_record_fits_and_more_is_refused_before_it_is_sent() {
    let tree = fresh().await;
    let a = path("/a");
    let largest = data("x".repeat(MAX_DATA));
    tree.create(&a, largest.clone(), CreateMode::Persistent)
        .await
        .unwrap();
    tree.set(&a, largest.clone(), Version::Any).await.unwrap();
    assert_eq!(tree.get(&a).await.unwrap().data, largest);

    let session = session_id(&*tree).await;
    let more = data("x".repeat(MAX_DATA + 1));
    let error = tree.set(&a, more, Version::Any).await.unwrap_err();
    assert!(matches!(
        error,
        Error::TooLarge {
            limit: MAX_DATA,
            ..
        }
    ));
    let set = Op::Set {
        path: a.clone(),
        data: largest,
        version: Version::Any,
    };
    let error = tree.multi(vec![set.clone(), set]).await.unwrap_err();
    assert!(matches!(error, Error::Multi { index: 1, .. }));
    assert_eq!(*tree.session().borrow(), Session::Connected(session));
}

/// More bytes than a server takes as a request, but no limit of the server applies to answers.
#[tokio::test]
async fn a_long_list_of_children_arrives() {
    let tree = fresh().await;
    let long = "n".repeat(200);
    for batch in 0..70 {
        let ops = (0..100)
            .map(|i| Op::Create {
                path: path(&format!("/{long}-{batch:03}-{i:03}")),
                data: data(""),
                mode: CreateMode::Persistent,
            })
            .collect();
        tree.multi(ops).await.unwrap();
    }
    let listing = tree.children(&TreePath::root()).await.unwrap();
    assert_eq!(listing.names.len(), 7000);
    assert!(listing.names.is_sorted());
}

#[tokio::test]
async fn operations_take_effect_in_the_order_in_which_they_were_begun() {
    let tree = fresh().await;
    let a = path("/a");
    tree.create(&a, data(""), CreateMode::Persistent)
        .await
        .unwrap();
    let mut stats = Vec::new();
    for i in 0..500 {
        stats.push(tree.set(&a, data(format!("{i}")), Version::Exactly(i)));
    }
    let stats = futures_util::future::join_all(stats).await;
    for (i, stat) in (1..).zip(stats) {
        assert_eq!(stat.unwrap().version, i);
    }
    let (set, got) = tokio::join!(tree.set(&a, data("last"), Version::Any), tree.get(&a));
    assert_eq!(got.unwrap().data, "last");
    set.unwrap();
}

#[tokio::test]
async fn what_is_begun_before_the_first_connection_waits_for_it() {
    let tree = ZooKeeper::connect(options(shared_server().port()));
    assert_eq!(*tree.session().borrow(), Session::Connecting);
    let (a, root) = (path("/a"), TreePath::root());
    let (sync, watcher, root) = tokio::join!(tree.sync(), tree.watch(&a), tree.get(&root));
    sync.unwrap();
    watcher.unwrap();
    root.unwrap();
}

#[tokio::test]
async fn a_pinned_handle_works_in_its_session_only() {
    let tree = fresh().await;
    let id = session_id(&*tree).await;
    let pinned = tree.pinned(id);
    pinned
        .create(&path("/a"), data(""), CreateMode::Persistent)
        .await
        .unwrap();
    let other = tree.pinned(nodeyard_store::SessionId(id.0 + 1));
    assert!(matches!(
        other.get(&path("/a")).await,
        Err(Error::SessionExpired)
    ));
    other.close().await;
    assert_eq!(tree.get(&path("/a")).await.unwrap().data, "");
}
