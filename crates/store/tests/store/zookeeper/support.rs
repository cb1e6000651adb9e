use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use nodeyard_store::zookeeper::{Host, Options, ZooKeeper};
use nodeyard_store::{CreateMode, Session, SessionId, Tree, TreePath, WatchEvent, Watcher};
use nodeyard_testbeds::ZooKeeperServer;

/// Long enough for a busy machine; reaching it means that something hangs.
pub(crate) const DEADLINE: Duration = Duration::from_secs(300);

/// A busy machine must not end a session, nor break its connection.
pub(crate) const LONG_SESSION: Duration = Duration::from_secs(60);

pub(crate) fn shared_server() -> &'static ZooKeeperServer {
    static SERVER: LazyLock<ZooKeeperServer> = LazyLock::new(|| ZooKeeperServer::start().unwrap());
    &SERVER
}

pub(crate) fn host(port: u16) -> Host {
    Host::Tcp {
        name: "127.0.0.1".to_owned(),
        port,
    }
}

pub(crate) fn options(port: u16) -> Options {
    Options::new(vec![host(port)])
}

pub(crate) async fn connect(options: Options) -> Arc<ZooKeeper> {
    let client = ZooKeeper::connect(options);
    client.connected(DEADLINE).await.unwrap();
    client
}

/// A client of the shared server that sees an empty tree of its own.
pub(crate) async fn fresh() -> Arc<ZooKeeper> {
    let mut options = options(shared_server().port());
    options.session_timeout = LONG_SESSION;
    let client = connect(options).await;
    client.with_chroot(&fresh_chroot(&*client).await)
}

/// An empty record at the root.
pub(crate) async fn fresh_chroot(client: &dyn Tree) -> TreePath {
    static COUNTER: AtomicUsize = AtomicUsize::new(0);
    let name = format!("/test-{}", COUNTER.fetch_add(1, Ordering::SeqCst));
    let path = path(&name);
    client
        .create(&path, Bytes::new(), CreateMode::Persistent)
        .await
        .unwrap();
    path
}

pub(crate) fn path(text: &str) -> TreePath {
    TreePath::new(text).unwrap()
}

pub(crate) fn data(text: impl Into<String>) -> Bytes {
    Bytes::from(text.into())
}

pub(crate) async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, work).await {
        Ok(done) => done,
        Err(_) => panic!("{what}: not within {DEADLINE:?}"),
    }
}

pub(crate) async fn state(client: &dyn Tree, wanted: impl FnMut(&Session) -> bool) -> Session {
    let mut session = client.session();
    *within("session state", session.wait_for(wanted))
        .await
        .unwrap()
}

pub(crate) async fn session_id(client: &dyn Tree) -> SessionId {
    state(client, |state| matches!(state, Session::Connected(_)))
        .await
        .id()
        .unwrap()
}

pub(crate) async fn next(watcher: &mut Watcher) -> WatchEvent {
    within("watch event", watcher.next()).await.unwrap()
}

/// Skips what comes before the wanted event.
pub(crate) async fn until_event(watcher: &mut Watcher, wanted: &WatchEvent) {
    while next(watcher).await != *wanted {}
}

/// Blocking work on a server, away from the threads of the runtime.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}
