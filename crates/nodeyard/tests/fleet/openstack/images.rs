//! Images that our builder makes and uploads, and servers that boot from them.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::bed::{Configuration, Yard, gearmand};
use crate::bed::PATIENCE;

const MANAGED: Configuration = Configuration {
    provider: "    diskimages: [{name: disk, meta: {os_distro: debian}}]",
    pool: "        auto-floating-ip: false",
    image: "diskimage: disk",
};

/// The same provider for the builder, with the image that it makes.
pub(super) fn builder(program: &std::path::Path) -> String {
    format!(
        "diskimages: [{{name: disk, builder: command, command: {}, username: zuul}}]\n{}",
        program.display(),
        MANAGED.text()
    )
}

pub(super) fn launcher() -> String {
    format!(
        "diskimages: [{{name: disk, builder: command, command: /nowhere, username: zuul}}]\n{}",
        MANAGED.text()
    )
}

#[test]
fn a_managed_image_goes_through_gearman_and_becomes_a_server() {
    let Some(mut yard) = Yard::new("managed") else {
        return;
    };
    let jobs = gearmand();
    let program = yard.image_program(r#"qemu-img create -q -f "$format" "$file" 1M"#);
    yard.launch(&launcher());
    yard.build(&jobs, &builder(&program));

    let (waiting, node) = yard.take_one_when_there_is_an_image("small");
    let image = yard.only_active_image();
    assert_eq!(image["os_distro"], "debian");
    assert_eq!(image["disk_format"], "qcow2");
    let server = yard.server(&node);
    assert_eq!(server["image"]["id"], image["id"]);
    assert_eq!(server["status"], "ACTIVE");
    assert_eq!(node["username"], "zuul");
    let address = &server["addresses"]["net"][0]["addr"];
    assert_eq!(&node["interface_ip"], address);
    // Glance has what the builder has.
    let files = fs::read_dir(yard.path("images")).unwrap().flatten();
    let file = files
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|end| end == "qcow2"));
    let size = file.unwrap().metadata().unwrap().len();
    assert_eq!(image["size"], size);

    yard.give_back(&waiting, &node["id"]);
    yard.wait_until_empty();
}

#[test]
fn pythons_launcher_boots_what_our_builder_has_uploaded() {
    let Some(mut yard) = Yard::new("python") else {
        return;
    };
    let jobs = gearmand();
    let program = yard.image_program(r#"qemu-img create -q -f "$format" "$file" 1M"#);
    yard.launch_python(&format!(
        "diskimages: [{{name: disk, username: zuul}}]\n{}",
        MANAGED.text()
    ));
    yard.build(&jobs, &builder(&program));

    let (waiting, node) = yard.take_one_when_there_is_an_image("small");
    let image = yard.only_active_image();
    assert_eq!(yard.server(&node)["image"]["id"], image["id"]);
    assert_eq!(node["username"], "zuul");
    assert_eq!(node["cloud"], "nodepool");
    yard.give_back(&waiting, &node["id"]);
    yard.wait_until_empty();
}

#[test]
fn an_image_larger_than_the_limit_is_uploaded_in_little_memory() {
    const LIMIT_KB: u64 = 100_000;
    let Some(mut yard) = Yard::new("large") else {
        return;
    };
    let jobs = gearmand();
    // Sparse, with something at its end and in the middle.
    let program = yard.image_program(
        r#"truncate -s 512M "$file"
           printf middle | dd of="$file" bs=1M seek=256 conv=notrunc status=none
           printf end | dd of="$file" bs=1M seek=511 conv=notrunc status=none"#,
    );
    yard.add_to_cloud("image_format: raw");
    yard.build(&jobs, &builder(&program));
    let mut image = Value::Null;
    // Glance reads all of it twice, and the machine may be slow.
    let deadline = Instant::now() + 5 * PATIENCE;
    while image["status"] != "active" && Instant::now() < deadline {
        image = yard.project.images().unwrap().pop().unwrap_or_default();
        thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(image["status"], "active", "{image}");
    let most = yard.builder_memory("VmHWM");
    eprintln!("the builder needed {most} kB at most");
    assert_eq!(image["size"], 512_u64 << 20);
    assert!(most < LIMIT_KB, "the builder needed {most} kB");
}
