//! Builders on two hosts, and a build of Zuul that both of them could fetch.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, SystemTime};

use nodeyard_testbeds::gearman::{ExternalJobServer, Kind};
use nodeyard_testbeds::web_server::{Asked, Reply};
use nodeyard_testbeds::{WebServer, ZooKeeperServer};
use serde_json::{Value, json};

use crate::bed::{Bed, Daemon, Ran, wait_until};

const IMAGE: &str = "ubuntu";
/// Those that fetch. Whoever else there is only looks after the records.
const HOSTS: [&str; 2] = ["one", "two"];

/// A Zuul that knows who asks for what, and sends no artifact before it may.
#[derive(Default)]
struct Zuul {
    said: Mutex<Said>,
    opened: Condvar,
}

#[derive(Default)]
struct Said {
    builds: Vec<Value>,
    files: BTreeMap<String, Vec<u8>>,
    /// Hosts that have begun to fetch a file, in this order.
    fetchers: BTreeMap<String, Vec<String>>,
    open: bool,
}

impl Zuul {
    fn serve(self: Arc<Self>) -> WebServer {
        WebServer::start(move |asked| self.answer(asked)).unwrap()
    }

    fn answer(&self, asked: &Asked) -> Reply {
        let path = asked.target.split('?').next().unwrap_or_default();
        let mut said = self.said.lock().unwrap();
        if path == "/api/tenant/infra/builds" {
            let builds = Value::Array(said.builds.clone());
            return Reply::new(200, builds.to_string()).with("Content-Type", "application/json");
        }
        let Some(content) = said.files.get(path).cloned() else {
            return Reply::new(404, "");
        };
        let token = asked.header("authorization").unwrap_or_default();
        let host = token.trim_start_matches("Bearer ").to_owned();
        let fetchers = said.fetchers.entry(path.to_owned()).or_default();
        if !fetchers.contains(&host) {
            fetchers.push(host);
        }
        if asked.method == "GET" {
            let _open = self.opened.wait_while(said, |said| !said.open).unwrap();
        }
        Reply::file(asked, &content, &format!("\"{path}\""))
    }

    /// From now on artifacts are sent, also to those who wait for them.
    fn open(&self) {
        self.said.lock().unwrap().open = true;
        self.opened.notify_all();
    }

    fn publish(&self, server: &WebServer, uuid: &str) {
        let disk = disk(uuid);
        let mut said = self.said.lock().unwrap();
        let (path, place) = (artifact(uuid), said.builds.len());
        let build = json!({
            "uuid": uuid, "job_name": "build-image", "result": "SUCCESS", "held": false, "final": true,
            "end_time": format!("2026-11-15T10:{place:02}:00"), "pipeline": "post", "log_url": null,
            "ref": {"project": "infra/images", "branch": "main", "newrev": "abc"},
            "artifacts": [{"name": "disk", "url": server.url(&path), "metadata": {"type": "disk"}}],
        });
        said.builds.insert(0, build);
        said.files.insert(path, disk);
    }

    fn fetchers(&self, uuid: &str) -> Vec<String> {
        let said = self.said.lock().unwrap();
        said.fetchers
            .get(&artifact(uuid))
            .cloned()
            .unwrap_or_default()
    }
}

fn artifact(uuid: &str) -> String {
    format!("/artifacts/{uuid}.qcow2")
}

/// A disk that is one, with something of its own in it.
fn disk(text: &str) -> Vec<u8> {
    let mut disk = vec![0; 300_000];
    disk[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    disk[31] = 1;
    disk[200_000..][..text.len()].copy_from_slice(text.as_bytes());
    disk
}

struct Yard {
    bed: Bed,
    zuul: Arc<Zuul>,
    web: WebServer,
    /// Where records can be asked for.
    steward: &'static str,
    _jobs: ExternalJobServer,
    _cloud: Daemon,
    _zookeeper: ZooKeeperServer,
}

impl Yard {
    /// `session` is how long the records take a steward for alive that does not say anything.
    fn new(kind: Kind, stewards: &[&'static str], session: Duration) -> Self {
        let mut bed = Bed::new();
        // Shortens what is only waited for when something went wrong.
        bed.set("NODEPOOL_TEST_BUILD_INTERVAL", "0.2");
        bed.set("NODEPOOL_TEST_BUILDER_CLEANUP_INTERVAL", "0.2");
        let (cloud, _) = bed.simulate();
        let zookeeper = ZooKeeperServer::start().unwrap();
        let jobs = ExternalJobServer::start(kind, None).unwrap();
        let zuul = Arc::<Zuul>::default();
        let web = Arc::clone(&zuul).serve();
        let certificates = zookeeper.certificates();
        let mut hosts = HOSTS.to_vec();
        hosts.extend(stewards.iter().filter(|host| !HOSTS.contains(host)));
        for host in hosts {
            let token = bed.write(&format!("{host}-token"), host);
            let mut config = json!({
                "gearman-servers": [{"host": "127.0.0.1", "port": jobs.port()}],
                "builder-images": if HOSTS.contains(&host) { IMAGE } else { "nothing" },
                "builder-webapp": {"port": bed.free_port()},
                "images-dir": format!("{host}-images"), "build-log-dir": format!("{host}-logs"),
                "images-dir-reserve": 0, "image-size-estimate": "1M",
                "zuul-images": [{
                    "name": IMAGE, "api-url": web.url("/"), "allow-insecure": true, "tenant": "infra",
                    "project": "infra/images", "pipelines": ["post"], "branch": "main", "job": "build-image",
                    "poll-interval": 5, "auth": {"type": "bearer", "token-file": token},
                    "artifacts": [{"format": "qcow2", "type": "disk"}],
                }],
                "providers": [{"name": "cloud", "driver": "fake", "diskimages": [{"name": IMAGE}], "pools": []}],
            });
            if stewards.contains(&host) {
                config["zookeeper-servers"] =
                    json!([{"host": "127.0.0.1", "port": zookeeper.tls_port()}]);
                config["zookeeper-timeout"] = json!(session.as_secs());
                config["zookeeper-tls"] = json!({
                    "ca": certificates.ca, "cert": certificates.client.cert, "key": certificates.client.key,
                });
            }
            bed.write(host, config.to_string());
        }
        Self {
            bed,
            zuul,
            web,
            steward: stewards[0],
            _jobs: jobs,
            _cloud: cloud,
            _zookeeper: zookeeper,
        }
    }

    fn start(&self, host: &str) -> Daemon {
        self.bed.builder_on(&name_of(host), host)
    }

    fn publish(&self, uuid: &str) {
        self.zuul.publish(&self.web, uuid);
    }

    /// The host that fetches a build.
    fn fetcher(&self, uuid: &str) -> String {
        wait_until("somebody fetches it", || {
            !self.zuul.fetchers(uuid).is_empty()
        });
        self.zuul.fetchers(uuid).remove(0)
    }

    fn list(&self, list: &str) -> Vec<Value> {
        let mut command = self.bed.called("nodepool");
        command.args(["-c", self.steward, "--format", "json", list]);
        let ran = Ran::from(command.output().unwrap()).succeeded();
        serde_json::from_str(&ran.out).unwrap()
    }

    /// The builders of all builds that are ready, once there are so many and all of them are in the cloud.
    fn settled(&self, count: usize) -> Vec<String> {
        let ready = |list: &str| {
            let rows = self.list(list);
            rows.len() == count && rows.iter().all(|row| row["state"] == "ready")
        };
        wait_until("all is built and uploaded", || {
            ready("dib-image-list") && ready("image-list")
        });
        let builder = |row: &Value| row["builder"].as_str().unwrap().to_owned();
        self.list("dib-image-list").iter().map(builder).collect()
    }

    fn images(&self, host: &str) -> PathBuf {
        self.bed.path(&format!("{host}-images"))
    }

    /// What there is of the image on a host: files, drafts and downloads.
    fn held(&self, host: &str) -> Vec<PathBuf> {
        let mut held = Vec::new();
        find(&self.images(host), &mut held);
        held
    }
}

/// With a dot, so that nobody is asked for the domain.
fn name_of(host: &str) -> String {
    format!("{host}.example.org")
}

fn other(host: &str) -> &'static str {
    HOSTS.into_iter().find(|other| *other != host).unwrap()
}

/// The files below a directory that belong to an image, complete or not.
fn find(directory: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find(&path, found);
        } else if path.to_string_lossy().contains(IMAGE) {
            found.push(path);
        }
    }
}

fn only_one_fetches(kind: Kind, stewards: &[&'static str]) {
    // Nobody is taken for dead because the machine is busy.
    let yard = Yard::new(kind, stewards, Duration::from_secs(60));
    yard.publish("aaaa");
    let _keepers: Vec<Daemon> = stewards
        .iter()
        .filter(|host| !HOSTS.contains(host))
        .map(|host| yard.start(host))
        .collect();
    let _workers = HOSTS.map(|host| yard.start(host));
    let winner = yard.fetcher("aaaa");
    yard.zuul.open();
    assert_eq!(yard.settled(1), [name_of(&winner)]);
    assert_eq!(yard.zuul.fetchers("aaaa"), [&*winner]);
    assert!(!yard.held(&winner).is_empty());
    assert_eq!(yard.held(other(&winner)), [] as [PathBuf; 0]);

    // The next one is another race.
    yard.publish("bbbb");
    let second = yard.fetcher("bbbb");
    let mut builders = yard.settled(2);
    builders.sort();
    let mut expected = [name_of(&winner), name_of(&second)];
    expected.sort();
    assert_eq!(builders, expected);
    assert_eq!(yard.zuul.fetchers("bbbb"), [&*second]);
    assert_eq!(yard.zuul.fetchers("aaaa"), [&*winner]);
}

fn the_other_takes_over(kind: Kind, stewards: &[&'static str]) {
    let yard = Yard::new(kind, stewards, Duration::from_secs(10));
    yard.publish("aaaa");
    let _keepers: Vec<Daemon> = stewards
        .iter()
        .filter(|host| !HOSTS.contains(host))
        .map(|host| yard.start(host))
        .collect();
    let mut workers = BTreeMap::from(HOSTS.map(|host| (host.to_owned(), yard.start(host))));
    let dead = yard.fetcher("aaaa");
    workers.get_mut(&dead).unwrap().kill();
    yard.zuul.open();
    let heir = other(&dead);
    assert_eq!(yard.settled(1), [name_of(heir)]);
    assert_eq!(yard.zuul.fetchers("aaaa"), [&*dead, heir]);
    let downloads = yard.images(heir).join(".zuul-downloads").join(IMAGE);
    assert_eq!(fs::read_dir(downloads).unwrap().count(), 0);

    // Whoever was killed comes back and finds that nobody needs what it had begun.
    let long_ago = SystemTime::now() - Duration::from_secs(2 * 24 * 60 * 60);
    for left in yard.held(&dead) {
        let left = fs::File::options().write(true).open(left).unwrap();
        left.set_modified(long_ago).unwrap();
    }
    workers.insert(dead.clone(), yard.start(&dead));
    wait_until("nothing is left of what was begun", || {
        yard.held(&dead).is_empty()
    });
    assert_eq!(yard.settled(1), [name_of(heir)]);
    assert_eq!(yard.zuul.fetchers("aaaa"), [&*dead, heir]);
}

#[test]
fn two_stewards_and_two_workers_fetch_it_once() {
    only_one_fetches(Kind::Gearmand, &HOSTS);
}

#[test]
fn two_workers_without_a_store_fetch_it_once() {
    only_one_fetches(Kind::Geard, &["keeper"]);
}

#[test]
fn when_a_steward_dies_that_fetches_the_other_one_does() {
    the_other_takes_over(Kind::Geard, &HOSTS);
}

#[test]
fn when_a_worker_dies_that_fetches_the_other_one_does() {
    the_other_takes_over(Kind::Gearmand, &["keeper"]);
}
