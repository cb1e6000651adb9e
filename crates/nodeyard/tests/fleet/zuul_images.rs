//! A complete Zuul runs a job that makes an image, and nodes boot from it: in a simulated cloud, and in a real
//! OpenStack where there can be one.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use nodeyard_testbeds::openstack::Project;
use nodeyard_testbeds::web_server::{Asked, Reply};
use nodeyard_testbeds::zuul::{ImageJob, Job};
use nodeyard_testbeds::{Sshd, WebServer, ZooKeeperServer, Zuul, ZuulClient, ZuulOptions};
use serde_json::Value;

use crate::bed::{client, take, wait_until};
use crate::openstack;
use crate::yard::Yard;

const GLANCE: &str = "  - name: openstack
    driver: openstack
    cloud: nodepool
    rate: 0.001
    diskimages: [{name: tiny}]
    pools:
      - name: main
        networks: [net]
        auto-floating-ip: false
        host-key-checking: false
        labels: [{name: server, diskimage: tiny, flavor-name: tiny}]
";

/// A project of OpenStack, where raw images are wanted. The simulated cloud takes the other format.
struct Glance(Project);

impl Glance {
    fn new(purpose: &str) -> Option<Self> {
        let project = openstack::cloud()?.project(purpose).unwrap();
        let clouds = fs::read_to_string(project.clouds_yaml()).unwrap();
        let clouds = format!("{clouds}    image_format: raw\n");
        fs::write(project.clouds_yaml(), clouds).unwrap();
        Some(Self(project))
    }

    /// Which builds of ours it has images of.
    fn builds(&self) -> BTreeSet<String> {
        let images = self.0.images().unwrap();
        let builds = images.iter().map(|image| &image["nodepool_build_id"]);
        builds
            .map(|build| build.as_str().unwrap().to_owned())
            .collect()
    }

    fn image_of(&self, origin: &Value) -> Value {
        let mut images = self.0.images().unwrap().into_iter();
        let image = images.find(|image| image["nodepool_build_id"] == origin["build"]);
        image.unwrap_or_else(|| panic!("there is no image of {origin}"))
    }

    /// Whether a server boots from an image.
    fn boots(&self, image: &Value) -> bool {
        let servers = self.0.servers().unwrap();
        let mut servers = servers.iter();
        servers.any(|server| server["image"]["id"] == image["id"] && server["status"] == "ACTIVE")
    }
}

/// Uploads the image to a simulated cloud, and to a real one. `image` says where Zuul is.
fn configure(yard: &Yard, sshd: &Sshd, image: &str, glance: Option<&Glance>) {
    let dir = yard.path("").display().to_string();
    let (label, provider) = match glance {
        Some(_) => (", {name: server, min-ready: 1}", GLANCE),
        None => ("", ""),
    };
    yard.configure(&format!(
        "\
images-dir: {dir}images
build-log-dir: {dir}logs
images-dir-reserve: 10M
image-size-estimate: 16M
labels: [{{name: machine}}, {{name: tiny, min-ready: 1}}{label}]
zuul-images:
  - name: tiny
    project: image
    pipelines: [post]
    branch: master
    job: image
    poll-interval: 5
    allow-insecure: true
    allow-private-addresses: true
    checksum: required
    auth: {{type: bearer, token-file: {dir}token}}
    artifacts: [{{format: raw, type: disk}}, {{format: qcow2, type: disk-qcow2}}]
{image}providers:
  - name: here
    driver: static
    pools:
      - name: main
        nodes:
          - {{name: 127.0.0.1, labels: [machine], connection-port: {port}, username: {user}}}
  - name: cloud
    driver: fake
    cloud: fake
    diskimages: [{{name: tiny}}]
    pools:
      - name: main
        host-key-checking: false
        labels: [{{name: tiny, diskimage: tiny, min-ram: 1}}]
{provider}",
        port = sshd.port(),
        user = sshd.username(),
    ));
}

/// The build of ours that is this build of Zuul, once it is uploaded to so many clouds.
fn uploaded(yard: &Yard, uuid: &str, clouds: usize) -> Option<Value> {
    let origins = yard.lists(&["nodeyard", "image", "provenance", "tiny"]);
    let mut origins = origins.as_array()?.iter();
    let origin = origins.find(|origin| origin["zuul"]["build"]["uuid"] == uuid)?;
    let uploads = yard.lists(&["nodeyard", "upload", "ls"]);
    let build = format!("tiny-{}", origin["build"].as_str()?);
    let uploads = uploads.as_array()?.iter();
    let ready =
        uploads.filter(|upload| upload["build"] == build.as_str() && upload["state"] == "ready");
    (ready.count() == clouds).then(|| origin.clone())
}

/// Whether a node of each cloud boots from it.
fn boots_everywhere(origin: &Value, clouds: usize) -> bool {
    let nodes = origin["nodes"].as_array().into_iter().flatten();
    let ready = nodes.filter(|node| node["state"] == "ready");
    ready.count() == clouds
}

/// Whether Zuul gets a machine in the simulated cloud that boots from it.
fn serves_a_request(yard: &Yard, client: &ZuulClient, uuid: &str, clouds: usize) -> bool {
    let request = client.submit(&["tiny"]).unwrap();
    let nodes = take(client, &request);
    let origin = uploaded(yard, uuid, clouds).unwrap_or_default();
    let boots: BTreeSet<&str> = origin["nodes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|node| node["id"].as_str())
        .collect();
    let serves = nodes.len() == 1
        && nodes
            .iter()
            .all(|node| node["id"].as_str().is_some_and(|id| boots.contains(id)));
    client.give_back(&request).unwrap();
    serves
}

/// Deletes all machines of a cloud, so that others take their place.
fn replace_machines(yard: &Yard, provider: &str) {
    for node in yard.lists(&["nodepool", "list"]).as_array().unwrap() {
        if node["provider"] == provider {
            yard.says(&["nodepool", "delete", node["id"].as_str().unwrap()]);
        }
    }
}

/// Serves what jobs have stored.
fn store(root: &Path) -> WebServer {
    let root = root.to_owned();
    WebServer::start(move |asked| {
        let path = asked.target.trim_start_matches('/');
        let file = root.join(path);
        if path.contains("..") || !file.is_file() {
            return Reply::new(404, "");
        }
        Reply::of_file(asked, &file, &format!("\"{path}\""))
    })
    .unwrap()
}

/// A web root that shows one tenant only, as a proxy in front of zuul-web makes it.
fn white_label(zuul: &Zuul) -> WebServer {
    let (port, tenant) = (zuul.web_port(), zuul.tenant());
    WebServer::start(move |asked| {
        let Some(rest) = asked.target.strip_prefix("/api/") else {
            return Reply::new(404, "");
        };
        pass_on(asked, port, &format!("/api/tenant/{tenant}/{rest}"))
    })
    .unwrap()
}

fn pass_on(asked: &Asked, port: u16, target: &str) -> Reply {
    let token = asked.header("authorization").unwrap_or_default();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(
        stream,
        "GET {target} HTTP/1.0\r\nHost: 127.0.0.1\r\nAuthorization: {token}\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Reply::new(status, body).with("Content-Type", "application/json")
}

#[test]
fn an_image_by_a_job_becomes_nodes_and_makes_room_for_the_next() {
    // It goes last, when nobody makes anything in it any more.
    let glance = Glance::new("zuul-images");
    let clouds = 1 + usize::from(glance.is_some());
    let zookeeper = ZooKeeperServer::start().unwrap();
    let sshd = Sshd::start().unwrap();
    let mut yard = Yard::new(&zookeeper, &["nodeyard", "image", "why"]);
    if let Some(Glance(project)) = &glance {
        yard.set("OS_CLIENT_CONFIG_FILE", project.clouds_yaml());
    }
    let stored = yard.path("stored");
    fs::create_dir(&stored).unwrap();
    let server = store(&stored);
    let job = Job {
        name: "image".to_owned(),
        labels: vec!["machine".to_owned()],
        meant_to_fail: false,
        image: Some(ImageJob {
            store: stored,
            url: server.url(""),
        }),
    };
    let options = ZuulOptions {
        jobs: vec![job],
        ssh_key: sshd.client_key(),
        protected: true,
        ..ZuulOptions::default()
    };
    let zuul = Zuul::start(&zookeeper, &options).unwrap();
    let token = zuul.token().unwrap().trim_start_matches("Bearer ");
    fs::write(yard.path("token"), token).unwrap();
    let direct = format!(
        "    api-url: http://127.0.0.1:{}\n    tenant: bed\n",
        zuul.web_port()
    );
    configure(&yard, &sshd, &direct, glance.as_ref());
    yard.up();

    let make = || {
        let push = zuul.push("image").unwrap();
        let build = zuul.wait_for_build(&push).unwrap();
        assert_eq!(build.result, "SUCCESS");
        build.uuid
    };
    let first = make();
    let mut origin = Value::Null;
    wait_until("nodes boot from the image", || {
        origin = uploaded(&yard, &first, clouds).unwrap_or_default();
        boots_everywhere(&origin, clouds)
    });
    assert_eq!(origin["zuul"]["build"]["project"], "image");
    assert_eq!(origin["zuul"]["artifacts"]["raw"]["packing"], "zstd");
    let file = format!("images/tiny-{}.raw", origin["build"].as_str().unwrap());
    let disk = fs::read(yard.path(&file)).unwrap();
    assert_eq!(disk.len(), 8 << 20);
    assert!(disk[1 << 20..].starts_with(first.as_bytes()));
    if let Some(glance) = &glance {
        let image = glance.image_of(&origin);
        assert_eq!(image["size"], disk.len());
        assert_eq!(
            image["owner_specified.openstack.sha256"],
            origin["zuul"]["artifacts"]["raw"]["plain"]["digests"]["sha256"]
        );
        assert!(glance.boots(&image), "{image}");
    }

    let client = client(&zookeeper);
    assert!(
        serves_a_request(&yard, &client, &first, clouds),
        "Zuul gets a machine that boots from the image"
    );

    // From another root, which shows one tenant only.
    let label = white_label(&zuul);
    let labelled = format!("    api-url: {}\n", label.url(""));
    configure(&yard, &sshd, &labelled, glance.as_ref());
    let second = make();
    wait_until("the second build is uploaded", || {
        uploaded(&yard, &second, clouds).is_some()
    });
    assert!(
        label
            .asked()
            .iter()
            .any(|asked| asked.target.starts_with("/api/builds?"))
    );
    let third = make();
    let mut newest = Value::Null;
    let mut kept = BTreeSet::new();
    wait_until("the third build is uploaded, and the first is gone", || {
        let origins = yard.lists(&["nodeyard", "image", "provenance", "tiny"]);
        let mut origins = origins.as_array().cloned().unwrap_or_default();
        // Nodes of the first may still be there, and what is known of it with them.
        origins.retain(|origin| origin["state"] != "gone");
        kept = origins
            .iter()
            .map(|origin| origin["build"].as_str().unwrap().to_owned())
            .collect();
        let is_first = |origin: &Value| origin["zuul"]["build"]["uuid"] == first;
        newest = uploaded(&yard, &third, clouds).unwrap_or_default();
        !newest.is_null() && origins.len() == 2 && !origins.iter().any(is_first)
    });
    assert!(!yard.path(&file).exists());

    // A machine that nobody has used yet is of an older image. The next one is not.
    replace_machines(&yard, "cloud");
    wait_until("a machine boots from the newest image", || {
        let newest = uploaded(&yard, &third, clouds).unwrap_or_default();
        let nodes = newest["nodes"].as_array().cloned().unwrap_or_default();
        nodes
            .iter()
            .any(|node| node["provider"] == "cloud" && node["state"] == "ready")
    });
    assert!(
        serves_a_request(&yard, &client, &third, clouds),
        "Zuul gets a machine that boots from the newest image"
    );

    let Some(glance) = &glance else { return };
    assert_eq!(glance.builds(), kept);
    let image = glance.image_of(&newest);
    replace_machines(&yard, "openstack");
    wait_until("a server boots from the newest image", || {
        glance.boots(&image)
    });
}
