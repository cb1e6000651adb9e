//! The role that keeps images in a directory of this host. It needs no cluster.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use nodeyard_testbeds::{ansible, checkout};
use serde_json::json;

const PLAYBOOK: &str = "
- hosts: localhost
  connection: local
  gather_facts: false
  roles: [nodeyard-image-store]
  tasks:
    - copy: {content: '{{ image_store_urls.values() | first }}', dest: '{{ told }}'}
";

/// Publishes one build, and returns the address that the role tells.
fn publish(directory: &Path, job: &str, build: &str) -> String {
    let (file, told) = (directory.join("disk.raw"), directory.join("told"));
    fs::write(&file, build).unwrap();
    fs::write(directory.join("playbook.yaml"), PLAYBOOK).unwrap();
    let variables = json!({
        "zuul": {"build": build, "job": job}, "told": told,
        "image_store_root": directory.join("store"), "image_store_url": "https://images.example",
        "image_store_files": [{"path": file}], "image_store_keep": 2,
        "ansible_python_interpreter": "{{ ansible_playbook_python }}",
    });
    fs::write(directory.join("variables.json"), variables.to_string()).unwrap();
    let output = Command::new(ansible().unwrap().join("ansible-playbook"))
        .args(["-i", "localhost,", "-e", "@variables.json", "playbook.yaml"])
        .current_dir(directory)
        .env("HOME", directory)
        .env("ANSIBLE_ROLES_PATH", checkout().join("roles"))
        .env("ANSIBLE_NOCOLOR", "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    fs::read_to_string(told).unwrap()
}

#[test]
fn two_images_in_one_store_do_not_evict_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let url = publish(directory.path(), "debian", "d1");
    assert_eq!(url, "https://images.example/debian/d1/disk.raw");
    for build in ["u1", "u2", "u3"] {
        publish(directory.path(), "ubuntu", build);
    }
    let store = directory.path().join("store");
    let kept = |image: &str| {
        let builds = fs::read_dir(store.join(image)).unwrap();
        let mut names: Vec<String> = builds
            .map(|build| build.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(kept("debian"), ["d1"]);
    assert_eq!(kept("ubuntu"), ["u2", "u3"]);
    let disk = fs::read_to_string(store.join("debian/d1/disk.raw")).unwrap();
    assert_eq!(disk, "d1");
}
