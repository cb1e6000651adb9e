//! Root file systems that become images.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nodeyard_driver::{
    BootImage, Error, ErrorClass, ImageFilter, ImageTarget, Images, Machines, Progress,
    ResourceKind, Target, UploadOrder, UploadedImage, image_filters,
};
use nodeyard_driver_container::{ContainerAccess, ContainerDriver, ContainerImage};
use nodeyard_model::{BuildId, BuildKey, ImageName, UploadKey};
use nodeyard_testbeds::ContainerRuntime;
use nodeyard_testbeds::containers::{Kind, Registry, root_filesystem};
use tokio::time::timeout;

use crate::common::{
    IMAGE, PATIENCE, create, delete, driver, on_both_runtimes, options, order, owner, runtime,
};

on_both_runtimes!(
    an_archive_becomes_an_image_that_boots_and_stays_while_it_is_used,
    packed_archives_are_unpacked_by_the_runtime,
    a_file_that_is_not_what_was_promised_becomes_no_image,
    an_import_whose_response_was_lost_is_found_again,
);

fn upload_order(system: &str, number: u32, file: &Path, format: &str) -> UploadOrder {
    let build = BuildId::from_u128(7);
    let upload = format!("{number:010}").parse().unwrap();
    UploadOrder {
        upload: UploadKey {
            build: BuildKey {
                image: ImageName::new("base").unwrap(),
                build,
            },
            provider: owner(system).provider,
            upload,
        },
        name: "Base Image".into(),
        file: file.to_owned(),
        format: format.into(),
        md5: None,
        sha256: None,
        metadata: [("os", "small \"linux\" $HOME"), ("nodepool_upload_id", "9")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        tags: owner(system).upload_tags(build, upload),
        marks: Vec::new(),
        first_attempt: true,
    }
}

async fn try_upload(driver: &ContainerDriver, order: &UploadOrder) -> Result<UploadedImage, Error> {
    driver.upload(order, &Progress::default()).await
}

async fn upload(driver: &ContainerDriver, order: &UploadOrder) -> UploadedImage {
    let progress = Progress::default();
    let image = driver.upload(order, &progress).await.unwrap();
    let size = std::fs::metadata(&order.file).unwrap().len();
    let bytes = progress.subscribe().borrow().bytes;
    assert_eq!((bytes.sent, bytes.total), (size, size));
    assert_eq!(progress.external_id().as_ref(), Some(&image.external_id));
    image
}

fn target(order: &UploadOrder) -> ImageTarget {
    ImageTarget {
        upload: order.upload.clone(),
        external_id: None,
    }
}

async fn delete_image(driver: &ContainerDriver, order: &UploadOrder) {
    let target = target(order);
    let deleted = async {
        while let Err(error) = driver.delete_image(&target).await {
            assert_eq!(error.class(), ErrorClass::Retry, "{error}");
        }
    };
    let deleted = timeout(PATIENCE, deleted).await;
    deleted.expect("the deletion never ends");
}

async fn count(driver: &ContainerDriver, system: &str) -> usize {
    let images = driver.list_images().await.unwrap();
    let owner = owner(system);
    images
        .iter()
        .filter(|image| owner.owns(&image.tags()))
        .count()
}

fn sum(program: &str, file: &Path) -> Box<str> {
    let output = Command::new(program).arg(file).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split(' ').next().unwrap().into()
}

async fn an_archive_becomes_an_image_that_boots_and_stays_while_it_is_used(
    runtime: &ContainerRuntime,
) {
    let system = "upload";
    let file = root_filesystem().unwrap();
    let options = options(system, |label| {
        label.image = ContainerImage::Disk(ImageName::new("base").unwrap());
        label.access = ContainerAccess::Exec;
    });
    let driver = driver(runtime, options);
    let mut upload_order = upload_order(system, 1, &file, "tar");
    upload_order.sha256 = Some(sum("sha256sum", &file));
    upload_order.md5 = Some(sum("md5sum", &file).to_uppercase().into());
    let image = upload(&driver, &upload_order).await;
    assert!(
        image
            .external_name
            .starts_with("localhost/nodeyard/base-image-")
    );

    let images = driver.list_images().await.unwrap();
    let listed = images
        .iter()
        .find(|listed| listed.id == image.external_id)
        .unwrap();
    // Tags win over metadata, and what is odd in it has survived.
    assert_eq!(listed.tags(), upload_order.tags);
    assert_eq!(listed.properties["os"], "small \"linux\" $HOME");
    let filter = |name: &str, value: &str| ImageFilter {
        name: name.to_owned(),
        values: vec![value.to_owned()],
    };
    let filters = [filter("os", "small*"), filter("nodeyard_system_id", system)];
    let candidates = driver.candidates().await.unwrap();
    let found = image_filters::newest(&filters, &candidates).unwrap();
    assert_eq!(found.id, image.external_id);

    let mut order = order(system, 1);
    order.image = BootImage::Upload {
        image: ImageName::new("base").unwrap(),
        external_id: image.external_id.clone(),
    };
    while let Err((error, _)) = create(&driver, &order).await {
        assert_eq!(error.class(), ErrorClass::Retry, "{error}");
        order.first_attempt = false;
    }
    let doomed = target(&upload_order);
    let deletion = driver.delete_image(&doomed);
    let deletion = timeout(Duration::from_secs(1), deletion).await;
    deletion.expect_err("a container uses the image");
    assert_eq!(count(&driver, system).await, 1);
    delete(&driver, &order).await;
    delete_image(&driver, &upload_order).await;
    assert_eq!(count(&driver, system).await, 0);
    // What does not exist is deleted.
    delete_image(&driver, &upload_order).await;
}

fn packed(directory: &Path, program: &str, suffix: &str) -> PathBuf {
    let plain = directory.join("rootfs.tar");
    std::fs::copy(root_filesystem().unwrap(), &plain).unwrap();
    let status = Command::new(program)
        .arg("-1")
        .arg(&plain)
        .status()
        .unwrap();
    assert!(status.success());
    directory.join(format!("rootfs.tar.{suffix}"))
}

async fn packed_archives_are_unpacked_by_the_runtime(runtime: &ContainerRuntime) {
    let system = "packed";
    let driver = driver(runtime, options(system, |_| {}));
    let directory = tempfile::tempdir().unwrap();
    for (number, (program, suffix, format)) in
        (1..).zip([("gzip", "gz", "tgz"), ("xz", "xz", "tar.xz")])
    {
        let file = packed(directory.path(), program, suffix);
        let upload_order = upload_order(system, number, &file, format);
        let image = upload(&driver, &upload_order).await;
        let id = image.external_id.as_text().unwrap();
        let said = runtime.run(&[
            "run",
            "--rm",
            "--ulimit",
            "nofile=999:999",
            "--ulimit",
            "nproc=999:999",
            &id,
            "/bin/echo",
            "unpacked",
        ]);
        assert_eq!(said.unwrap(), "unpacked");
        delete_image(&driver, &upload_order).await;
    }
}

async fn a_file_that_is_not_what_was_promised_becomes_no_image(runtime: &ContainerRuntime) {
    let system = "promise";
    let driver = driver(runtime, options(system, |_| {}));
    let file = root_filesystem().unwrap();
    let mut wrong = upload_order(system, 1, &file, "tar");
    wrong.sha256 = Some("00".repeat(32).into());
    let error = try_upload(&driver, &wrong).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Permanent);
    assert!(error.to_string().contains("sha256"), "{error}");
    let missing = upload_order(system, 2, Path::new("/no/such/file.tar"), "tar");
    let error = try_upload(&driver, &missing).await.unwrap_err();
    assert!(error.to_string().contains("failed to read"), "{error}");
    let disk = upload_order(system, 3, &file, "qcow2");
    let error = try_upload(&driver, &disk).await.unwrap_err();
    assert!(error.to_string().contains("root file system"), "{error}");
    assert_eq!(count(&driver, system).await, 0);
}

/// As after a crash between the response of the runtime and the write of the record.
async fn an_import_whose_response_was_lost_is_found_again(runtime: &ContainerRuntime) {
    let system = "lost-upload";
    let driver = driver(runtime, options(system, |_| {}));
    let file = root_filesystem().unwrap();
    let upload_order = upload_order(system, 1, &file, "tar");
    // Twice, as if two processes had been at it.
    let both = [
        upload(&driver, &upload_order).await,
        upload(&driver, &upload_order).await,
    ];
    assert_eq!(count(&driver, system).await, 2);
    let again = UploadOrder {
        first_attempt: false,
        ..upload_order
    };
    let found = try_upload(&driver, &again).await.unwrap();
    // The newest, but the runtime tells seconds only.
    assert!(both.contains(&found), "{found:?}");
    assert_eq!(count(&driver, system).await, 1);
    let leak = Target::Resource {
        kind: ResourceKind::IMAGES,
        id: found.external_id,
    };
    driver.delete(&leak).await.unwrap();
    assert_eq!(count(&driver, system).await, 0);
}

/// Several machines want an image that is not there: it is fetched once, and all of them come up.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_not_there_is_pulled() {
    let Some(runtime) = runtime(Kind::Docker) else {
        return;
    };
    let system = "pulled";
    let registry = Registry::start().unwrap();
    let reference = format!("{}/base:7", registry.address());
    runtime.run(&["tag", IMAGE, &reference]).unwrap();
    runtime.run(&["push", &reference]).unwrap();
    runtime.run(&["rmi", &reference]).unwrap();
    let options = options(system, |label| {
        label.image = ContainerImage::Reference(reference.as_str().into());
        label.access = ContainerAccess::Exec;
    });
    let driver = driver(runtime, options);
    let (first, second) = (order(system, 1), order(system, 2));
    let (one, two) = tokio::join!(create(&driver, &first), create(&driver, &second));
    assert_ne!(one.unwrap().external_id, two.unwrap().external_id);
    delete(&driver, &first).await;
    delete(&driver, &second).await;
    runtime.run(&["rmi", &reference]).unwrap();
    // A tag that the registry does not have.
    let missing = crate::common::options(system, |label| {
        label.image = ContainerImage::Reference(format!("{}/base:8", registry.address()).into());
    });
    let (error, _) = create(&crate::common::driver(runtime, missing), &first)
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Permanent, "{error}");
}
