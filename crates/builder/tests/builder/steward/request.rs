//! Build requests and their deletion.

use nodeyard_model::{BuildId, BuildKey, BuildState, ImageBuild, layout};
use nodeyard_store::{TreePath, WatchEvent};

use crate::steward::fixtures::{
    Records, RunningSteward, Store, TWO_PROVIDERS, TestJobServer, eventually, image, logs,
};

#[tokio::test(flavor = "multi_thread")]
async fn is_taken_away_by_whoever_has_the_lock_of_the_image() {
    logs();
    for store in [Store::embedded(), Store::zookeeper().await] {
        let server = TestJobServer::start().await;
        let records = Records::of(&store).await;
        // A steward built the image for the request and stopped before it deleted the request.
        records.request().await;
        let key = BuildKey {
            image: image(),
            build: BuildId::from_u128(1),
        };
        let mut build = ImageBuild::new(BuildState::Ready, nodeyard_model::now());
        build.formats = ["qcow2"].into_iter().collect();
        let images = records.0.images();
        images.create_build(&key, &build).await.unwrap();

        let root = TreePath::new(layout::IMAGES).unwrap();
        let tree = store.session().await;
        let mut watcher = tree.watch(&root).await.unwrap();
        let steward = RunningSteward::start(&store, &server, TWO_PROVIDERS).await;
        eventually("the request is gone", || async {
            let request = images.build_request(&image()).await.unwrap();
            request.is_none().then_some(())
        })
        .await;
        steward.stop().await;

        let lock = format!("{}/{}/", layout::builds(&image()), layout::LOCK);
        let request = layout::build_request(&image());
        let mut holders = 0;
        loop {
            match watcher.next().await.unwrap() {
                WatchEvent::Created(path) if path.as_str().starts_with(&lock) => holders += 1,
                WatchEvent::Deleted(path) if path.as_str().starts_with(&lock) => holders -= 1,
                WatchEvent::Deleted(path) if path.as_str() == request => break,
                _ => {}
            }
        }
        assert!(holders > 0, "the image's lock is held meanwhile");
        tree.close().await;
    }
}
