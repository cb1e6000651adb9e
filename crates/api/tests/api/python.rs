//! Beside a real `nodepool-launcher` on the same ZooKeeper.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nodeyard_model::NodeState;
use nodeyard_store::registry::Registry;
use nodeyard_store::zookeeper::{Host, Options, ZooKeeper};
use nodeyard_testbeds::{ZooKeeperServer, checkout, free_port};
use tempfile::TempDir;

use crate::http::{HttpResponse, ask, get};
use crate::statsd::{FakeStatsd, report};
use crate::testbed::{DEADLINE, StoreFixture, TestServer, node, until};

/// An unmodified launcher with its webapp, which has nothing to hand out.
struct PythonLauncher {
    child: Child,
    webapp: SocketAddr,
    statsd: FakeStatsd,
    log: PathBuf,
    _directory: TempDir,
}

impl PythonLauncher {
    async fn start(zookeeper: &ZooKeeperServer) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let statsd = FakeStatsd::open().await;
        let webapp = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
        let certificates = zookeeper.certificates();
        let configuration = serde_json::json!({
            "zookeeper-servers": [{"host": "127.0.0.1", "port": zookeeper.tls_port()}],
            "zookeeper-tls": {
                "ca": certificates.ca, "cert": certificates.client.cert, "key": certificates.client.key,
            },
            "webapp": {"port": webapp.port(), "listen_address": "127.0.0.1"},
            "labels": [],
            "providers": [],
        });
        let file = directory.path().join("nodepool.yaml");
        fs::write(&file, configuration.to_string()).unwrap();
        let log = directory.path().join("log");
        let output = fs::File::create(&log).unwrap();
        // It ends with us, whatever happens.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(environment().join("bin/nodepool-launcher"))
            .args(["-d", "-c"])
            .arg(&file)
            .env("STATSD_HOST", "127.0.0.1")
            .env("STATSD_PORT", statsd.port().to_string())
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        Self {
            child,
            webapp,
            statsd,
            log,
            _directory: directory,
        }
    }
}

impl Drop for PythonLauncher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            let end = log.len().saturating_sub(4000);
            eprintln!("end of its log:\n{}", log.get(end..).unwrap_or(&log));
        }
    }
}

fn environment() -> PathBuf {
    let script = checkout().join("testbeds/python/install.sh");
    let output = Command::new(script)
        .args(["--find", "nodepool"])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

async fn registry(zookeeper: &ZooKeeperServer) -> Registry {
    let host = Host::Tcp {
        name: "127.0.0.1".to_owned(),
        port: zookeeper.port(),
    };
    let client = ZooKeeper::connect(Options::new(vec![host]));
    client.connected(DEADLINE).await.unwrap();
    Registry::new(client)
}

/// The body without ages, in an order: Python's lists have none.
fn comparable(answer: &HttpResponse) -> Vec<String> {
    let mut parts: Vec<String> = if answer
        .header("content-type")
        .starts_with("application/json")
    {
        let list = answer.json();
        list.as_array()
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect()
    } else {
        answer.body.lines().map(str::to_owned).collect()
    };
    for part in &mut parts {
        *part = without_ages(part);
    }
    parts.sort();
    parts
}

/// With zeros in every `DD:HH:MM:SS`, which keeps the width of its column.
fn without_ages(text: &str) -> String {
    let words = text.split_inclusive([' ', '"']);
    words
        .map(|word| {
            let is_age = word.trim_end_matches([' ', '"']).split(':').count() == 4
                && word
                    .bytes()
                    .all(|b| b.is_ascii_digit() || b": \"".contains(&b));
            match is_age {
                true => word.replace(|c: char| c.is_ascii_digit(), "0"),
                false => word.to_owned(),
            }
        })
        .collect()
}

/// Compares a page in one form with Python's.
async fn same(ours: SocketAddr, theirs: SocketAddr, path: &str, form: &[(&str, &str)]) {
    // Its cache may still be on its way; the pages differ in nothing else.
    let both = async || (get(ours, path, form).await, get(theirs, path, form).await);
    until(&format!("{path} is complete"), async || {
        let (ours, theirs) = both().await;
        theirs.body.lines().count() >= ours.body.lines().count()
            && theirs.body.matches('{').count() >= ours.body.matches('{').count()
    })
    .await;
    let (ours, theirs) = both().await;
    assert_eq!(ours.status, theirs.status, "{path} {form:?}");
    if ours.status == 404 {
        return;
    }
    assert_eq!(comparable(&ours), comparable(&theirs), "{path} {form:?}");
    let names = [
        "content-type",
        "access-control-allow-origin",
        "cache-control",
    ];
    for name in names {
        assert_eq!(ours.header(name), theirs.header(name), "{path} {name}");
    }
    for name in ["last-modified", "expires"] {
        httpdate::parse_http_date(ours.header(name)).unwrap();
        httpdate::parse_http_date(theirs.header(name)).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_and_gauges_match_nodepool() {
    let zookeeper = ZooKeeperServer::start().unwrap();
    let registry = registry(&zookeeper).await;
    registry.components().prepare().await.unwrap();
    let fleet = StoreFixture::create(&registry).await;
    let python = PythonLauncher::start(&zookeeper).await;
    let served = TestServer::start(&registry).await;
    served.ready.send_replace(true);
    until("Python is ready", async || {
        let ready = ask(python.webapp, "GET", "/ready", &[]).await;
        ready.is_ok_and(|ready| (ready.status, &*ready.body) == (200, "OK"))
    })
    .await;

    let node = format!("/node-list?node_id={}", fleet.nodes[0]);
    for path in [
        "/image-list",
        "/dib-image-list",
        "/image-status",
        "/node-list",
        "/request-list",
        "/label-list",
        "/unheard-of-list",
        "/node-list?fields=state,id",
        "/node-list?fields=",
        "/request-list?fields=id,node_types,nonsense",
        "/image-status?fields=image,paused,build_request",
        "/node-list?node_id=0000000099",
        &node,
    ] {
        for accept in [
            "*/*",
            "application/json",
            "application/json, text/plain",
            "application/json;q=0.9, text/*;q=0.5",
            "text/html,application/xml;q=0.9,*/*;q=0.8",
            "nonsense",
        ] {
            same(served.address, python.webapp, path, &[("Accept", accept)]).await;
        }
        same(served.address, python.webapp, path, &[]).await;
    }
    let json = [("Accept", "application/json")];
    let later = [("If-Modified-Since", "Fri, 01 Jan 2100 00:00:00 GMT")];
    let earlier = [("If-Modified-Since", "Thu, 01 Jan 2015 00:00:00 GMT")];
    for server in [served.address, python.webapp] {
        for method in ["POST", "DELETE", "BREW"] {
            let answer = ask(server, method, "/label-list", &json).await.unwrap();
            assert_eq!(answer.status, 200, "{method}");
        }
        let head = ask(server, "HEAD", "/label-list", &[]).await.unwrap();
        assert_eq!((head.status, &*head.body), (200, ""));
        assert_eq!(get(server, "/label-list", &later).await.status, 304);
        assert_eq!(get(server, "/label-list", &earlier).await.status, 200);
    }
    gauges(&registry, python).await;
}

/// However often it is asked, the store hears nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn pages_cost_the_store_nothing() {
    const POLLS: usize = 50;
    let zookeeper = ZooKeeperServer::start().unwrap();
    let registry = registry(&zookeeper).await;
    let _fleet = StoreFixture::create(&registry).await;
    let served = TestServer::start(&registry).await;
    let received = || -> usize {
        let answer = zookeeper.ask("srvr").unwrap();
        let line = answer
            .lines()
            .find_map(|line| line.strip_prefix("Received: "));
        line.unwrap().parse().unwrap()
    };
    let before = received();
    for poll in 0..POLLS {
        for list in ["node", "request", "image", "dib-image", "label"] {
            // Another page each time, so that none is from the cache.
            let path = format!("/{list}-list?fields=id,{poll}");
            assert_eq!(get(served.address, &path, &[]).await.status, 200);
        }
        let path = format!("/image-status?fields=image,{poll}");
        assert_eq!(get(served.address, &path, &[]).await.status, 200);
        assert_eq!(get(served.address, "/metrics", &[]).await.status, 200);
    }
    // The session's own heartbeats go on.
    let more = received() - before;
    assert!(more < POLLS, "{more} requests to the store");
}

/// Python leads the election first, then we do.
async fn gauges(registry: &Registry, python: PythonLauncher) {
    // It counts when a node changes.
    let more = node("cloud", &["small"], NodeState::Used);
    registry.nodes().create(&more).await.unwrap();
    let line = "nodepool.nodes.used:1|g";
    let theirs = python.statsd.gauges(line).await;
    let reporting = report(registry).await;
    drop(python);
    let mut ours = reporting.ear.gauges(line).await;
    // Of a provider or label that no pool has, Python names only the states it has seen.
    let unknown = |name: &str| name.contains(".gone.cloud.") || name.contains(".old.label.");
    ours.retain(|name, value| !(unknown(name) && value == "0"));
    assert_eq!(ours, theirs);
    reporting.shutdown.cancel();
    reporting.task.await.unwrap();
}
