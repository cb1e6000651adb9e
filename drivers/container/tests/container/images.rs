//! Root file systems that become images.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nodeyard_driver::{
    BootImage, Driver, ErrorClass, ImageFilter, ImageTarget, ResourceKind, State, Step, Target,
    UploadOrder, UploadedImage,
};
use nodeyard_driver_container::{ContainerAccess, ContainerDriver, ContainerImage};
use nodeyard_model::{BuildId, BuildKey, ImageName, UploadKey};
use nodeyard_testbeds::ContainerRuntime;
use nodeyard_testbeds::containers::{Kind, Registry, root_filesystem};

use crate::common::{
    IMAGE, PATIENCE, create, delete, driver, now, on_both_runtimes, options, order, owner, runtime,
};

on_both_runtimes!(
    an_archive_becomes_an_image_that_boots_and_stays_while_it_is_used,
    packed_archives_are_unpacked_by_the_runtime,
    a_file_that_is_not_what_was_promised_becomes_no_image,
    an_import_whose_answer_was_lost_is_found_again,
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
        progress: Default::default(),
    }
}

async fn upload(driver: &ContainerDriver, order: &UploadOrder) -> UploadedImage {
    match driver
        .upload(order, &mut State::fresh(), now())
        .await
        .unwrap()
    {
        Step::Done(image) => image,
        Step::Wait(wait) => panic!("{wait:?}"),
    }
}

fn target(order: &UploadOrder) -> ImageTarget {
    ImageTarget {
        upload: order.upload.clone(),
        external_id: None,
    }
}

async fn delete_image(driver: &ContainerDriver, order: &UploadOrder) {
    let mut state = State::default();
    let gone = async {
        while let Step::Wait(wait) = driver
            .delete_image(&target(order), &mut state, now())
            .await
            .unwrap()
        {
            tokio::time::sleep(wait.at_most.max(Duration::from_millis(10))).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap();
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
    let found = driver.find_image(&filters).await.unwrap().unwrap();
    assert_eq!(found.id, image.external_id);

    let mut order = order(system, 1);
    order.image = BootImage::Upload {
        image: ImageName::new("base").unwrap(),
        external_id: image.external_id.clone(),
    };
    create(&driver, &order).await.unwrap();
    let mut state = State::default();
    let doomed = target(&upload_order);
    for _ in 0..3 {
        let step = driver.delete_image(&doomed, &mut state, now());
        assert!(
            matches!(step.await.unwrap(), Step::Wait(_)),
            "a container is made from it"
        );
    }
    assert_eq!(count(&driver, system).await, 1);
    delete(&driver, &order).await;
    delete_image(&driver, &upload_order).await;
    assert_eq!(count(&driver, system).await, 0);
    // What is gone is deleted.
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
    let error = driver
        .upload(&wrong, &mut State::fresh(), now())
        .await
        .unwrap_err();
    assert_eq!(error.class(), ErrorClass::Permanent);
    assert!(error.to_string().contains("sha256"), "{error}");
    let missing = upload_order(system, 2, Path::new("/no/such/file.tar"), "tar");
    let error = driver
        .upload(&missing, &mut State::fresh(), now())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("cannot be read"), "{error}");
    let disk = upload_order(system, 3, &file, "qcow2");
    let error = driver
        .upload(&disk, &mut State::fresh(), now())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("root file system"), "{error}");
    assert_eq!(count(&driver, system).await, 0);
}

/// As after a crash between the answer of the runtime and the record of it.
async fn an_import_whose_answer_was_lost_is_found_again(runtime: &ContainerRuntime) {
    let system = "lost-upload";
    let driver = driver(runtime, options(system, |_| {}));
    let file = root_filesystem().unwrap();
    let upload_order = upload_order(system, 1, &file, "tar");
    // Twice, as if two processes had been at it.
    upload(&driver, &upload_order).await;
    let second = upload(&driver, &upload_order).await;
    assert_eq!(count(&driver, system).await, 2);
    let step = driver
        .upload(&upload_order, &mut State::default(), now())
        .await;
    assert_eq!(step.unwrap(), Step::Done(second.clone()));
    assert_eq!(count(&driver, system).await, 1);
    let leak = Target::Resource {
        kind: ResourceKind::IMAGES,
        id: second.external_id,
    };
    let mut state = State::default();
    while driver.delete(&leak, &mut state, now()).await.unwrap() != Step::Done(()) {}
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
