//! Locks shared with kazoo, the library that Zuul and Python Nodepool lock with, in both directions.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nodeyard_store::CreateMode::Persistent;
use nodeyard_store::lock::{Lock, Locks};
use nodeyard_store::{Tree, Version};
use nodeyard_testbeds::checkout;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::conformance::backend::{Backend, ZooKeeperBackend, eventually, p, within};
use crate::conformance::locks::take_away;

const DIR: &str = "/locks/shared";
/// One test waits for its end, and none is to see it before.
const SESSION: Duration = Duration::from_secs(10);

/// A Python process with a kazoo client.
struct Kazoo {
    process: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    /// Answers that nobody has asked for yet.
    early: Vec<Value>,
}

impl Kazoo {
    async fn start(backend: &ZooKeeperBackend) -> Self {
        let install = checkout().join("testbeds/python/install.sh");
        let found = Command::new("sh")
            .arg(install)
            .args(["--find", "kazoo"])
            .output();
        let found = found.await.unwrap();
        assert!(
            found.status.success(),
            "{}",
            String::from_utf8_lossy(&found.stderr)
        );
        let environment = String::from_utf8(found.stdout).unwrap();
        let mut process = Command::new(Path::new(environment.trim()).join("bin/python"))
            .arg(checkout().join("crates/store/tests/store/conformance/kazoo_client.py"))
            .arg(backend.connection_string())
            .arg(SESSION.as_secs().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self {
            orders: process.stdin.take().unwrap(),
            answers: BufReader::new(process.stdout.take().unwrap()).lines(),
            process,
            early: Vec::new(),
        }
    }

    async fn order(&mut self, order: Value) {
        let line = format!("{order}\n");
        self.orders.write_all(line.as_bytes()).await.unwrap();
    }

    /// The next answer that is about this lock.
    async fn answer(&mut self, lock: &str) -> Value {
        loop {
            if let Some(at) = self.early.iter().position(|answer| answer["lock"] == lock) {
                return self.early.remove(at)["answer"].take();
            }
            let line = within(self.answers.next_line()).await.unwrap();
            let line = line.expect("the Python process has ended");
            self.early.push(serde_json::from_str(&line).unwrap());
        }
    }

    async fn ask(&mut self, order: Value) -> Value {
        let lock = order["lock"].as_str().unwrap().to_owned();
        self.order(order).await;
        self.answer(&lock).await
    }

    async fn try_acquire(&mut self, lock: &str) -> Value {
        self.ask(json!({"do": "acquire", "lock": lock, "path": DIR, "blocking": false}))
            .await
    }

    /// Begins to wait; the answer comes when the lock is held.
    async fn wait(&mut self, lock: &str) {
        let order = json!({"do": "acquire", "lock": lock, "path": DIR, "blocking": true, "identifier": lock});
        self.order(order).await;
    }

    async fn release(&mut self, lock: &str) {
        self.ask(json!({"do": "release", "lock": lock})).await;
    }
}

async fn setup(backend: &ZooKeeperBackend) -> (Kazoo, Lock) {
    let kazoo = Kazoo::start(backend).await;
    let lock = Locks::new(backend.session().await).lock(p(DIR));
    (kazoo, lock)
}

async fn queued(lock: &Lock, count: usize) {
    eventually(|| async { lock.contenders().await.unwrap().len() == count }).await;
}

pub(crate) async fn kazoo_keeps_us_out(backend: &ZooKeeperBackend) {
    let (mut kazoo, lock) = setup(backend).await;
    assert_eq!(kazoo.try_acquire("k").await, true);
    for _ in 0..3 {
        assert!(lock.try_acquire().await.unwrap().is_none());
        assert_eq!(
            lock.contenders().await.unwrap().len(),
            1,
            "nothing of ours is left"
        );
    }
    kazoo.release("k").await;
    assert!(lock.try_acquire().await.unwrap().is_some());
}

pub(crate) async fn we_keep_kazoo_out(backend: &ZooKeeperBackend) {
    let (mut kazoo, lock) = setup(backend).await;
    let guard = lock.acquire().await.unwrap();
    for _ in 0..3 {
        assert_eq!(kazoo.try_acquire("k").await, false);
        assert_eq!(
            lock.contenders().await.unwrap().len(),
            1,
            "nothing of kazoo's is left"
        );
    }
    guard.release().await.unwrap();
    assert_eq!(kazoo.try_acquire("k").await, true);
}

pub(crate) async fn waiters_wake_in_turn(backend: &ZooKeeperBackend) {
    let (mut kazoo, lock) = setup(backend).await;
    let first = lock.clone().identifier("first").acquire().await.unwrap();
    kazoo.wait("second").await;
    queued(&lock, 2).await;
    let third = lock.clone().identifier("third");
    let third = tokio::spawn(async move { third.acquire().await.unwrap() });
    queued(&lock, 3).await;
    kazoo.wait("fourth").await;
    queued(&lock, 4).await;
    let ours: Vec<_> = lock
        .contenders()
        .await
        .unwrap()
        .into_iter()
        .map(|c| c.identifier)
        .collect();
    assert_eq!(ours, ["first", "second", "third", "fourth"]);
    let kazoos = kazoo
        .ask(json!({"do": "contenders", "lock": "list", "path": DIR}))
        .await;
    assert_eq!(kazoos, json!(ours), "both see the same queue");
    first.release().await.unwrap();
    assert_eq!(kazoo.answer("second").await, true);
    assert!(!third.is_finished());
    kazoo.release("second").await;
    let third = within(third).await.unwrap();
    third.release().await.unwrap();
    assert_eq!(kazoo.answer("fourth").await, true);
    kazoo.release("fourth").await;
    queued(&lock, 0).await;
}

pub(crate) async fn our_death_wakes_kazoo(backend: &ZooKeeperBackend) {
    let (mut kazoo, lock) = setup(backend).await;
    let mortal = backend.mortal().await;
    let contender = p(DIR)
        .join("00000000000000000000000000000000__lock__")
        .unwrap();
    nodeyard_store::ext::ensure_path(&*mortal, &p(DIR))
        .await
        .unwrap();
    let mode = nodeyard_store::CreateMode::EphemeralSequential;
    mortal.create(&contender, Bytes::new(), mode).await.unwrap();
    kazoo.wait("k").await;
    queued(&lock, 2).await;
    backend.kill(mortal).await;
    assert_eq!(kazoo.answer("k").await, true);
}

pub(crate) async fn kazoos_death_wakes_us(backend: &ZooKeeperBackend) {
    let (mut kazoo, lock) = setup(backend).await;
    assert_eq!(kazoo.try_acquire("k").await, true);
    let waiting = {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire().await.unwrap() })
    };
    queued(&lock, 2).await;
    kazoo.process.kill().await.unwrap();
    within(waiting).await.unwrap().release().await.unwrap();
}

pub(crate) async fn persistent_contenders_are_respected(backend: &ZooKeeperBackend) {
    let (mut kazoo, lock) = setup(backend).await;
    let (leaving, tree) = (backend.session().await, backend.session().await);
    let ours = Locks::new(Arc::clone(&leaving))
        .lock(p(DIR))
        .persistent()
        .identifier("ours");
    drop(ours.acquire().await.unwrap());
    leaving.close().await;
    assert_eq!(kazoo.try_acquire("k").await, false);
    let list = kazoo
        .ask(json!({"do": "contenders", "lock": "list", "path": DIR}))
        .await;
    assert_eq!(list, json!(["ours"]));
    take_away(&tree, &lock).await;
    let order = json!({
        "do": "acquire", "lock": "p", "path": DIR, "blocking": true, "ephemeral": false, "identifier": "kazoo's",
    });
    assert_eq!(kazoo.ask(order).await, true);
    kazoo.process.kill().await.unwrap();
    let holder = &lock.contenders().await.unwrap()[0];
    assert_eq!(
        (holder.identifier.as_str(), holder.session),
        ("kazoo's", None)
    );
    assert!(lock.try_acquire().await.unwrap().is_none());
    take_away(&tree, &lock).await;
    assert!(lock.try_acquire().await.unwrap().is_some());
}

pub(crate) async fn both_count_without_losing_any(backend: &ZooKeeperBackend) {
    let (mut kazoo, lock) = setup(backend).await;
    let tree = backend.session().await;
    tree.create(&p("/counter"), "0".into(), Persistent)
        .await
        .unwrap();
    for worker in ["a", "b"] {
        let order =
            json!({"do": "count", "lock": worker, "path": DIR, "counter": "/counter", "times": 20});
        kazoo.order(order).await;
    }
    for _ in 0..20 {
        let guard = within(lock.acquire()).await.unwrap();
        let tree: &dyn Tree = &**guard.tree();
        tree.sync().await.unwrap();
        let record = tree.get(&p("/counter")).await.unwrap();
        let count: u32 = std::str::from_utf8(&record.data).unwrap().parse().unwrap();
        let next = Bytes::from((count + 1).to_string());
        tree.set(&p("/counter"), next, Version::Any).await.unwrap();
        guard.release().await.unwrap();
    }
    assert_eq!(kazoo.answer("a").await, "counted");
    assert_eq!(kazoo.answer("b").await, "counted");
    assert_eq!(tree.get(&p("/counter")).await.unwrap().data, "60");
}
