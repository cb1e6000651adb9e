//! Many writes at once.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use nodeyard_store::zookeeper::ZooKeeper;
use nodeyard_store::{CreateMode, Tree, TreePath, Version};

use super::support::*;

const WRITES: usize = 100_000;
/// Requests on the way at one time.
const WINDOW: usize = 2000;

async fn write_all(tree: &Arc<ZooKeeper>, target: &TreePath, payload: &Bytes) {
    stream::iter(0..WRITES)
        .map(|_| tree.set(target, payload.clone(), Version::Any))
        .buffered(WINDOW)
        .for_each(|result| async move {
            result.unwrap();
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_pipelined_writes_all_arrive() {
    let tree = fresh().await;
    let a = path("/a");
    tree.create(&a, data(""), CreateMode::Persistent)
        .await
        .unwrap();
    write_all(&tree, &a, &Bytes::from(vec![b'x'; 16])).await;
    let stat = tree.stat(&a).await.unwrap().unwrap();
    assert_eq!(stat.version, WRITES as i32);
}
