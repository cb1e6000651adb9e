//! Two builders that can each make only an image of their own, on one ZooKeeper, with a job server of somebody else
//! between them and whoever looks after the images.

use std::fs;
use std::path::PathBuf;

use nodeyard_testbeds::ZooKeeperServer;
use nodeyard_testbeds::gearman::{ExternalJobServer, Kind, python, tool};
use serde_json::{Value, json};

use crate::bed::{Bed, Daemon, Ran, wait_until};

struct Yard {
    bed: Bed,
    jobs: ExternalJobServer,
    _cloud: Daemon,
    _zookeeper: ZooKeeperServer,
}

impl Yard {
    /// `stewards` are the builders that know of ZooKeeper; their files name both images.
    fn new(kind: Kind, stewards: &[&str]) -> Self {
        let mut bed = Bed::new();
        // Shortens what is only waited for when something went wrong.
        bed.set("NODEPOOL_TEST_BUILD_INTERVAL", "0.2");
        bed.set("NODEPOOL_TEST_BUILDER_CLEANUP_INTERVAL", "1");
        let (cloud, _) = bed.simulate();
        let program = bed.image_program();
        let zookeeper = ZooKeeperServer::start().unwrap();
        let jobs = ExternalJobServer::start(kind, None).unwrap();
        for (own, other) in [("apple", "banana"), ("banana", "apple")] {
            let image = |name: &str, program: &str| json!({"name": name, "builder": "command", "command": program});
            let mut images = vec![image(own, program.to_str().unwrap())];
            let mut used = vec![json!({"name": own})];
            let mut config = json!({
                "gearman-servers": [{"host": "127.0.0.1", "port": jobs.port()}],
                "builder-images": own,
                "builder-webapp": {"port": bed.free_port()},
                "images-dir": format!("{own}-images"), "build-log-dir": "logs",
                "images-dir-reserve": 0, "image-size-estimate": "1M",
            });
            if stewards.contains(&own) {
                images.push(image(other, "/not/on/this/host"));
                used.push(json!({"name": other}));
                let certificates = zookeeper.certificates();
                config["zookeeper-servers"] =
                    json!([{"host": "127.0.0.1", "port": zookeeper.tls_port()}]);
                config["zookeeper-tls"] = json!({
                    "ca": certificates.ca, "cert": certificates.client.cert, "key": certificates.client.key,
                });
            }
            config["diskimages"] = images.into();
            config["providers"] =
                json!([{"name": "cloud", "driver": "fake", "diskimages": used, "pools": []}]);
            bed.write(own, config.to_string());
        }
        Self {
            bed,
            jobs,
            _cloud: cloud,
            _zookeeper: zookeeper,
        }
    }

    /// A `nodepool` command on the host of a steward.
    fn nodepool(&self, args: &[&str]) -> Ran {
        let mut command = self.bed.called("nodepool");
        command.args(["-c", "apple", "--format", "json"]);
        Ran::from(command.args(args).output().unwrap()).succeeded()
    }

    fn list(&self, list: &str, image: &str, state: &str) -> Vec<Value> {
        let rows: Vec<Value> = serde_json::from_str(&self.nodepool(&[list]).out).unwrap();
        let wanted = |row: &Value| row["image"] == image && row["state"] == state;
        rows.into_iter().filter(wanted).collect()
    }

    /// The ids of an image's builds that are ready.
    fn builds(&self, image: &str) -> Vec<String> {
        let rows = self.list("dib-image-list", image, "ready");
        let id = |row: &Value| {
            row["id"]
                .as_str()
                .unwrap()
                .rsplit_once('-')
                .unwrap()
                .1
                .to_owned()
        };
        rows.iter().map(id).collect()
    }

    /// Uploads of a build that are ready, by their numbers.
    fn uploads(&self, image: &str, build: &str) -> Vec<String> {
        let rows = self.list("image-list", image, "ready");
        let mine = rows.iter().filter(|row| row["id"] == build);
        mine.map(|row| row["upload_id"].as_str().unwrap().to_owned())
            .collect()
    }

    fn file(&self, builder: &str, image: &str, id: &str) -> PathBuf {
        self.bed
            .path(&format!("{builder}-images/{image}-{id}.qcow2"))
    }

    /// How many connections offer a function, as the job server's own `status` says.
    fn workers(&self, function: &str) -> u32 {
        let port = self.jobs.port().to_string();
        let arguments = ["-h", "127.0.0.1", "-p", &port, "--status"];
        let output = tool("gearadmin", &arguments).unwrap();
        assert!(output.status.success(), "{output:?}");
        let status = String::from_utf8(output.stdout).unwrap();
        let mut lines = status.lines().map(|line| line.split('\t'));
        let line = lines.find_map(|mut line| (line.next() == Some(function)).then_some(line));
        line.map_or(0, |mut line| line.next_back().unwrap().parse().unwrap())
    }

    /// A job from the command line; what came of it, if it was done.
    fn gearman(&self, function: &str, payload: &str) -> Option<Value> {
        let port = self.jobs.port().to_string();
        let arguments = ["-h", "127.0.0.1", "-p", &port, "-f", function, payload];
        let output = tool("gearman", &arguments).unwrap();
        // What it prints of progress comes behind.
        let mut values = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
        let result = values.next().and_then(Result::ok).unwrap_or_default();
        output.status.success().then_some(result)
    }

    /// The same with Python's gear.
    fn gear(&self, function: &str, payload: &str) -> Option<Value> {
        let port = self.jobs.port().to_string();
        let output = python("gear_client.py", &[&port, function, payload]).unwrap();
        let heard: Value = serde_json::from_slice(&output.stdout).unwrap();
        let done = heard["complete"] == true && heard["failure"] == false;
        let data = heard["data"][0].as_str().unwrap_or_default();
        done.then(|| serde_json::from_str(data).unwrap_or_default())
    }
}

fn each_does_what_only_it_can(kind: Kind, stewards: &[&str]) {
    let yard = Yard::new(kind, stewards);
    let _apple = yard.bed.builder("apple");
    let mut banana = yard.bed.builder("banana");

    let mut first = Vec::new();
    for image in ["apple", "banana"] {
        wait_until("each has made its image", || !yard.builds(image).is_empty());
        let id = yard.builds(image).remove(0);
        assert!(yard.file(image, image, &id).exists());
        wait_until("it is uploaded", || !yard.uploads(image, &id).is_empty());
        for function in ["image-upload", "image-delete", "image-info"] {
            // Each kind has connections of its own, and geard takes its time to accept them.
            wait_until(&format!("{function} of {image} is offered"), || {
                yard.workers(&format!("{function}:{id}")) > 0
            });
        }
        first.push(id);
    }
    let kept = &first[1];

    // Killed without warning, it comes back and answers for what it holds.
    banana.kill();
    let upload = format!("image-upload:{kept}");
    wait_until("its absence is noticed", || yard.workers(&upload) == 0);
    let _banana = yard.bed.builder("banana");
    wait_until("it offers its old image", || yard.workers(&upload) > 0);
    let number = yard.uploads("banana", kept).remove(0);
    let build = ["--image", "banana", "--build-id", kept];
    let command = [
        "image-delete",
        "--provider",
        "cloud",
        "--upload-id",
        &number,
    ];
    yard.nodepool(&[&command[..], &build].concat());
    wait_until("the same file is uploaded again", || {
        let uploads = yard.uploads("banana", kept);
        !uploads.is_empty() && !uploads.contains(&number)
    });

    // Whoever is not ours is served in one line.
    for (id, call) in [
        (
            "by-tools",
            Yard::gearman as fn(&Yard, &str, &str) -> Option<Value>,
        ),
        ("by-gear", Yard::gear),
    ] {
        let order = json!({"image-id": id}).to_string();
        let built = call(&yard, "image-build:banana", &order).unwrap();
        assert_eq!(built["image-id"], id);
        assert!(yard.file("banana", "banana", id).exists());
        let order = r#"{"provider": "cloud", "image-name": "banana"}"#;
        let uploaded = call(&yard, &format!("image-upload:{id}"), order).unwrap();
        assert!(uploaded["external-id"].is_string(), "{uploaded}");
        // The tool sends nothing at all, and says nothing, where there is nothing to send.
        call(&yard, &format!("image-delete:{id}"), "{}").unwrap();
        assert!(!yard.file("banana", "banana", id).exists());
        for function in ["image-upload", "image-delete", "image-info"] {
            let function = format!("{function}:{id}");
            wait_until(&format!("{function} is offered no more"), || {
                yard.workers(&function) == 0
            });
        }
    }

    // What the records give up goes from the host that has it, and from the job server.
    yard.nodepool(&["dib-image-delete", &format!("banana-{kept}")]);
    wait_until("its file is gone", || {
        !yard.file("banana", "banana", kept).exists()
    });
    for function in ["image-upload", "image-delete", "image-info"] {
        let function = format!("{function}:{kept}");
        wait_until(&format!("{function} is offered no more"), || {
            yard.workers(&function) == 0
        });
    }
    wait_until("another takes its place", || {
        yard.builds("banana").iter().any(|id| id != kept)
    });
    let stranger = |directory: &str, image: &str| {
        let files = fs::read_dir(yard.bed.path(directory)).unwrap();
        let mut names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        names.any(|name| name.starts_with(image))
    };
    assert!(!stranger("apple-images", "banana") && !stranger("banana-images", "apple"));
}

#[test]
fn with_gearmand_and_a_worker_without_a_store() {
    each_does_what_only_it_can(Kind::Gearmand, &["apple"]);
}

#[test]
fn with_geard_and_two_stewards() {
    each_does_what_only_it_can(Kind::Geard, &["apple", "banana"]);
}
