use bytes::Bytes;
use futures_util::future::join_all;
use nodeyard_store::CreateMode::Persistent;
use nodeyard_store::tree::MAX_DATA;
use nodeyard_store::{Error, Op, TreePath, Version};

use crate::conformance::backend::{Backend, p};

pub(crate) async fn the_largest_record_fits(backend: &impl Backend) {
    let tree = backend.session().await;
    let data = Bytes::from(vec![b'x'; MAX_DATA]);
    tree.create(&p("/big"), data.clone(), Persistent)
        .await
        .unwrap();
    tree.set(&p("/big"), data.clone(), Version::Any)
        .await
        .unwrap();
    assert_eq!(tree.get(&p("/big")).await.unwrap().data, data);
    tree.create(&p("/big/child"), data.clone(), Persistent)
        .await
        .unwrap();
    assert_eq!(tree.list(&p("/big")).await.unwrap().len(), 1);
}

pub(crate) async fn one_byte_more_does_not(backend: &impl Backend) {
    let tree = backend.session().await;
    let data = Bytes::from(vec![b'x'; MAX_DATA + 1]);
    let too_large = |error: &Error| matches!(error, Error::TooLarge { size, limit, .. } if *size == MAX_DATA + 1 && *limit == MAX_DATA);
    let error = tree
        .create(&p("/a"), data.clone(), Persistent)
        .await
        .unwrap_err();
    assert!(too_large(&error), "{error:?}");
    tree.create(&p("/a"), "small".into(), Persistent)
        .await
        .unwrap();
    let error = tree
        .set(&p("/a"), data.clone(), Version::Any)
        .await
        .unwrap_err();
    assert!(too_large(&error), "{error:?}");
    let error = tree
        .multi(vec![
            Op::Delete {
                path: p("/a"),
                version: Version::Any,
            },
            Op::Create {
                path: p("/b"),
                data,
                mode: Persistent,
            },
        ])
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::Multi { index: 1, source } if too_large(source)),
        "{error:?}"
    );
    // The session is none the worse for it.
    assert_eq!(tree.get(&p("/a")).await.unwrap().data, "small");
}

pub(crate) async fn a_multi_fits_as_a_whole(backend: &impl Backend) {
    let tree = backend.session().await;
    let creates = |paths: [&str; 2], size: usize| {
        let create = |path: &str| Op::Create {
            path: p(path),
            data: Bytes::from(vec![b'x'; size]),
            mode: Persistent,
        };
        paths.map(create).to_vec()
    };
    // Each alone would be taken.
    let error = tree.multi(creates(["/a", "/b"], MAX_DATA / 2 + 4096)).await;
    let error = error.unwrap_err();
    assert!(
        matches!(&error, Error::Multi { index: 1, source } if matches!(**source, Error::TooLarge { .. })),
        "{error:?}"
    );
    assert_eq!(tree.stat(&p("/a")).await.unwrap(), None);
    tree.multi(creates(["/a", "/b"], MAX_DATA / 2))
        .await
        .unwrap();
    assert_eq!(tree.get(&p("/b")).await.unwrap().data.len(), MAX_DATA / 2);
}

pub(crate) async fn names_may_be_strange(backend: &impl Backend) {
    let tree = backend.session().await;
    let long = "n".repeat(1000);
    for name in [
        "a b",
        "ä.…",
        "...",
        "%2f",
        "\"'\\",
        "-",
        "zookeeper2",
        "日本",
        &long,
    ] {
        let path = p(&format!("/{name}"));
        tree.create(&path, name.to_owned().into(), Persistent)
            .await
            .unwrap();
        assert_eq!(tree.get(&path).await.unwrap().data, name);
        assert!(
            tree.children(&p("/"))
                .await
                .unwrap()
                .names
                .iter()
                .any(|n| n == name)
        );
    }
}

pub(crate) async fn deep_paths_work(backend: &impl Backend) {
    let tree = backend.session().await;
    let mut path = TreePath::root();
    for _ in 0..64 {
        path = path.join("deep").unwrap();
        tree.create(&path, Bytes::new(), Persistent).await.unwrap();
    }
    nodeyard_store::ext::delete_recursive(&*tree, &p("/deep"))
        .await
        .unwrap();
    assert_eq!(tree.stat(&p("/deep")).await.unwrap(), None);
    nodeyard_store::ext::ensure_path(&*tree, &path)
        .await
        .unwrap();
    nodeyard_store::ext::ensure_path(&*tree, &path)
        .await
        .unwrap();
    assert!(tree.stat(&path).await.unwrap().is_some());
}

pub(crate) async fn many_children_are_listed(backend: &impl Backend) {
    let tree = backend.session().await;
    tree.create(&p("/many"), Bytes::new(), Persistent)
        .await
        .unwrap();
    let names: Vec<String> = (0..2000)
        .map(|i| format!("{i:05}-{}", "x".repeat(100)))
        .collect();
    let paths: Vec<_> = names
        .iter()
        .map(|name| p("/many").join(name).unwrap())
        .collect();
    let creates = paths
        .iter()
        .map(|path| tree.create(path, "d".into(), Persistent));
    for created in join_all(creates).await {
        created.unwrap();
    }
    assert_eq!(tree.children(&p("/many")).await.unwrap().names, names);
    let listed = tree.list(&p("/many")).await.unwrap();
    assert!(listed.iter().map(|(name, _)| name).eq(&names));
    nodeyard_store::ext::delete_recursive(&*tree, &p("/many"))
        .await
        .unwrap();
    assert_eq!(tree.stat(&p("/many")).await.unwrap(), None);
}
