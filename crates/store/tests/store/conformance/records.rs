use bytes::Bytes;
use nodeyard_store::CreateMode::{
    Ephemeral, EphemeralSequential, Persistent, PersistentSequential,
};
use nodeyard_store::{Error, Version};

use crate::conformance::backend::{Backend, id_of, p};

pub(crate) async fn a_created_record_reads_back(backend: &impl Backend) {
    let tree = backend.session().await;
    let created = tree
        .create(&p("/a"), "one".into(), Persistent)
        .await
        .unwrap();
    assert_eq!(created.path, p("/a"));
    let record = tree.get(&p("/a")).await.unwrap();
    assert_eq!(record.data, "one");
    assert_eq!(record.stat, created.stat);
    assert_eq!(tree.stat(&p("/a")).await.unwrap(), Some(created.stat));
    let stat = record.stat;
    assert!(stat.czxid > 0 && stat.ctime > 1_500_000_000_000);
    assert_eq!((stat.czxid, stat.ctime), (stat.mzxid, stat.mtime));
    assert_eq!(stat.pzxid, stat.czxid);
    assert_eq!((stat.version, stat.cversion, stat.aversion), (0, 0, 0));
    assert_eq!((stat.data_length, stat.num_children), (3, 0));
    assert_eq!(stat.ephemeral_owner, 0);
}

pub(crate) async fn every_mode_creates_what_it_says(backend: &impl Backend) {
    let tree = backend.session().await;
    let owner = id_of(&tree).0;
    for (mode, name, expected_owner) in [
        (Persistent, "/plain", 0),
        (PersistentSequential, "/numbered0000000001", 0),
        (Ephemeral, "/mortal", owner),
        (EphemeralSequential, "/both0000000003", owner),
    ] {
        let given = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let created = tree.create(&p(given), "x".into(), mode).await.unwrap();
        assert_eq!(created.path, p(name), "{mode:?}");
        let record = tree.get(&created.path).await.unwrap();
        assert_eq!(record.stat.ephemeral_owner, expected_owner, "{mode:?}");
        assert_eq!(record.data, "x");
    }
}

pub(crate) async fn creating_twice_is_refused(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/a"), "first".into(), Persistent)
        .await
        .unwrap();
    for mode in [Persistent, Ephemeral] {
        let error = tree
            .create(&p("/a"), "second".into(), mode)
            .await
            .unwrap_err();
        assert!(
            matches!(&error, Error::NodeExists { path } if *path == p("/a")),
            "{error:?}"
        );
    }
    assert_eq!(tree.get(&p("/a")).await.unwrap().data, "first");
}

pub(crate) async fn creating_without_parent_is_refused(backend: &impl Backend) {
    let tree = backend.session().await;
    for mode in [
        Persistent,
        PersistentSequential,
        Ephemeral,
        EphemeralSequential,
    ] {
        let error = tree
            .create(&p("/no/child"), Bytes::new(), mode)
            .await
            .unwrap_err();
        assert!(error.is_no_node(), "{mode:?}: {error:?}");
    }
    assert_eq!(tree.stat(&p("/no")).await.unwrap(), None);
}

pub(crate) async fn ephemerals_have_no_children(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/e"), Bytes::new(), Ephemeral)
        .await
        .unwrap();
    for mode in [
        Persistent,
        PersistentSequential,
        Ephemeral,
        EphemeralSequential,
    ] {
        let error = tree
            .create(&p("/e/child"), Bytes::new(), mode)
            .await
            .unwrap_err();
        assert!(
            matches!(error, Error::NoChildrenForEphemerals { .. }),
            "{mode:?}: {error:?}"
        );
    }
    assert!(tree.children(&p("/e")).await.unwrap().names.is_empty());
}

pub(crate) async fn set_counts_versions(backend: &impl Backend) {
    let tree = backend.session().await;
    let created = tree
        .create(&p("/a"), "0".into(), Persistent)
        .await
        .unwrap()
        .stat;
    let first = tree
        .set(&p("/a"), "1".into(), Version::Exactly(0))
        .await
        .unwrap();
    let second = tree
        .set(&p("/a"), "two".into(), Version::Any)
        .await
        .unwrap();
    assert_eq!((first.version, second.version), (1, 2));
    assert!(created.mzxid < first.mzxid && first.mzxid < second.mzxid);
    assert_eq!((second.czxid, second.ctime), (created.czxid, created.ctime));
    assert!(second.mtime >= created.mtime);
    assert_eq!(second.data_length, 3);
    let record = tree.get(&p("/a")).await.unwrap();
    assert_eq!((&*record.data, record.stat), (&b"two"[..], second));
}

pub(crate) async fn set_with_a_wrong_version_changes_nothing(backend: &impl Backend) {
    let tree = backend.session().await;
    let created = tree.create(&p("/a"), "0".into(), Persistent).await.unwrap();
    for wrong in [1, 2, i32::MAX] {
        let error = tree
            .set(&p("/a"), "x".into(), Version::Exactly(wrong))
            .await
            .unwrap_err();
        assert!(
            matches!(&error, Error::BadVersion { path } if *path == p("/a")),
            "{error:?}"
        );
    }
    let record = tree.get(&p("/a")).await.unwrap();
    assert_eq!((&*record.data, record.stat), (&b"0"[..], created.stat));
}

pub(crate) async fn delete_with_a_wrong_version_changes_nothing(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap();
    tree.set(&p("/a"), "1".into(), Version::Any).await.unwrap();
    let error = tree
        .delete(&p("/a"), Version::Exactly(0))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::BadVersion { .. }), "{error:?}");
    tree.delete(&p("/a"), Version::Exactly(1)).await.unwrap();
    assert_eq!(tree.stat(&p("/a")).await.unwrap(), None);
}

pub(crate) async fn delete_needs_an_empty_record(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap();
    tree.create(&p("/a/b"), Bytes::new(), Ephemeral)
        .await
        .unwrap();
    let error = tree.delete(&p("/a"), Version::Any).await.unwrap_err();
    assert!(
        matches!(&error, Error::NotEmpty { path } if *path == p("/a")),
        "{error:?}"
    );
    tree.delete(&p("/a/b"), Version::Any).await.unwrap();
    tree.delete(&p("/a"), Version::Any).await.unwrap();
}

pub(crate) async fn what_is_missing_is_missing_for_everyone(backend: &impl Backend) {
    let tree = backend.session().await;
    let path = p("/missing");
    assert!(tree.get(&path).await.unwrap_err().is_no_node());
    assert!(tree.children(&path).await.unwrap_err().is_no_node());
    assert!(tree.list(&path).await.unwrap_err().is_no_node());
    assert!(
        tree.set(&path, Bytes::new(), Version::Any)
            .await
            .unwrap_err()
            .is_no_node()
    );
    assert!(
        tree.delete(&path, Version::Any)
            .await
            .unwrap_err()
            .is_no_node()
    );
    let error = tree.delete(&path, Version::Exactly(0)).await.unwrap_err();
    assert!(
        matches!(&error, Error::NoNode { path: named } if *named == path),
        "{error:?}"
    );
    assert_eq!(tree.stat(&path).await.unwrap(), None);
}

pub(crate) async fn children_are_sorted(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap();
    for name in ["c", "a", "b", "B", "10", "9"] {
        let path = p("/a").join(name).unwrap();
        tree.create(&path, Bytes::new(), Persistent).await.unwrap();
    }
    tree.create(&p("/a/c/deeper"), Bytes::new(), Persistent)
        .await
        .unwrap();
    let listing = tree.children(&p("/a")).await.unwrap();
    assert_eq!(listing.names, ["10", "9", "B", "a", "b", "c"]);
    assert_eq!(Some(listing.stat), tree.stat(&p("/a")).await.unwrap());
    assert!(tree.children(&p("/a/a")).await.unwrap().names.is_empty());
}

pub(crate) async fn lists_hold_the_records(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/a"), "parent".into(), Persistent)
        .await
        .unwrap();
    assert_eq!(tree.list(&p("/a")).await.unwrap(), []);
    tree.create(&p("/a/two"), "2".into(), Persistent)
        .await
        .unwrap();
    tree.create(&p("/a/one"), "1".into(), Ephemeral)
        .await
        .unwrap();
    tree.create(&p("/a/two/below"), "no".into(), Persistent)
        .await
        .unwrap();
    let list = tree.list(&p("/a")).await.unwrap();
    let names: Vec<_> = list.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["one", "two"]);
    for (name, record) in &list {
        let path = p("/a").join(name).unwrap();
        assert_eq!(*record, tree.get(&path).await.unwrap());
    }
}

pub(crate) async fn a_parent_counts_its_children(backend: &impl Backend) {
    let tree = backend.session().await;
    let before = tree
        .create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap()
        .stat;
    let child = tree
        .create(&p("/a/b"), Bytes::new(), Persistent)
        .await
        .unwrap()
        .stat;
    let stat = tree.stat(&p("/a")).await.unwrap().unwrap();
    assert_eq!(
        (stat.num_children, stat.cversion, stat.pzxid),
        (1, 1, child.czxid)
    );
    assert_eq!(
        (stat.version, stat.mzxid, stat.mtime),
        (0, before.mzxid, before.mtime)
    );
    // A change of the child's data is none of the parent's business; nor is a grandchild.
    tree.set(&p("/a/b"), "x".into(), Version::Any)
        .await
        .unwrap();
    tree.create(&p("/a/b/c"), Bytes::new(), Persistent)
        .await
        .unwrap();
    assert_eq!(tree.stat(&p("/a")).await.unwrap(), Some(stat));
    tree.delete(&p("/a/b/c"), Version::Any).await.unwrap();
    tree.delete(&p("/a/b"), Version::Any).await.unwrap();
    let after = tree.stat(&p("/a")).await.unwrap().unwrap();
    assert_eq!((after.num_children, after.cversion), (0, 2));
    assert!(after.pzxid > stat.pzxid);
}

pub(crate) async fn a_recreated_record_starts_anew(backend: &impl Backend) {
    let tree = backend.session().await;
    let old = tree
        .create(&p("/a"), "old".into(), Persistent)
        .await
        .unwrap()
        .stat;
    tree.set(&p("/a"), "older".into(), Version::Any)
        .await
        .unwrap();
    tree.create(&p("/a/b"), Bytes::new(), Persistent)
        .await
        .unwrap();
    tree.delete(&p("/a/b"), Version::Any).await.unwrap();
    tree.delete(&p("/a"), Version::Any).await.unwrap();
    let new = tree
        .create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap()
        .stat;
    assert!(new.czxid > old.czxid);
    assert_eq!((new.version, new.cversion, new.data_length), (0, 0, 0));
    let first = tree
        .create(&p("/a/n"), Bytes::new(), PersistentSequential)
        .await
        .unwrap();
    assert_eq!(first.path, p("/a/n0000000000"));
}

pub(crate) async fn the_root_is_there(backend: &impl Backend) {
    let tree = backend.session().await;
    assert_eq!(tree.get(&p("/")).await.unwrap().data, "");
    tree.create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap();
    assert!(
        tree.children(&p("/"))
            .await
            .unwrap()
            .names
            .contains(&"a".to_owned())
    );
    let error = tree
        .create(&p("/"), Bytes::new(), Persistent)
        .await
        .unwrap_err();
    assert!(error.is_node_exists(), "{error:?}");
}
