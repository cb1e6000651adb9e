//! Filters on the images of a real cloud.

use nodeyard_driver::{ImageFilter, Images as _, Machines as _, Readiness, image_filters};
use nodeyard_testbeds::next_second;
use serde_json::json;

use crate::images::bed::Bed;

const PROVIDER: &str = "    cloud-images:
      - name: newest
        image-filters:
          - {name: name, values: [\"jammy-*\"]}
          - {name: tag, values: [ci]}
          - {name: os_version, values: [\"22.04\"]}
          - {name: owner, values: [PROJECT]}
    pools:
      - name: main
        labels: [{name: small, cloud-image: newest, min-ram: 1}]
";

#[tokio::test]
async fn the_newest_active_one_that_meets_everything_is_chosen() {
    let Some(bed) = Bed::new("filters") else {
        return;
    };
    let keys = PROVIDER.replace("PROJECT", bed.project.id());
    let driver = bed.driver_with(&keys);
    let filter = |name: &str, value: &str| ImageFilter {
        name: name.to_owned(),
        values: vec![value.to_owned()],
    };
    let filters = [
        filter("name", "jammy-*"),
        filter("tag", "ci"),
        filter("os_version", "22.04"),
        filter("owner", bed.project.id()),
    ];
    let ready = async || {
        driver
            .readiness(&"main".into(), &"small".into())
            .await
            .unwrap()
    };
    let chosen = async || {
        let candidates = driver.candidates().await.unwrap();
        let newest = image_filters::newest(&filters, &candidates);
        newest.map(|image| image.name.to_string())
    };
    let make = |name: &str, version: &str, tags: &[&str]| {
        let properties = json!({"os_version": version, "tags": tags});
        let id = bed.project.create_image(name, properties).unwrap();
        // Glance counts in seconds.
        next_second();
        id
    };
    let Readiness::NotReady(reason) = ready().await else {
        panic!("there is no such image yet")
    };
    assert!(reason.contains("os_version \"22.04\""), "{reason}");

    make("jammy-1", "22.04", &["ci"]);
    assert_eq!(ready().await, Readiness::Ready);
    assert_eq!(chosen().await.as_deref(), Some("jammy-1"));
    make("jammy-untagged", "22.04", &[]);
    make("noble-1", "22.04", &["ci"]);
    make("jammy-wrong", "24.04", &["ci"]);
    assert_eq!(chosen().await.as_deref(), Some("jammy-1"));
    let second = make("jammy-2", "22.04", &["other", "ci"]);
    assert_eq!(chosen().await.as_deref(), Some("jammy-2"));

    let service = nodeyard_testbeds::openstack::Service::Image;
    bed.project
        .admin()
        .call(
            "POST",
            service,
            &format!("/v2/images/{second}/actions/deactivate"),
            None,
        )
        .unwrap();
    assert_eq!(chosen().await.as_deref(), Some("jammy-1"));
}
