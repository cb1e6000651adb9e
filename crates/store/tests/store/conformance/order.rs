use bytes::Bytes;
use futures_util::future::{join, join_all};
use nodeyard_store::CreateMode::{Persistent, PersistentSequential};
use nodeyard_store::Version;

use crate::conformance::backend::{Backend, p};

const MANY: usize = 300;

pub(crate) async fn pipelined_creates_keep_their_order(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap();
    let prefix = p("/a/n");
    let creates =
        (0..MANY).map(|i| tree.create(&prefix, Bytes::from(i.to_string()), PersistentSequential));
    let created = join_all(creates).await;
    for (i, created) in created.into_iter().enumerate() {
        assert_eq!(created.unwrap().path, p(&format!("/a/n{i:010}")));
    }
    for (i, (_, record)) in tree.list(&p("/a")).await.unwrap().iter().enumerate() {
        assert_eq!(record.data, i.to_string());
    }
}

pub(crate) async fn a_read_sees_the_write_begun_before_it(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap();
    let path = p("/a");
    for i in 0..50 {
        let text = i.to_string();
        let write = tree.set(&path, text.clone().into(), Version::Any);
        let (written, read) = join(write, tree.get(&path)).await;
        assert_eq!(read.unwrap().data, text);
        assert_eq!(written.unwrap().version, i + 1);
    }
}

pub(crate) async fn a_listing_sees_the_create_begun_before_it(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap();
    let (dir, prefix) = (p("/a"), p("/a/n"));
    for _ in 0..50 {
        let create = tree.create(&prefix, Bytes::new(), PersistentSequential);
        let (created, listing) = join(create, tree.children(&dir)).await;
        let name = created.unwrap().path.name().to_owned();
        assert!(listing.unwrap().names.contains(&name));
    }
}

pub(crate) async fn pipelined_sets_end_with_the_last(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap();
    let path = p("/a");
    let sets = (0..MANY).map(|i| tree.set(&path, Bytes::from(i.to_string()), Version::Any));
    for (i, stat) in join_all(sets).await.into_iter().enumerate() {
        assert_eq!(usize::try_from(stat.unwrap().version).unwrap(), i + 1);
    }
    assert_eq!(tree.get(&path).await.unwrap().data, (MANY - 1).to_string());
}

pub(crate) async fn sync_shows_what_others_have_written(backend: &impl Backend) {
    let writer = backend.session().await;
    let reader = backend.session().await;
    writer
        .create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap();
    for i in 0..50 {
        let text = i.to_string();
        writer
            .set(&p("/a"), text.clone().into(), Version::Any)
            .await
            .unwrap();
        reader.sync().await.unwrap();
        assert_eq!(reader.get(&p("/a")).await.unwrap().data, text);
    }
}
