//! The provenance of builds that were deleted by retention.

use nodeyard_builder::steward::notes::ImageNotes;
use nodeyard_model::{BuildId, Node, NodeState, UploadKey, layout};
use nodeyard_store::{TreePath, ext};

use super::{TENANT, ZuulTest, ready};
use crate::steward::fixtures::{Records, eventually, image};

/// The notes on builds that are gone.
async fn gone(records: &Records) -> Vec<BuildId> {
    let notes = ImageNotes::read(&**records.0.tree(), &image())
        .await
        .unwrap();
    let gone = notes.builds.iter().filter(|(_, known)| known.gone);
    gone.map(|(build, _)| *build).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_build_came_from_is_known_until_its_last_node_has_gone() {
    let test = ZuulTest::new(TENANT).await;
    test.zuul.publish("aaaa", |_| {});
    let (worker, steward) = (test.worker().await, test.steward().await);
    let records = Records::of(&test.store).await;
    records.settled(1, &test.clouds).await;
    let (first, _) = ready(&records, "aaaa").await.unwrap();
    let (build, to, upload, _) = records.uploads().await.remove(0);
    assert_eq!(build, first);
    let key = UploadKey {
        build: nodeyard_model::BuildKey {
            image: image(),
            build,
        },
        provider: to,
        upload,
    };
    let now = nodeyard_model::now();
    let mut node = Node::new(NodeState::InUse, now);
    node.image_id = Some(layout::upload(&key).into());
    let (node, _) = records.0.nodes().create(&node).await.unwrap();

    for uuid in ["bbbb", "cccc"] {
        test.zuul.publish(uuid, |_| {});
        records.request().await;
        eventually("the next build is imported", || ready(&records, uuid)).await;
    }
    eventually("the first one is gone and known", || async {
        (gone(&records).await == [first]).then_some(())
    })
    .await;
    let notes = ImageNotes::read(&**records.0.tree(), &image())
        .await
        .unwrap();
    let known = notes.builds[&first].provenance.as_ref().unwrap();
    assert_eq!(&*known.build.uuid, "aaaa");

    let path = TreePath::new(layout::node(node)).unwrap();
    ext::delete_recursive(&**records.0.tree(), &path)
        .await
        .unwrap();
    test.zuul.publish("dddd", |_| {});
    records.request().await;
    eventually("with the next that goes, it is forgotten", || async {
        let second_is_gone = ready(&records, "bbbb").await.is_none();
        (second_is_gone && gone(&records).await.is_empty()).then_some(())
    })
    .await;
    steward.stop().await;
    worker.stop().await;
}
