use bytes::Bytes;
use nodeyard_store::CreateMode::{EphemeralSequential, Persistent, PersistentSequential};
use nodeyard_store::{CreateMode, Error, Op, OpOutcome, Version};

use crate::conformance::backend::{Backend, id_of, p};

fn create(path: &str, mode: CreateMode) -> Op {
    Op::Create {
        path: p(path),
        data: Bytes::from(path.to_owned()),
        mode,
    }
}

fn set(path: &str, data: &str, version: Version) -> Op {
    Op::Set {
        path: p(path),
        data: Bytes::from(data.to_owned()),
        version,
    }
}

fn delete(path: &str, version: Version) -> Op {
    Op::Delete {
        path: p(path),
        version,
    }
}

fn check(path: &str, version: Version) -> Op {
    Op::Check {
        path: p(path),
        version,
    }
}

pub(crate) async fn all_are_applied_at_once(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/old"), Bytes::new(), Persistent)
        .await
        .unwrap();
    tree.create(&p("/kept"), Bytes::new(), Persistent)
        .await
        .unwrap();
    let outcomes = tree
        .multi(vec![
            create("/new", Persistent),
            set("/kept", "changed", Version::Exactly(0)),
            delete("/old", Version::Exactly(0)),
            check("/new", Version::Any),
        ])
        .await
        .unwrap();
    let [
        OpOutcome::Created(created),
        OpOutcome::Set(changed),
        OpOutcome::Deleted,
        OpOutcome::Checked,
    ] = &outcomes[..]
    else {
        panic!("{outcomes:?}");
    };
    assert_eq!(*created, p("/new"));
    let stat = tree.stat(created).await.unwrap().unwrap();
    assert_eq!(stat.czxid, changed.mzxid, "one transaction");
    assert_eq!(tree.stat(&p("/kept")).await.unwrap(), Some(*changed));
    assert_eq!(tree.get(&p("/kept")).await.unwrap().data, "changed");
    assert_eq!(tree.stat(&p("/old")).await.unwrap(), None);
}

pub(crate) async fn later_operations_see_earlier_ones(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.multi(vec![
        create("/a", Persistent),
        create("/a/b", Persistent),
        set("/a/b", "1", Version::Exactly(0)),
        check("/a/b", Version::Exactly(1)),
        set("/a/b", "2", Version::Exactly(1)),
        create("/a/c", Persistent),
        delete("/a/c", Version::Exactly(0)),
    ])
    .await
    .unwrap();
    let record = tree.get(&p("/a/b")).await.unwrap();
    assert_eq!((&*record.data, record.stat.version), (&b"2"[..], 2));
    assert_eq!(tree.children(&p("/a")).await.unwrap().names, ["b"]);
}

pub(crate) async fn one_failure_undoes_all(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/a"), "0".into(), Persistent).await.unwrap();
    let before = tree.get(&p("/a")).await.unwrap();
    for (bad, matches) in [
        (
            create("/a", Persistent),
            (|e| e.is_node_exists()) as fn(&Error) -> bool,
        ),
        (create("/x/y", Persistent), Error::is_no_node),
        (set("/x", "", Version::Any), Error::is_no_node),
        (set("/a", "", Version::Exactly(7)), |e| {
            matches!(e, Error::BadVersion { .. })
        }),
        (delete("/x", Version::Any), Error::is_no_node),
        (delete("/new", Version::Any), |e| {
            matches!(e, Error::NotEmpty { .. })
        }),
        (check("/x", Version::Any), Error::is_no_node),
        (check("/a", Version::Exactly(0)), |e| {
            matches!(e, Error::BadVersion { .. })
        }),
    ] {
        let error = tree
            .multi(vec![
                set("/a", "1", Version::Any),
                create("/new", Persistent),
                create("/new/child", Persistent),
                bad.clone(),
                create("/after", Persistent),
            ])
            .await
            .unwrap_err();
        let Error::Multi { index: 3, source } = &error else {
            panic!("{bad:?}: {error:?}");
        };
        assert!(matches(source), "{bad:?}: {source:?}");
        assert_eq!(tree.get(&p("/a")).await.unwrap(), before);
        assert_eq!(tree.stat(&p("/new")).await.unwrap(), None);
        assert_eq!(tree.stat(&p("/after")).await.unwrap(), None);
    }
}

pub(crate) async fn the_first_failure_is_named(backend: &impl Backend) {
    let tree = backend.session().await;
    for position in 0..4 {
        let mut ops: Vec<Op> = (0..4)
            .map(|i| create(&format!("/n{i}"), Persistent))
            .collect();
        for op in &mut ops[position..] {
            *op = delete("/missing", Version::Any);
        }
        let error = tree.multi(ops).await.unwrap_err();
        let Error::Multi { index, source } = &error else {
            panic!("{error:?}");
        };
        assert_eq!(*index, position);
        assert!(
            matches!(&**source, Error::NoNode { path } if *path == p("/missing")),
            "{source:?}"
        );
    }
}

pub(crate) async fn a_check_guards_the_rest(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/guard"), Bytes::new(), Persistent)
        .await
        .unwrap();
    let guarded = |version| vec![check("/guard", version), create("/a", Persistent)];
    tree.set(&p("/guard"), "moved on".into(), Version::Any)
        .await
        .unwrap();
    tree.multi(guarded(Version::Exactly(0))).await.unwrap_err();
    assert_eq!(tree.stat(&p("/a")).await.unwrap(), None);
    tree.multi(guarded(Version::Exactly(1))).await.unwrap();
    // A check changes nothing itself.
    assert_eq!(tree.stat(&p("/guard")).await.unwrap().unwrap().version, 1);
}

pub(crate) async fn numbers_and_ephemerals_work_inside(backend: &impl Backend) {
    let tree = backend.session().await;
    let outcomes = tree
        .multi(vec![
            create("/q", Persistent),
            create("/q/n", PersistentSequential),
            create("/q/plain", Persistent),
            create("/q/e", EphemeralSequential),
        ])
        .await
        .unwrap();
    let OpOutcome::Created(ephemeral) = &outcomes[3] else {
        panic!("{outcomes:?}");
    };
    assert_eq!(*ephemeral, p("/q/e0000000002"));
    let stat = tree.stat(ephemeral).await.unwrap().unwrap();
    assert_eq!(stat.ephemeral_owner, id_of(&tree).0);
    let names = tree.children(&p("/q")).await.unwrap().names;
    assert_eq!(names, ["e0000000002", "n0000000000", "plain"]);
}

pub(crate) async fn an_undone_multi_leaves_no_trace(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/q"), Bytes::new(), Persistent)
        .await
        .unwrap();
    let before = tree.stat(&p("/q")).await.unwrap();
    tree.multi(vec![
        create("/q/n", PersistentSequential),
        create("/q/e", EphemeralSequential),
        delete("/missing", Version::Any),
    ])
    .await
    .unwrap_err();
    assert_eq!(tree.stat(&p("/q")).await.unwrap(), before);
    let created = tree
        .create(&p("/q/n"), Bytes::new(), PersistentSequential)
        .await
        .unwrap();
    assert_eq!(created.path, p("/q/n0000000000"));
}
