//! JSON records.

use bytes::Bytes;
use nodeyard_store::embedded::Embedded;
use nodeyard_store::{TreePath, Version, ext};

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_changes_of_a_json_record_are_all_applied() {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(directory.path()).unwrap();
    let path = TreePath::new("/deep/down/count").unwrap();
    let change = |add: u64| {
        let (tree, path) = (store.session(), path.clone());
        async move { ext::change_json(&*tree, &path, |count: &mut u64| *count += add).await }
    };
    // Nothing to say, nothing written.
    assert_eq!(change(0).await.unwrap(), 0);
    let tree = store.session();
    assert!(ext::get_opt(&*tree, &path).await.unwrap().is_none());
    let changes = (0..40).map(|_| tokio::spawn(change(1)));
    for change in changes.collect::<Vec<_>>() {
        change.await.unwrap().unwrap();
    }
    assert_eq!(
        ext::read_json::<u64>(&*tree, &path).await.unwrap(),
        Some(40)
    );
    // What makes no sense is replaced.
    tree.set(&path, Bytes::from("garbage"), Version::Any)
        .await
        .unwrap();
    assert_eq!(ext::read_json::<u64>(&*tree, &path).await.unwrap(), None);
    assert_eq!(change(7).await.unwrap(), 7);
}
