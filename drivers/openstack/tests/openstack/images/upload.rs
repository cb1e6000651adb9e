//! Uploads that go well, in all ways there are.

use std::fs::File;

use nodeyard_driver::{ErrorClass, ImageStatus, Images as _, Progress};
use nodeyard_openstack::Digests;
use nodeyard_testbeds::openstack::{Calls, Fault, Service};
use serde_json::json;

use crate::images::bed::{Bed, delete, key, upload, upload_reporting};

#[tokio::test]
async fn an_image_arrives_with_everything_that_belongs_to_it() {
    let Some(bed) = Bed::new("arrives") else {
        return;
    };
    let driver = bed.driver();
    for (number, name) in [(1, "disk.raw"), (2, "disk.qcow2")] {
        let file = bed.file(name, 3);
        let digests = Digests::of(&file).unwrap();
        let mut order = bed.order(number, file);
        order.md5 = Some(digests.md5.clone());
        order.sha256 = Some(digests.sha256.clone());
        let progress = Progress::default();
        let done = upload_reporting(&driver, &order, &progress).await.unwrap();
        assert_eq!(*done.external_name, *order.name);
        let reported = progress.subscribe().borrow().clone();
        assert_eq!(
            (reported.bytes.sent, reported.bytes.total),
            (3 << 20, 3 << 20)
        );
        assert_eq!(reported.external_id.as_ref(), Some(&done.external_id));

        let images = bed.images();
        let image = images
            .iter()
            .find(|image| image["name"] == *order.name)
            .unwrap();
        assert_eq!(image["id"], done.external_id.to_string());
        for (key, value) in [
            ("status", json!("active")),
            ("visibility", json!("private")),
            ("disk_format", json!(&*order.format)),
            ("container_format", json!("bare")),
            ("os", json!("jammy")),
            ("min_disk", json!(1)),
            ("tags", json!(["ci"])),
            ("checksum", json!(digests.md5)),
            ("nodepool_provider_name", json!("cloud")),
            ("nodepool_build_id", json!(format!("{:032x}", 7))),
            ("nodepool_upload_id", json!(format!("{number:010}"))),
            ("nodeyard_system_id", json!(bed.project.name())),
            ("owner_specified.openstack.md5", json!(digests.md5)),
            ("owner_specified.openstack.sha256", json!(digests.sha256)),
            (
                "owner_specified.openstack.object",
                json!(format!("images/disk-{number}")),
            ),
        ] {
            assert_eq!(image[key], value, "{key}");
        }
        assert!(image.get("nodeyard_unverified").is_none());
    }
    let listed = driver.list_images().await.unwrap();
    let ours: Vec<_> = listed
        .iter()
        .filter(|image| bed.owner().owns(&image.tags()))
        .collect();
    assert_eq!(ours.len(), 2);
    assert!(ours.iter().all(|image| image.status == ImageStatus::Active));
    assert_eq!(ours[0].properties["owner"], bed.project.id());
    delete(&driver, 1, None).await.unwrap();
    assert_eq!(bed.images().len(), 1);
}

#[tokio::test]
async fn an_image_is_sent_over_tls() {
    let Some(bed) = Bed::over_tls("tls") else {
        return;
    };
    let file = bed.file("disk.raw", 3);
    let digests = Digests::of(&file).unwrap();
    let order = bed.order(1, file);
    upload(&bed.driver(), &order).await.unwrap();
    let image = bed.images().remove(0);
    assert_eq!(image["status"], "active");
    assert_eq!(image["checksum"], json!(digests.md5));
    assert_eq!(bed.gateway.counts()["image PUT /v2/images/{id}/file"], 1);
}

#[tokio::test]
async fn glance_imports_what_was_staged() {
    let Some(bed) = Bed::new("imports") else {
        return;
    };
    let driver = bed.driver_with("    image-import: true\n");
    let order = bed.order(1, bed.file("disk.raw", 1));
    let done = upload(&driver, &order).await.unwrap();
    let images = bed.images();
    assert_eq!(images[0]["id"], done.external_id.to_string());
    assert_eq!(
        (&images[0]["status"], &images[0]["os"]),
        (&json!("active"), &json!("jammy"))
    );
    assert_eq!(bed.gateway.counts()["image PUT /v2/images/{id}/stage"], 1);

    let none = |answer: &mut serde_json::Value| answer["import-methods"]["value"] = json!([]);
    let info = Calls::of(Service::Image).path("/info/import");
    bed.gateway
        .fail(info, Fault::Altered(std::sync::Arc::new(none)));
    let order = bed.order(2, bed.file("disk.raw", 1));
    let error = upload(&driver, &order).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Permanent);
    assert!(error.to_string().contains("it offers none"), "{error}");
}

/// Until its data is checked an image has none of what filters look for, and does not count as active.
#[tokio::test]
async fn an_image_is_not_seen_before_it_is_checked() {
    let Some(bed) = Bed::new("unseen") else {
        return;
    };
    let driver = bed.driver();
    let mut order = bed.order(1, bed.file("disk.raw", 1));
    let publish = Calls::of(Service::Image).method("PATCH");
    bed.gateway
        .fail(publish, Fault::status(Service::Image, 400));
    upload(&driver, &order).await.unwrap_err();
    let image = bed.images().remove(0);
    let listed = driver.list_images().await.unwrap();
    let ours = listed
        .iter()
        .find(|image| bed.owner().owns(&image.tags()))
        .unwrap();
    assert_eq!(ours.status, ImageStatus::Pending, "{image}");
    assert_eq!(image["status"], "active");
    assert!(image.get("os").is_none(), "{image}");
    assert_eq!(image["tags"], json!([]));

    bed.gateway.heal();
    order.first_attempt = false;
    upload(&driver, &order).await.unwrap();
    assert_eq!(bed.images()[0]["os"], "jammy");
}

#[tokio::test]
async fn what_cannot_work_is_refused_before_anything_is_sent() {
    let Some(bed) = Bed::new("refused") else {
        return;
    };
    let driver = bed.driver();
    for (key, value) in [
        ("size", "7"),
        ("min_ram", "much"),
        ("protected", "perhaps"),
        ("tags", "x"),
    ] {
        let mut order = bed.order(1, bed.file("disk.raw", 1));
        order.metadata.insert(key.to_owned(), value.to_owned());
        let error = upload(&driver, &order).await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Permanent, "{error}");
        assert!(error.to_string().contains(&format!("`{key}`")), "{error}");
    }
    let mut order = bed.order(1, bed.file("disk.raw", 1));
    order.sha256 = Some("00".repeat(32).into());
    let error = upload(&driver, &order).await.unwrap_err();
    assert!(error.to_string().contains("sha256"), "{error}");
    let order = bed.order(1, bed.project.directory().join("none.raw"));
    let error = upload(&driver, &order).await.unwrap_err();
    assert!(error.to_string().contains("none.raw"), "{error}");
    assert!(bed.images().is_empty() || bed.images()[0]["status"] != "active");
    delete(&driver, 1, None).await.unwrap();
    assert_eq!(key(1), order.upload);
    assert_eq!(bed.images(), Vec::<serde_json::Value>::new());
}

/// Half a gigabyte of nothing: it is sent, but never held.
#[tokio::test]
async fn a_large_sparse_file_takes_no_memory() {
    let Some(bed) = Bed::new("large") else { return };
    let path = bed.project.directory().join("large.raw");
    File::create(&path).unwrap().set_len(512 << 20).unwrap();
    let driver = bed.driver();
    let mut order = bed.order(1, path);
    order.metadata.clear();
    upload(&driver, &order).await.unwrap();
    assert_eq!(bed.images()[0]["size"], 512_u64 << 20);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let kilobytes: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    // Other tests of this process need some, too.
    assert!(kilobytes < 256 << 10, "{kilobytes} kB");
}
