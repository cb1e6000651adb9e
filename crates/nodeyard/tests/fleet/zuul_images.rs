//! A complete Zuul runs a job that makes an image, and nodes boot from it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use nodeyard_testbeds::web_server::{Asked, Reply};
use nodeyard_testbeds::zuul::{ImageJob, Job};
use nodeyard_testbeds::{Sshd, WebServer, ZooKeeperServer, Zuul, ZuulOptions};
use serde_json::Value;

use crate::bed::wait_until;
use crate::yard::Yard;

/// Uploads the image to a simulated cloud. `image` says where Zuul is.
fn configure(yard: &Yard, sshd: &Sshd, image: &str) {
    let dir = yard.path("").display().to_string();
    yard.configure(&format!(
        "\
images-dir: {dir}images
build-log-dir: {dir}logs
images-dir-reserve: 10M
image-size-estimate: 16M
labels: [{{name: machine}}, {{name: tiny, min-ready: 1}}]
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
",
        port = sshd.port(),
        user = sshd.username(),
    ));
}

/// The build of ours that is this build of Zuul, once it is uploaded.
fn uploaded(yard: &Yard, uuid: &str) -> Option<Value> {
    let origins = yard.lists(&["nodeyard", "image", "provenance", "tiny"]);
    let mut origins = origins.as_array()?.iter();
    let origin = origins.find(|origin| origin["zuul"]["build"]["uuid"] == uuid)?;
    let uploads = yard.lists(&["nodeyard", "image", "uploads"]);
    let mut uploads = uploads.as_array()?.iter();
    uploads
        .any(|upload| upload["id"] == origin["build"] && upload["state"] == "ready")
        .then(|| origin.clone())
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
    let zookeeper = ZooKeeperServer::start().unwrap();
    let sshd = Sshd::start().unwrap();
    let mut yard = Yard::new(&zookeeper, &["nodeyard", "image", "why"]);
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
    configure(&yard, &sshd, &direct);
    yard.up();

    let make = || {
        let push = zuul.push("image").unwrap();
        let build = zuul.wait_for_build(&push).unwrap();
        assert_eq!(build.result, "SUCCESS");
        build.uuid
    };
    let first = make();
    let mut origin = Value::Null;
    wait_until("a node boots from the image", || {
        origin = uploaded(&yard, &first).unwrap_or_default();
        origin["nodes"][0]["state"] == "ready"
    });
    assert_eq!(origin["zuul"]["build"]["project"], "image");
    assert_eq!(origin["zuul"]["artifacts"]["raw"]["packing"], "zstd");
    let file = format!("images/tiny-{}.raw", origin["build"].as_str().unwrap());
    let disk = fs::read(yard.path(&file)).unwrap();
    assert_eq!(disk.len(), 8 << 20);
    assert!(disk[1 << 20..].starts_with(first.as_bytes()));

    // From another root, which shows one tenant only.
    let label = white_label(&zuul);
    configure(&yard, &sshd, &format!("    api-url: {}\n", label.url("")));
    let second = make();
    wait_until("the second build is uploaded", || {
        uploaded(&yard, &second).is_some()
    });
    assert!(
        label
            .asked()
            .iter()
            .any(|asked| asked.target.starts_with("/api/builds?"))
    );
    let third = make();
    wait_until("the third build is uploaded, and the first is gone", || {
        let origins = yard.lists(&["nodeyard", "image", "provenance", "tiny"]);
        let builds: Vec<&Value> = origins
            .as_array()
            .map(|origins| {
                origins
                    .iter()
                    .map(|origin| &origin["zuul"]["build"]["uuid"])
                    .collect()
            })
            .unwrap_or_default();
        uploaded(&yard, &third).is_some()
            && builds.len() == 2
            && !builds.iter().any(|uuid| **uuid == *first)
    });
    assert!(!yard.path(&file).exists());
}
