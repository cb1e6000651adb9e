//! Images, as the builder uses them.

use nodeyard_model::{
    BuildId, BuildKey, BuildState, ImageBuild, ImageName, ImageUpload, ProviderName, UploadKey,
    UploadState,
};
use nodeyard_store::registry::{Attempt, ImageId, ImageRecord, Patience};

use crate::registry::{at, bed};

fn image() -> ImageName {
    ImageName::new("debian").unwrap()
}

fn build_key(number: u128) -> BuildKey {
    BuildKey {
        image: image(),
        build: BuildId::from_u128(number),
    }
}

#[tokio::test]
async fn builds_and_uploads_are_found_by_age() {
    let bed = bed();
    let images = bed.registry.images();
    let provider = ProviderName::new("cloud").unwrap();
    let view = images.view().unwrap();
    for (number, state, time) in [
        (1, BuildState::Ready, 10.0),
        (2, BuildState::Ready, 30.0),
        (3, BuildState::Failed, 40.0),
    ] {
        let build = ImageBuild::new(state, at(time));
        images
            .create_build(&build_key(number), &build)
            .await
            .unwrap();
    }
    let building = images
        .building_lock(&image())
        .unwrap()
        .acquire()
        .await
        .unwrap();
    let ready = images
        .newest_builds(&image(), BuildState::Ready)
        .await
        .unwrap();
    let order: Vec<_> = ready.iter().map(|(key, _)| key.clone()).collect();
    assert_eq!(order, [build_key(2), build_key(1)]);
    building.release().await.unwrap();

    let uploading = images.uploading_lock(&build_key(1), &provider).unwrap();
    let guard = uploading.acquire().await.unwrap();
    let mut keys = Vec::new();
    for (number, state, time) in [
        (1, UploadState::Ready, 50.0),
        (2, UploadState::Ready, 45.0),
        (2, UploadState::Uploading, 60.0),
    ] {
        let upload = ImageUpload::new(state, at(time));
        let (key, _) = images
            .create_upload(&build_key(number), &provider, &upload)
            .await
            .unwrap();
        keys.push(key);
    }
    assert_eq!(
        keys[0].upload.to_string(),
        "0000000001",
        "the lock's directory counts"
    );
    guard.release().await.unwrap();
    assert_eq!(
        images.providers(&build_key(2)).await.unwrap(),
        [provider.clone()].into()
    );
    assert_eq!(
        images
            .uploads(&build_key(2), &provider)
            .await
            .unwrap()
            .len(),
        2
    );

    let mut held = images
        .lock_upload(&keys[2], Patience::None)
        .await
        .unwrap()
        .held()
        .unwrap();
    held.value.set_state(UploadState::Ready, at(61.0));
    images
        .store_upload(&held.guard, &keys[2], &held.value)
        .await
        .unwrap();
    held.guard.release().await.unwrap();

    view.synced().await.unwrap();
    assert_eq!(view.len(), 6, "three builds and three uploads");
    let ImageRecord::Upload(shown) = &*view.get(&ImageId::Upload(keys[2].clone())).unwrap().value
    else {
        panic!("an upload");
    };
    assert_eq!(shown.state, UploadState::Ready);
    let known = |key: &UploadKey, provider: &ProviderName| {
        let (build, provider) = (key.build.build, provider.clone());
        let (images, upload) = (&images, key.upload);
        async move { images.knows_upload(build, &provider, upload).await }
    };
    let elsewhere = ProviderName::new("elsewhere").unwrap();
    assert!(known(&keys[0], &provider).await.unwrap());
    assert!(!known(&keys[0], &elsewhere).await.unwrap());
    images.delete_upload(&keys[0]).await.unwrap();
    assert!(!known(&keys[0], &provider).await.unwrap());
    images.delete_build(&build_key(2)).await.unwrap();
    assert!(matches!(
        images
            .lock_build(&build_key(2), Patience::None)
            .await
            .unwrap(),
        Attempt::Gone
    ));
    view.synced().await.unwrap();
    let left: Vec<_> = view.items().into_iter().map(|item| item.id).collect();
    assert_eq!(
        left,
        [ImageId::Build(build_key(1)), ImageId::Build(build_key(3))]
    );
}

#[tokio::test]
async fn flags_of_an_image_come_and_go() {
    let bed = bed();
    let images = bed.registry.images();
    assert!(
        images.pause(&image()).await.unwrap_err().is_no_node(),
        "an image nobody knows"
    );
    images.request_build(&image()).await.unwrap();
    images.request_build(&image()).await.unwrap();
    assert!(images.build_request(&image()).await.unwrap().unwrap().ctime > 0);
    assert!(images.delete_build_request(&image()).await.unwrap());
    assert!(!images.delete_build_request(&image()).await.unwrap());
    assert_eq!(images.build_request(&image()).await.unwrap(), None);
    assert!(!images.is_paused(&image()).await.unwrap());
    images.pause(&image()).await.unwrap();
    images.pause(&image()).await.unwrap();
    assert!(images.is_paused(&image()).await.unwrap());
    assert!(images.unpause(&image()).await.unwrap());
    assert!(!images.unpause(&image()).await.unwrap());
    assert_eq!(images.names().await.unwrap(), [image()].into());
}
