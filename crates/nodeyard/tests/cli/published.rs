//! Images that jobs publish by themselves, and the filters that find them. The cloud is a process of its own, and there
//! is no store at all.

use std::process::Command;

use nodeyard_testbeds::openstack::Service;
use nodeyard_testbeds::{OpenStack, next_second};
use serde_json::{Value, json};

use crate::bed::{Bed, Daemon, Ran, cloud_call};

const CONFIG: &str = "
labels: [{name: small}, {name: named}]
providers:
  - name: cloud
    driver: fake
    cloud-images:
      - name: newest
        image-filters:
          - {name: nodeyard_published_image, values: [jammy]}
          - {name: tag, values: [ci]}
      - {name: by-name, image-name: Fake Precise}
    pools:
      - name: main
        labels:
          - {name: small, cloud-image: newest, min-ram: 1}
          - {name: named, cloud-image: by-name, min-ram: 1}
";

struct Cloud {
    bed: Bed,
    address: String,
    _simulation: Daemon,
}

impl Cloud {
    fn start() -> Self {
        let mut bed = Bed::new();
        bed.write("nodepool.yaml", CONFIG);
        bed.write("disk.raw", "not really a disk");
        let (simulation, address) = bed.simulate();
        Self {
            bed,
            address,
            _simulation: simulation,
        }
    }

    fn call(&self, method: &str, arguments: &Value) -> Value {
        cloud_call(&self.address, method, arguments)
    }

    fn image(&self, args: &[&str]) -> Ran {
        let head = ["-c", "nodepool.yaml", "--format", "json", "image"];
        self.bed.run(head.iter().chain(args))
    }

    fn publish(&self, id: &str, more: &[&str]) -> Ran {
        let head = [
            "publish",
            "disk.raw",
            "--image",
            "jammy",
            "--provider",
            "cloud",
        ];
        let tail = ["--id", id, "--tag", "ci"];
        let args: Vec<&str> = head.iter().chain(&tail).chain(more).copied().collect();
        self.image(&args)
    }

    fn names(&self) -> Vec<String> {
        let images = self.call("list_images", &json!({}));
        let images = images.as_array().unwrap().iter();
        let mut names: Vec<String> = images
            .map(|image| image["name"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    }
}

fn outcomes(lines: &Value) -> Vec<(String, String)> {
    let text = |line: &Value, key: &str| line[key].as_str().unwrap().to_owned();
    let lines = lines.as_array().unwrap().iter();
    lines
        .map(|line| (text(line, "publication"), text(line, "outcome")))
        .collect()
}

fn pair(publication: &str, outcome: &str) -> (String, String) {
    (publication.to_owned(), outcome.to_owned())
}

#[test]
fn an_unreachable_cloud_does_not_hide_the_others() {
    let cloud = Cloud::start();
    cloud.publish("b1", &[]).succeeded();
    let away = "
providers:
  - name: away
    driver: openstack
    cloud: nowhere
    cloud-images: [{name: newest, image-filters: [{name: tag, values: [ci]}]}]
    pools: [{name: main, labels: [{name: small, cloud-image: newest, min-ram: 1}]}]
";
    cloud
        .bed
        .write("nodepool.yaml", CONFIG.replace("\nproviders:\n", away));
    let found = cloud.image(&["candidates"]).failed("away").json();
    let of = |provider: &str| {
        let mut entries = found.as_array().unwrap().iter();
        entries.find(|entry| entry["provider"] == provider).unwrap()
    };
    assert!(of("away")["error"].is_string(), "{found:#}");
    assert_eq!(of("away")["reason"], Value::Null);
    assert!(of("cloud")["chosen"].is_string(), "{found:#}");
    assert_eq!(of("cloud")["error"], Value::Null);
    let table = cloud
        .bed
        .run(["-c", "nodepool.yaml", "image", "candidates"]);
    let table = table.failed("away").out;
    assert!(table.contains("selected: the newest"), "{table}");
}

#[test]
fn a_job_publishes_and_the_filter_finds_the_newest() {
    let cloud = Cloud::start();
    cloud
        .image(&["candidates"])
        .failed("no matching image for cloud/newest");
    let dry = cloud.publish("b1", &["--dry-run"]).succeeded().json();
    assert_eq!(dry["outcome"], "dry-run");
    assert_eq!(cloud.names(), ["Fake Precise"]);

    let args = ["--property", "os=jammy", "--name", "jammy-1"];
    let first = cloud.publish("b1", &args).succeeded().json();
    assert_eq!(first["outcome"], "published");
    let again = cloud.publish("b1", &args).succeeded().json();
    assert_eq!(again["outcome"], "taken-over");
    assert_eq!(again["id"], first["id"]);
    let second = cloud.publish("b2", &["--name", "jammy-2"]).succeeded();
    let second = second.json()["id"].clone();
    assert_eq!(cloud.names(), ["Fake Precise", "jammy-1", "jammy-2"]);

    let found = cloud.image(&["candidates", "small"]).succeeded().json();
    assert_eq!(found[0]["chosen"], second);
    let verdicts: Vec<_> = found[0]["images"]
        .as_array()
        .unwrap()
        .iter()
        .map(|image| (&image["name"], &image["verdict"]))
        .collect();
    assert_eq!(
        verdicts,
        [
            (&json!("jammy-2"), &json!("chosen")),
            (&json!("jammy-1"), &json!("older")),
            (&json!("Fake Precise"), &json!("fails")),
        ]
    );
    let failed = &found[0]["images"][2]["failed"];
    assert_eq!(failed[0]["found"], "it has no nodeyard_published_image");
    assert_eq!(failed[1]["found"], "it has no tags");
    let by_name = cloud.image(&["candidates", "cloud/newest"]).succeeded();
    assert_eq!(by_name.json(), found);
    cloud
        .image(&["candidates", "named"])
        .failed("by-name of label named is selected by name");
    cloud
        .image(&["candidates", "nothing"])
        .failed("neither a label");
    let table = cloud
        .bed
        .run(["-c", "nodepool.yaml", "image", "candidates"]);
    let table = table.succeeded().out;
    assert!(table.contains("selected: the newest"), "{table}");
    assert!(
        table.contains("hidden: 1 image matching no condition"),
        "{table}"
    );
}

#[test]
fn only_unused_images_of_the_publisher_are_pruned() {
    let cloud = Cloud::start();
    let mut ids = Vec::new();
    for number in 1..=4 {
        let args = ["--name", &format!("jammy-{number}")];
        let published = cloud.publish(&format!("b{number}"), &args).succeeded();
        ids.push(published.json()["id"].clone());
    }
    let other = ["--publisher", "others", "--name", "of-others"];
    cloud.publish("b1", &other).succeeded();
    cloud.call(
        "create_image",
        &json!({"name": "by-hand", "filename": "x", "nodeyard_published_image": "jammy"}),
    );
    let flavor = cloud.call("list_flavors", &json!({}))[0].clone();
    let server = json!({"name": "s", "image": ids[0], "flavor": flavor["id"]});
    cloud.call("create_server", &server);

    let prune = ["prune", "jammy", "--keep", "2", "--provider", "cloud"];
    let dry = cloud.image(&[&prune[..], &["--dry-run"]].concat());
    assert_eq!(dry.code, 3, "{dry:?}");
    let expected = |fate| {
        [
            pair("b4", "stays"),
            pair("b3", "stays"),
            pair("b2", fate),
            pair("b1", "stays"),
        ]
    };
    assert_eq!(outcomes(&dry.json()), expected("goes"));
    assert_eq!(dry.json()[3]["reason"], "in use");
    assert_eq!(cloud.names().len(), 7);
    let done = cloud.image(&prune).succeeded().json();
    assert_eq!(outcomes(&done), expected("gone"));
    let left = [
        "Fake Precise",
        "by-hand",
        "jammy-1",
        "jammy-3",
        "jammy-4",
        "of-others",
    ];
    assert_eq!(cloud.names(), left);
    assert_eq!(
        cloud
            .image(&[&prune[..4], &["--keep=0", "--provider=cloud"]].concat())
            .code,
        2
    );
}

#[test]
fn images_of_aborted_jobs_are_found_and_deleted() {
    let cloud = Cloud::start();
    cloud.publish("b1", &["--name", "whole"]).succeeded();
    // Two that the answers were lost of, and one that is a stranger's.
    let marked = |publication: &str, name: &str| {
        json!({"name": name, "filename": "x", "nodeyard_system_id": "publisher:jobs",
               "nodeyard_published_image": "jammy", "nodeyard_publication": publication})
    };
    cloud.call("create_image", &marked("b2", "once"));
    cloud.call("create_image", &marked("b2", "twice"));
    let foreign = json!({"name": "foreign", "filename": "x"});
    cloud.call("create_image", &foreign);

    let leaks = ["leaks", "--provider", "cloud"];
    let found = cloud.image(&leaks);
    assert_eq!(found.code, 3, "{found:?}");
    let goes: Vec<_> = outcomes(&found.json())
        .into_iter()
        .filter(|(_, outcome)| outcome == "goes")
        .collect();
    assert_eq!(goes, [pair("b2", "goes")]);
    let gone = cloud
        .image(&[&leaks[..], &["--delete"]].concat())
        .succeeded();
    assert!(outcomes(&gone.json()).contains(&pair("b2", "gone")));
    assert_eq!(cloud.names(), ["Fake Precise", "foreign", "twice", "whole"]);
    let again = cloud.image(&leaks).succeeded();
    assert!(
        outcomes(&again.json())
            .iter()
            .all(|(_, outcome)| outcome == "stays")
    );
}

#[test]
fn invalid_files_are_refused_before_the_upload() {
    let cloud = Cloud::start();
    cloud.bed.write("empty.raw", "");
    cloud.bed.write("wrong.qcow2", "no header");
    cloud.bed.write("disguised.raw", b"QFI\xfb and more");
    cloud.bed.write("disk.img", "x");
    let publish =
        |file: &str| cloud.image(&["publish", file, "--image", "jammy", "--provider", "cloud"]);
    publish("none.raw").failed("failed to read none.raw");
    publish("empty.raw").failed("is empty or not a regular file");
    publish("wrong.qcow2").failed("wrong.qcow2");
    publish("disguised.raw").failed("is not raw but qcow2");
    publish("disk.img").failed("--file-format");
    for bad in [
        &["--property", "nodepool_build_id=1"][..],
        &["--property", "novalue"],
        &["--id", "a/b"],
    ] {
        assert_eq!(cloud.publish("b1", bad).code, 2, "{bad:?}");
    }
    let nowhere = cloud.image(&["publish", "disk.raw", "--image", "jammy"]);
    assert_eq!(nowhere.code, 2, "{nowhere:?}");
    cloud
        .image(&[
            "publish",
            "disk.raw",
            "--image",
            "jammy",
            "--provider",
            "other",
        ])
        .failed("no provider other");
    assert_eq!(cloud.names(), ["Fake Precise"]);
}

/// The same on a real OpenStack, with nothing but clouds.yaml.
#[test]
fn jobs_publish_prune_and_clean_up_in_openstack() {
    let Some(openstack) = OpenStack::start_if_possible().unwrap() else {
        return;
    };
    let project = openstack.project("published").unwrap();
    let mut bed = Bed::new();
    let clouds = project.clouds_yaml().display().to_string();
    bed.set("OS_CLIENT_CONFIG_FILE", clouds);
    bed.write("disk.raw", vec![7; 1 << 20]);
    let publisher = project.name().to_owned();
    let image = |args: &[&str]| {
        let place = ["--cloud", "nodepool", "--publisher", &publisher];
        let head = ["--format", "json", "image"];
        bed.run(head.iter().chain(args).chain(&place))
    };
    let publish = |number: u32| {
        let (id, name) = (format!("b{number}"), format!("jammy-{number}"));
        let args = [
            "publish", "disk.raw", "--image", "jammy", "--tag", "ci", "--id", &id, "--name", &name,
        ];
        let done = image(&[&args[..], &["--property", "os=jammy"]].concat()).succeeded();
        // Glance counts in seconds.
        next_second();
        done.json()["id"].as_str().unwrap().to_owned()
    };
    let ids: Vec<String> = (1..=3).map(publish).collect();
    assert_eq!(publish(3), ids[2], "it is there already");
    // One that was aborted, and three that are none of ours.
    let half = json!({"name": "half", "disk_format": "raw", "container_format": "bare",
                      "nodeyard_system_id": format!("publisher:{publisher}"),
                      "nodeyard_published_image": "jammy", "nodeyard_publication": "b4"});
    project
        .member()
        .post(Service::Image, "/v2/images", &half)
        .unwrap();
    project
        .create_image("by-hand", json!({"os": "jammy", "tags": ["ci"]}))
        .unwrap();
    let other = json!({"nodeyard_system_id": "publisher:somebody", "nodeyard_published_image": "jammy",
                       "nodeyard_publication": "b1"});
    project.create_image("of-others", other).unwrap();
    let managed = json!({"nodeyard_system_id": "an-installation", "nodepool_build_id": "b"});
    project.create_image("of-a-builder", managed).unwrap();

    bed.write(
        "nodepool.yaml",
        "labels: [{name: small}]
providers:
  - name: cloud
    driver: openstack
    cloud: nodepool
    cloud-images:
      - {name: newest, image-filters: [{name: nodeyard_published_image, values: [jammy]}, {name: tag, values: [ci]}]}
    pools: [{name: main, labels: [{name: small, cloud-image: newest, min-ram: 1}]}]
",
    );
    let found = bed.run([
        "-c",
        "nodepool.yaml",
        "--format",
        "json",
        "image",
        "candidates",
    ]);
    let found = found.succeeded().json();
    assert_eq!(found[0]["chosen"], ids[2].as_str(), "{found:#}");

    let flavors = project
        .member()
        .list(Service::Compute, "/flavors", "flavors")
        .unwrap();
    let server = json!({"server": {
        "name": "user", "imageRef": ids[0], "flavorRef": flavors[0]["id"],
        "networks": [{"uuid": project.network()}],
    }});
    project
        .member()
        .post(Service::Compute, "/servers", &server)
        .unwrap();
    let pruned = image(&["prune", "jammy", "--keep", "1"]).succeeded().json();
    let expected = [
        pair("b4", "stays"),
        pair("b3", "stays"),
        pair("b2", "gone"),
        pair("b1", "stays"),
    ];
    assert_eq!(outcomes(&pruned), expected, "{pruned:#}");

    let young = image(&["leaks"]).succeeded().json();
    assert_eq!(outcomes(&young)[0], pair("b4", "stays"));
    let leaks = ["leaks", "jammy", "--ended", "b4"];
    assert_eq!(image(&leaks).code, 3);
    let gone = image(&[&leaks[..], &["--delete"]].concat())
        .succeeded()
        .json();
    assert_eq!(outcomes(&gone)[0], pair("b4", "gone"));
    let images = project.images().unwrap();
    let mut names: Vec<_> = images
        .iter()
        .map(|image| image["name"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(
        names,
        ["by-hand", "jammy-1", "jammy-3", "of-a-builder", "of-others"]
    );
}

const PLAYBOOK: &str = r#"
- hosts: localhost
  gather_facts: false
  vars:
    zuul: {build: BUILD}
    cloud_image: jammy
    cloud_image_provider: cloud
    cloud_image_config: nodepool.yaml
    cloud_image_program: PROGRAM
    cloud_image_keep: 1
  tasks:
    - import_role: {name: nodeyard-cloud-image-publish}
      vars:
        cloud_image_file: disk.raw
        cloud_image_tags: [ci, nightly]
        cloud_image_properties: {os: jammy, version: 22.04}
    - import_role: {name: nodeyard-cloud-image-prune}
    - copy:
        dest: result.json
        content: "{{ {'id': cloud_image_id, 'removed': cloud_image_removed} | to_json }}"
"#;

#[test]
fn the_roles_publish_and_prune() {
    let cloud = Cloud::start();
    let ansible = nodeyard_testbeds::ansible()
        .unwrap()
        .join("ansible-playbook");
    let roles = nodeyard_testbeds::checkout().join("roles");
    let play = |build: &str| {
        let program = env!("CARGO_BIN_EXE_nodeyard");
        let playbook = PLAYBOOK.replace("BUILD", build).replace("PROGRAM", program);
        cloud.bed.write("play.yaml", playbook);
        let mut command = Command::new(&ansible);
        command
            .args(["-i", "localhost,", "-c", "local", "play.yaml"])
            // What else is called Python on this host does not matter.
            .args([
                "-e",
                "ansible_python_interpreter={{ ansible_playbook_python }}",
            ])
            .current_dir(cloud.bed.path(""))
            .env("ANSIBLE_ROLES_PATH", &roles)
            .env("ANSIBLE_LOCALHOST_WARNING", "false")
            .env("HOME", cloud.bed.path(""))
            .env("LC_ALL", "C.UTF-8")
            .env(
                "NODEPOOL_FAKE_CLOUD_URL",
                format!("http://{}", cloud.address),
            );
        let ran = Ran::from(command.output().unwrap()).succeeded();
        let result = std::fs::read(cloud.bed.path("result.json")).unwrap();
        (ran.out, serde_json::from_slice::<Value>(&result).unwrap())
    };
    let (_, first) = play("b1");
    assert_eq!(first["removed"], json!([]));
    let (_, second) = play("b2");
    assert_eq!(second["removed"][0]["id"], first["id"]);
    let found = cloud.image(&["candidates", "small"]).succeeded().json();
    assert_eq!(found[0]["chosen"], second["id"]);
    let images = cloud.call("list_images", &json!({}));
    let image = images.as_array().unwrap().iter();
    let mut image = image.filter(|image| image["id"] == second["id"]);
    let image = image.next().unwrap();
    assert_eq!(image["tags"], json!(["ci", "nightly"]));
    assert_eq!(image["os"], "jammy");
    let (out, third) = play("b2");
    assert_eq!(third["id"], second["id"]);
    assert!(
        out.contains("changed=1"),
        "only the result is written: {out}"
    );
}
