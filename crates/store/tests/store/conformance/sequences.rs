use std::collections::BTreeSet;

use bytes::Bytes;
use futures_util::future::join_all;
use nodeyard_store::CreateMode::{
    Ephemeral, EphemeralSequential, Persistent, PersistentSequential,
};
use nodeyard_store::Version;

use crate::conformance::backend::{Backend, p};

pub(crate) async fn numbers_have_ten_digits_and_go_up(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap();
    for (mode, prefix, expected) in [
        (PersistentSequential, "/a/x-", "/a/x-0000000000"),
        (EphemeralSequential, "/a/y", "/a/y0000000001"),
        (PersistentSequential, "/a/x-", "/a/x-0000000002"),
    ] {
        let created = tree.create(&p(prefix), Bytes::new(), mode).await.unwrap();
        assert_eq!(created.path, p(expected));
        assert_eq!(Some(created.stat), tree.stat(&p(expected)).await.unwrap());
    }
}

pub(crate) async fn a_name_can_be_the_number_alone(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/nodes"), Bytes::new(), Persistent)
        .await
        .unwrap();
    for expected in ["/nodes/0000000000", "/nodes/0000000001"] {
        let created = tree
            .create(
                &p("/nodes").unnamed_child(),
                "n".into(),
                PersistentSequential,
            )
            .await
            .unwrap();
        assert_eq!(created.path, p(expected));
        assert_eq!(tree.get(&p(expected)).await.unwrap().data, "n");
    }
}

pub(crate) async fn every_child_counts(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap();
    tree.create(&p("/a/lock"), Bytes::new(), Persistent)
        .await
        .unwrap();
    tree.create(&p("/a/e"), Bytes::new(), Ephemeral)
        .await
        .unwrap();
    tree.create(&p("/a/lock/below"), Bytes::new(), Persistent)
        .await
        .unwrap();
    let created = tree
        .create(&p("/a/n"), Bytes::new(), PersistentSequential)
        .await
        .unwrap();
    assert_eq!(created.path, p("/a/n0000000002"));
}

pub(crate) async fn deletes_do_not_turn_the_counter_back(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap();
    for expected in ["/a/n0000000000", "/a/n0000000001", "/a/n0000000002"] {
        let created = tree
            .create(&p("/a/n"), Bytes::new(), PersistentSequential)
            .await
            .unwrap();
        assert_eq!(created.path, p(expected));
        tree.delete(&created.path, Version::Any).await.unwrap();
    }
}

pub(crate) async fn refused_creates_do_not_count(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap();
    tree.create(&p("/a/b"), Bytes::new(), Persistent)
        .await
        .unwrap();
    tree.create(&p("/a/b"), Bytes::new(), Persistent)
        .await
        .unwrap_err();
    let created = tree
        .create(&p("/a/n"), Bytes::new(), PersistentSequential)
        .await
        .unwrap();
    assert_eq!(created.path, p("/a/n0000000001"));
}

pub(crate) async fn sessions_never_get_the_same_number(backend: &impl Backend) {
    let first = backend.session().await;
    let second = backend.session().await;
    first
        .create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap();
    let path = p("/a/n");
    let creates = (0..100).map(|i| {
        let tree = if i % 2 == 0 { &first } else { &second };
        tree.create(&path, Bytes::new(), EphemeralSequential)
    });
    let names: BTreeSet<_> = join_all(creates)
        .await
        .into_iter()
        .map(|created| created.unwrap().path)
        .collect();
    assert_eq!(names.len(), 100);
    assert_eq!(names.last(), Some(&p("/a/n0000000099")));
}
