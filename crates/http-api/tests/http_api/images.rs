//! Images, builds, uploads and what is asked of them.

use nodeyard_model::{
    BuildKey, BuildState, ImageBuild, ImageName, ImageUpload, ProviderName, UploadState,
};
use nodeyard_store::registry::Registry;
use serde_json::json;

use crate::testbed::{ADMIN, ALICE, OPERATOR, Testbed, at, until};

const BUILD: &str = "0a5c8c1e6e2f4d0f9c3b7a8d5e1f2a3b";

/// A build of an image, with an upload.
pub(crate) async fn build(registry: &Registry, image: &ImageName) {
    let key = BuildKey {
        image: image.clone(),
        build: BUILD.parse().unwrap(),
    };
    let mut build = ImageBuild::new(BuildState::Ready, at(3.5));
    build.builder = Some("nb01".into());
    build.formats = ["qcow2", "raw"].into_iter().collect();
    let images = registry.images();
    images.create_build(&key, &build).await.unwrap();
    let mut upload = ImageUpload::new(UploadState::Ready, at(4.5));
    upload.external_id = Some("image-1".into());
    let cloud = ProviderName::new("cloud").unwrap();
    images.create_upload(&key, &cloud, &upload).await.unwrap();
}

#[tokio::test]
async fn images_are_built_paused_and_deleted() {
    let testbed = Testbed::new().await;
    let operator = testbed.by(OPERATOR);
    // What is configured is there before anybody has built it.
    let images = testbed.client().get("/images").await.is(200);
    assert_eq!(images["items"][0]["name"], "debian");
    operator
        .put("/images/debian/pause")
        .await
        .problem(409, "conflict");
    testbed
        .by(ALICE)
        .ask("POST", "/images/debian/builds", None)
        .await
        .problem(403, "forbidden");
    operator
        .ask("POST", "/images/debian/builds", None)
        .await
        .is(202);
    operator
        .ask("POST", "/images/quiet/builds", None)
        .await
        .problem(409, "conflict");
    operator
        .ask("POST", "/images/unheard-of/builds", None)
        .await
        .problem(404, "not-found");
    until("the wish is seen", async || {
        let image = testbed.client().get("/images/debian").await.is(200);
        image["asked"].is_string()
    })
    .await;
    let paused = operator.put("/images/debian/pause").await.is(200);
    assert_eq!(paused["paused"], true);
    operator.put("/images/debian/pause").await.is(200);
    let paused = operator.delete("/images/debian/pause").await.is(200);
    assert_eq!(paused["paused"], false);
    operator.delete("/images/debian/pause").await.is(200);

    build(&testbed.registry, &ImageName::new("debian").unwrap()).await;
    let id = format!("debian-{BUILD}");
    until("the build is seen", async || {
        testbed.client().get(&format!("/builds/{id}")).await.status == 200
    })
    .await;
    let builds = testbed
        .client()
        .get("/builds?image=debian&state=ready")
        .await
        .is(200);
    assert_eq!(builds["items"][0]["formats"], json!(["qcow2", "raw"]));
    let none = testbed.client().get("/builds?image=other").await.is(200);
    assert_eq!(none["items"], json!([]));
    let upload = format!("/uploads/{id}/cloud/0000000000");
    until("the upload is seen", async || {
        testbed.client().get(&upload).await.status == 200
    })
    .await;
    let uploads = testbed
        .client()
        .get("/uploads?provider=cloud")
        .await
        .is(200);
    assert_eq!(uploads["items"][0]["external_id"], "image-1");

    operator.delete(&upload).await.problem(403, "forbidden");
    let admin = testbed.by(ADMIN);
    admin.delete(&upload).await.is(202);
    admin.delete(&format!("/builds/{id}")).await.is(202);
    until("both are marked", async || {
        let build = testbed.client().get(&format!("/builds/{id}")).await.is(200);
        let upload = testbed.client().get(&upload).await.is(200);
        build["state"] == "deleting" && upload["state"] == "deleting"
    })
    .await;
}
