//! A complete Zuul runs a job that makes an image, and nodes boot from it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nodeyard_testbeds::web_server::{Asked, Reply};
use nodeyard_testbeds::zuul::{ImageJob, Job};
use nodeyard_testbeds::{Sshd, WebServer, ZooKeeperServer, Zuul, ZuulOptions, connection};
use serde_json::Value;
use tempfile::TempDir;

use crate::bed::{LONG_SESSION, wait_until};

/// `nodeyard up` on the ZooKeeper of a Zuul.
struct Yard {
    directory: TempDir,
    zookeeper: String,
    web_port: u16,
    process: Option<Child>,
}

impl Yard {
    fn new(zookeeper: &ZooKeeperServer) -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            zookeeper: connection(zookeeper, LONG_SESSION),
            web_port: free_port(),
            process: None,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// As editors do it: a new file takes the name of the old one.
    fn configure(&self, sshd: &Sshd, image: &str) {
        let dir = self.directory.path().display();
        let text = format!(
            "{zookeeper}\
images-dir: {dir}/images
build-log-dir: {dir}/logs
images-dir-reserve: 10M
image-size-estimate: 16M
webapp: {{port: {web}, listen_address: 127.0.0.1}}
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
    auth: {{type: bearer, token-file: {dir}/token}}
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
            zookeeper = self.zookeeper,
            web = self.web_port,
            port = sshd.port(),
            user = sshd.username(),
        );
        fs::write(self.path("next"), text).unwrap();
        fs::rename(self.path("next"), self.path("nodepool.yaml")).unwrap();
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodeyard"));
        command
            .current_dir(self.directory.path())
            .env("XDG_STATE_HOME", self.directory.path())
            .args(["-c", "nodepool.yaml"])
            .stdin(Stdio::null());
        command
    }

    fn up(&mut self) {
        let log = fs::File::create(self.path("up.log")).unwrap();
        let process = self
            .command()
            .arg("up")
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        self.process = Some(process.unwrap());
        let log = self.path("up.log");
        wait_until("it serves", || {
            let ended = self
                .process
                .as_mut()
                .is_some_and(|p| p.try_wait().unwrap().is_some());
            assert!(!ended, "nodeyard up has ended");
            fs::read_to_string(&log)
                .unwrap_or_default()
                .contains("web pages")
        });
    }

    fn image(&self, args: &[&str]) -> Value {
        let mut command = self.command();
        command.args(["--format", "json", "image"]).args(args);
        let output = command.output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// The build of ours that is this build of Zuul, once it is uploaded.
    fn uploaded(&self, uuid: &str) -> Option<Value> {
        let origins = self.image(&["provenance", "tiny"]);
        let mut origins = origins.as_array()?.iter();
        let origin = origins.find(|origin| origin["zuul"]["build"]["uuid"] == uuid)?;
        let uploads = self.image(&["uploads"]);
        let mut uploads = uploads.as_array()?.iter();
        uploads
            .any(|upload| upload["id"] == origin["build"] && upload["state"] == "ready")
            .then(|| origin.clone())
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ended = process.kill();
            let _ended = process.wait();
        }
        if std::thread::panicking() {
            eprintln!(
                "{}",
                fs::read_to_string(self.path("up.log")).unwrap_or_default()
            );
            let why = self.command().args(["image", "why"]).output();
            if let Ok(why) = why {
                eprintln!("{}", String::from_utf8_lossy(&why.stdout));
            }
        }
    }
}

/// A port that nobody listens on.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
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
    let mut yard = Yard::new(&zookeeper);
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
    };
    let zuul = Zuul::start(&zookeeper, &options).unwrap();
    let token = zuul.token().unwrap().trim_start_matches("Bearer ");
    fs::write(yard.path("token"), token).unwrap();
    let direct = format!(
        "    api-url: http://127.0.0.1:{}\n    tenant: bed\n",
        zuul.web_port()
    );
    yard.configure(&sshd, &direct);
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
        origin = yard.uploaded(&first).unwrap_or_default();
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
    yard.configure(&sshd, &format!("    api-url: {}\n", label.url("")));
    let second = make();
    wait_until("the second build is uploaded", || {
        yard.uploaded(&second).is_some()
    });
    assert!(
        label
            .asked()
            .iter()
            .any(|asked| asked.target.starts_with("/api/builds?"))
    );
    let third = make();
    wait_until("the third build is uploaded, and the first is gone", || {
        let origins = yard.image(&["provenance", "tiny"]);
        let builds: Vec<&Value> = origins
            .as_array()
            .map(|origins| {
                origins
                    .iter()
                    .map(|origin| &origin["zuul"]["build"]["uuid"])
                    .collect()
            })
            .unwrap_or_default();
        yard.uploaded(&third).is_some()
            && builds.len() == 2
            && !builds.iter().any(|uuid| **uuid == *first)
    });
    assert!(!yard.path(&file).exists());
}
