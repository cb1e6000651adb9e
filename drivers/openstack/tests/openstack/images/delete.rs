//! Deletion, and what is in use.

use nodeyard_driver::{ErrorClass, Images as _, Machines as _, ResourceKind, Target};
use nodeyard_testbeds::openstack::{Answer, Calls, Fault, Service};
use serde_json::json;

use crate::images::bed::{Bed, delete, interrupted_upload, upload};

#[tokio::test]
async fn what_is_in_use_stays_and_says_so_and_goes_later() {
    let Some(bed) = Bed::new("in-use") else {
        return;
    };
    let driver = bed.driver();
    let order = bed.order(1, bed.file("disk.raw", 1));
    let image = upload(&driver, &order).await.unwrap();
    let image = image.external_id.to_string();

    let member = bed.project.member();
    let flavors = member
        .list(Service::Compute, "/flavors", "flavors")
        .unwrap();
    let server = json!({"server": {
        "name": "user", "imageRef": image, "flavorRef": flavors[0]["id"],
        "networks": [{"uuid": bed.project.network()}],
    }});
    member.post(Service::Compute, "/servers", &server).unwrap();
    let used = driver.images_in_use().await.unwrap();
    assert!(used.contains(&image.as_str().into()), "{used:?}");

    // Glance itself knows of users only with some of its stores; this is what it says then.
    let text = format!("Image {image} could not be deleted because it is in use: volume-1");
    let busy = Fault::Answer(Answer::of(Service::Image, 409, &text));
    bed.gateway
        .fail(Calls::of(Service::Image).method("DELETE").times(1), busy);
    let error = delete(&driver, 1, Some(&image)).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Retry);
    assert!(error.to_string().contains("still in use"), "{error}");
    assert!(error.to_string().contains("volume-1"), "{error}");
    assert_eq!(bed.images().len(), 1);
    delete(&driver, 1, Some(&image)).await.unwrap();
    assert_eq!(bed.images().len(), 0);
    delete(&driver, 1, Some(&image)).await.unwrap();
    delete(&driver, 1, None).await.unwrap();
}

#[tokio::test]
async fn a_protected_image_is_told_from_missing_rights() {
    let Some(bed) = Bed::new("protected") else {
        return;
    };
    let driver = bed.driver();
    let image = bed.project.create_image("mine", json!({})).unwrap();
    let text = format!("Image {image} is protected and cannot be deleted.");
    let refused = Fault::Answer(Answer::of(Service::Image, 403, &text));
    bed.gateway
        .fail(Calls::of(Service::Image).method("DELETE"), refused);
    let error = delete(&driver, 1, Some(&image)).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Credentials, "{error}");

    let protected = |answer: &mut serde_json::Value| answer["protected"] = json!(true);
    let look = Calls::of(Service::Image).method("GET").path("/images/{id}");
    bed.gateway
        .fail(look, Fault::Altered(std::sync::Arc::new(protected)));
    let error = delete(&driver, 1, Some(&image)).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Permanent);
    assert!(error.to_string().contains("unprotect it first"), "{error}");
}

/// What Nodepool's own tools or a person made is never found by our tags; a leak of ours is, and goes as it was listed.
#[tokio::test]
async fn leaks_carry_our_tags_and_go_as_they_are_listed() {
    let Some(bed) = Bed::new("leaks") else { return };
    let driver = bed.driver();
    bed.project.create_image("by-hand", json!({})).unwrap();
    let python = json!({"nodepool_provider_name": "cloud", "nodepool_build_id": format!("{:032x}", 7),
                        "nodepool_upload_id": "0000000001"});
    bed.project.create_image("by-python", python).unwrap();
    let order = bed.order(1, bed.file("disk.raw", 1));
    // Created, and then forgotten.
    interrupted_upload(&driver, &order, 1).await;
    let listed = driver.list().await.unwrap();
    let ours: Vec<_> = listed
        .into_iter()
        .filter(|one| one.kind == ResourceKind::IMAGES && bed.owner().owns(&one.tags))
        .collect();
    assert_eq!(ours.len(), 1);
    let target = Target::Resource {
        kind: ours[0].kind.clone(),
        id: ours[0].id.clone(),
    };
    driver.delete(&target).await.unwrap();
    delete(&driver, 1, None).await.unwrap();
    let mut left: Vec<_> = bed
        .images()
        .iter()
        .map(|image| image["name"].as_str().unwrap().to_owned())
        .collect();
    left.sort();
    assert_eq!(left, ["by-hand", "by-python"]);
}
