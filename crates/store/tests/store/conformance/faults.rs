//! Views stay consistent while a real ensemble fails during writes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use nodeyard_store::CreateMode::{EphemeralSequential, Persistent};
use nodeyard_store::view::View;
use nodeyard_store::zookeeper::Options;
use nodeyard_store::{Session, Tree, Version};
use nodeyard_testbeds::{Ensemble, Proxy, ZooKeeperServer};
use tokio::task::JoinHandle;

use crate::conformance::backend::{
    LONG_SESSION, SHORT_SESSION, connect, eventually, gone, host, id_of, p, within,
};
use crate::conformance::views::{Things, things};

const IDS: u64 = 40;

/// Changes records continuously, ignoring errors.
struct Writer {
    stop: Arc<AtomicBool>,
    task: JoinHandle<u64>,
}

impl Writer {
    fn start(tree: Arc<dyn Tree>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut step = 0;
            while !stopped.load(Ordering::SeqCst) {
                step += 1;
                // Refusals and lost connections are part of it.
                let _ = change(&*tree, step).await;
            }
            step
        });
        Self { stop, task }
    }

    async fn stop(self) {
        self.stop.store(true, Ordering::SeqCst);
        assert!(within(self.task).await.unwrap() > 0);
    }
}

async fn change(tree: &dyn Tree, step: u64) -> nodeyard_store::Result<()> {
    let path = p(&format!("/things/{}", step * 7919 % IDS));
    let data = Bytes::from(step.to_string());
    match step % 6 {
        0 | 1 => tree.create(&path, data, Persistent).await.map(drop),
        2 | 3 => tree.set(&path, data, Version::Any).await.map(drop),
        4 => {
            let lock = path.join("lock")?;
            nodeyard_store::ext::ensure_path(tree, &lock).await?;
            let contender = lock.join("x__lock__")?;
            tree.create(&contender, Bytes::new(), EphemeralSequential)
                .await
                .map(drop)
        }
        _ => nodeyard_store::ext::delete_recursive(tree, &path).await,
    }
}

async fn prepare(tree: &Arc<dyn Tree>) {
    tree.create(&p("/things"), Bytes::new(), Persistent)
        .await
        .unwrap();
    for step in 0..200 {
        let _ = change(&**tree, step).await;
    }
}

/// Compares everything with what the store holds, which nobody changes any more.
async fn expect_exact(view: &View<Things>, tree: &Arc<dyn Tree>) {
    within(nodeyard_store::ext::persist(&**tree, || tree.sync()))
        .await
        .unwrap();
    within(view.synced()).await.unwrap();
    assert!(view.is_current());
    let mut expected = BTreeMap::new();
    let mut empty = Vec::new();
    for (id, record) in tree.list(&p("/things")).await.unwrap() {
        let lock = p(&format!("/things/{id}/lock"));
        let locked = !nodeyard_store::ext::child_names(&**tree, &lock)
            .await
            .unwrap()
            .is_empty();
        if record.data.is_empty() {
            empty.push(id);
        } else {
            let value: u64 = std::str::from_utf8(&record.data).unwrap().parse().unwrap();
            expected.insert(id, (value, record.stat.mzxid, record.stat.version, locked));
        }
    }
    let shown: BTreeMap<_, _> = view
        .items()
        .into_iter()
        .map(|item| {
            (
                item.id,
                (*item.value, item.stat.mzxid, item.stat.version, item.locked),
            )
        })
        .collect();
    assert_eq!(shown, expected);
    let shown_empty: Vec<_> = view.empty().into_iter().map(|(id, _)| id).collect();
    assert_eq!(shown_empty, empty);
    assert!(!expected.is_empty());
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

async fn server() -> Arc<ZooKeeperServer> {
    Arc::new(blocking(|| ZooKeeperServer::start().unwrap()).await)
}

fn options(ports: &[u16], session_timeout: Duration) -> Options {
    let mut options = Options::new(ports.iter().copied().map(host).collect());
    options.session_timeout = session_timeout;
    options
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_is_exact_after_a_restart_of_the_server() {
    let server = server().await;
    let mine = connect(options(&[server.port()], LONG_SESSION)).await;
    let other = connect(options(&[server.port()], LONG_SESSION)).await;
    prepare(&other).await;
    let view = things(&mine);
    within(view.synced()).await.unwrap();
    let writer = Writer::start(Arc::clone(&other));
    for killed in [true, false] {
        let server = Arc::clone(&server);
        blocking(move || {
            if killed {
                server.kill();
            }
            server.restart().unwrap();
        })
        .await;
        within(view.synced()).await.unwrap();
    }
    writer.stop().await;
    expect_exact(&view, &other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_is_exact_after_connections_broke_many_times() {
    let server = server().await;
    let proxy = Proxy::start(server.port()).unwrap();
    let mine = connect(options(&[proxy.port()], LONG_SESSION)).await;
    let other = connect(options(&[server.port()], LONG_SESSION)).await;
    prepare(&other).await;
    let view = things(&mine);
    let session = id_of(&mine);
    let writer = Writer::start(Arc::clone(&other));
    for round in 0..15 {
        // Sometimes in the middle of the listing, sometimes after it.
        if round % 3 == 0 {
            within(view.synced()).await.unwrap();
        }
        let before = proxy.accepted();
        // Again and again: the last one may be so new that it was not there to be dropped.
        eventually(|| async {
            proxy.drop_connections();
            proxy.accepted() > before
        })
        .await;
    }
    writer.stop().await;
    expect_exact(&view, &other).await;
    assert_eq!(id_of(&mine), session, "all in one session");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_is_exact_after_its_session_expired() {
    let server = server().await;
    let proxy = Proxy::start(server.port()).unwrap();
    let mine = connect(options(&[proxy.port()], SHORT_SESSION)).await;
    let other = connect(options(&[server.port()], LONG_SESSION)).await;
    prepare(&other).await;
    let view = things(&mine);
    within(view.synced()).await.unwrap();
    let writer = Writer::start(Arc::clone(&other));
    for round in 0..2 {
        let session = id_of(&mine);
        let marker = p(&format!("/marker{round}"));
        let mode = nodeyard_store::CreateMode::Ephemeral;
        mine.create(&marker, Bytes::new(), mode).await.unwrap();
        proxy.refuse(true);
        gone(&other, &marker).await;
        proxy.refuse(false);
        let mut sessions = mine.session();
        let is_new = |now: &Session| matches!(now, Session::Connected(id) if *id != session);
        within(sessions.wait_for(is_new)).await.unwrap();
    }
    writer.stop().await;
    expect_exact(&view, &other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_is_exact_after_the_leader_was_lost() {
    let ensemble = Arc::new(blocking(|| Ensemble::start(3).unwrap()).await);
    let ports: Vec<u16> = ensemble
        .servers()
        .iter()
        .map(ZooKeeperServer::port)
        .collect();
    let mine = connect(options(&ports, LONG_SESSION)).await;
    let other = connect(options(&ports, LONG_SESSION)).await;
    prepare(&other).await;
    let view = things(&mine);
    within(view.synced()).await.unwrap();
    let writer = Writer::start(Arc::clone(&other));
    let failing = Arc::clone(&ensemble);
    blocking(move || {
        failing.leader().unwrap().kill();
        failing.leader().unwrap();
    })
    .await;
    within(view.synced()).await.unwrap();
    writer.stop().await;
    expect_exact(&view, &other).await;
}
