//! Uploads and files: how images come, are chosen, and go.

use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime};

use nodeyard_driver::{
    BootImage, ErrorClass, ImageFilter, ImageStatus, ImageTarget, Images, Machines, Progress,
    UploadOrder, UploadedImage,
};
use nodeyard_driver_qemu::{
    GuestAccess, LabelImage, QemuDiskImageOptions, QemuDriver, QemuImageChoice,
};
use nodeyard_model::{BuildId, BuildKey, ImageName, ProviderName, UploadKey};

use crate::common::{PATIENCE, PROVIDER, Yard, launch, order, owner, remove};

const BUILD: BuildId = BuildId::from_u128(7);

fn key(number: u32) -> UploadKey {
    UploadKey {
        build: BuildKey {
            image: ImageName::new("debian").unwrap(),
            build: BUILD,
        },
        provider: ProviderName::new(PROVIDER).unwrap(),
        upload: format!("{number:010}").parse().unwrap(),
    }
}

fn upload(yard: &Yard, file: &str, format: &str) -> UploadOrder {
    UploadOrder {
        upload: key(1),
        name: "debian-1".into(),
        file: yard.path().join(file),
        format: format.into(),
        md5: None,
        sha256: None,
        metadata: [("role".to_owned(), "test".to_owned())].into(),
        tags: owner().upload_tags(BUILD, key(1).upload),
        marks: Vec::new(),
        first_attempt: true,
    }
}

async fn bring(
    driver: &QemuDriver,
    order: &UploadOrder,
) -> Result<UploadedImage, nodeyard_driver::Error> {
    let progress = Progress::default();
    let image = driver.upload(order, &progress).await?;
    assert_eq!(progress.external_id().as_ref(), Some(&image.external_id));
    Ok(image)
}

fn qemu_img(arguments: &[&str]) {
    assert!(
        Command::new("qemu-img")
            .args(arguments)
            .status()
            .unwrap()
            .success()
    );
}

#[tokio::test]
async fn an_image_stays_as_long_as_a_machine_builds_on_it() {
    let yard = Yard::with(|options| {
        let debian = ImageName::new("debian").unwrap();
        options.pools[0].labels[0].image = LabelImage::Disk(debian.clone());
        options.disk_images = vec![QemuDiskImageOptions {
            name: debian,
            username: None,
            access: GuestAccess::SSH,
        }];
    });
    let built = yard.path().join("built.qcow2");
    qemu_img(&["create", "-q", "-f", "qcow2", built.to_str().unwrap(), "8M"]);
    let driver = yard.driver();
    let image = bring(&driver, &upload(&yard, "built.qcow2", "qcow2"))
        .await
        .unwrap();
    // The builder may remove its own copy.
    fs::remove_file(&built).unwrap();
    let listed = driver.list_images().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (listed[0].status, &*listed[0].name),
        (ImageStatus::Active, "debian-1")
    );
    assert_eq!(listed[0].properties["role"], "test");

    let mut order = order(1);
    order.image = BootImage::Upload {
        image: ImageName::new("debian").unwrap(),
        external_id: image.external_id.clone(),
    };
    launch(&driver, &order).await.unwrap();
    let target = ImageTarget {
        upload: key(1),
        external_id: Some(image.external_id),
    };
    let deletion = driver.delete_image(&target);
    tokio::pin!(deletion);
    // Marked as deleted, and kept for the machine.
    let marked = async {
        while driver.list_images().await.unwrap()[0].status == ImageStatus::Active {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        deleted = &mut deletion => panic!("{deleted:?} while a machine uses it"),
        () = marked => {}
    }
    assert_eq!(yard.names("uploads").len(), 2);
    // Nothing new boots from it.
    let mut second = order.clone();
    second.node = crate::common::node(2);
    let error = launch(&driver, &second).await.unwrap_err();
    assert!(error.to_string().contains("is not on this host"), "{error}");

    remove(&driver, 1).await.unwrap();
    let deleted = tokio::time::timeout(PATIENCE, deletion).await;
    deleted.expect("the deletion never ends").unwrap();
    assert!(yard.names("uploads").is_empty());
}

#[tokio::test]
async fn images_that_reach_for_other_files_are_refused() {
    let yard = Yard::new();
    let secret = yard.path().join("secret.raw");
    fs::write(&secret, [7; 4096]).unwrap();
    let secret = secret.to_str().unwrap();
    let evil = yard.path().join("evil.qcow2");
    qemu_img(&[
        "create",
        "-q",
        "-f",
        "qcow2",
        "-F",
        "raw",
        "-b",
        secret,
        evil.to_str().unwrap(),
    ]);
    let driver = yard.driver();
    let error = bring(&driver, &upload(&yard, "evil.qcow2", "qcow2"))
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Permanent);
    assert!(error.to_string().contains("names another file"), "{error}");
    for (file, format, expected) in [
        ("secret.raw", "qcow2", "is not qcow2"),
        ("secret.raw", "vhd", "build qcow2 or raw"),
        ("missing", "raw", "failed to read"),
    ] {
        let error = bring(&driver, &upload(&yard, file, format))
            .await
            .unwrap_err();
        assert_eq!(error.class(), ErrorClass::Permanent);
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert!(yard.names("uploads").is_empty());
}

/// What a guest writes to its disk is never taken for the head of a qcow2 file.
#[tokio::test]
async fn a_raw_image_stays_raw_whatever_it_contains() {
    let yard = Yard::new();
    let evil = yard.path().join("evil.qcow2");
    let secret = yard.path().join("empty.raw");
    let secret = secret.to_str().unwrap();
    qemu_img(&[
        "create",
        "-q",
        "-f",
        "qcow2",
        "-F",
        "raw",
        "-b",
        secret,
        evil.to_str().unwrap(),
    ]);
    let driver = yard.driver();
    let image = bring(&driver, &upload(&yard, "evil.qcow2", "raw"))
        .await
        .unwrap();
    let mut order = order(1);
    order.image = BootImage::Upload {
        image: ImageName::new("debian").unwrap(),
        external_id: image.external_id,
    };
    let instance = launch(&driver, &order).await.unwrap();
    let disk = yard.machine_directory(&instance).join("disk.qcow2");
    let info = Command::new("qemu-img")
        .args(["info", "-U", "--output=json"])
        .arg(disk)
        .output()
        .unwrap();
    let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
    assert_eq!(info["backing-filename-format"], "raw");
}

#[tokio::test]
async fn the_newest_file_that_meets_the_filters_is_used() {
    let mut yard = Yard::new();
    let filters = vec![ImageFilter {
        name: "name".to_owned(),
        values: vec!["debian-*".to_owned()],
    }];
    yard.options.cloud_images[0].choice = QemuImageChoice::Filters(filters);
    let driver = yard.driver();
    let error = launch(&driver, &order(1)).await.unwrap_err();
    assert!(
        error.to_string().contains("there is no active image with"),
        "{error}"
    );
    let readiness = driver
        .readiness(&"main".into(), &"small".into())
        .await
        .unwrap();
    assert_ne!(readiness, nodeyard_driver::Readiness::Ready);

    let images = yard.options.directory.join("images");
    fs::create_dir_all(&images).unwrap();
    for (name, age) in [("debian-old", 500), ("debian-new", 100), ("other", 0)] {
        let file = fs::File::create(images.join(name)).unwrap();
        file.set_len(1 << 20).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age))
            .unwrap();
    }
    let instance = launch(&driver, &order(1)).await.unwrap();
    let disk = fs::read(yard.machine_directory(&instance).join("disk.qcow2")).unwrap();
    let head = String::from_utf8_lossy(&disk[..1024]).into_owned();
    assert!(head.contains("images/debian-new"), "{head}");
    let readiness = driver
        .readiness(&"main".into(), &"small".into())
        .await
        .unwrap();
    assert_eq!(readiness, nodeyard_driver::Readiness::Ready);
}
