//! The backends under test.

use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use nodeyard_store::embedded::Embedded;
use nodeyard_store::socket::{self, StoreSocket};
use nodeyard_store::zookeeper::{Host, Options, ZooKeeper, ZooKeeperTlsFiles};
use nodeyard_store::{CreateMode, SessionId, Tree, TreePath};
use nodeyard_testbeds::{Proxy, ZooKeeperServer};
use tokio::net::{TcpListener, UnixStream};
use tokio::task::JoinHandle;

/// So long that only a hang exceeds it.
const PATIENCE: Duration = Duration::from_secs(300);

/// A busy machine must not end it.
pub(crate) const LONG_SESSION: Duration = Duration::from_secs(60);

/// For sessions that are to die, but not before they are told to.
pub(crate) const SHORT_SESSION: Duration = Duration::from_secs(5);

/// A tree that nobody else uses.
#[async_trait]
pub(crate) trait Backend: Send + Sync {
    async fn session(&self) -> Arc<dyn Tree>;

    /// A session whose death is noticed soon. It needs a machine that is not too busy to keep it alive.
    async fn mortal(&self) -> Arc<dyn Tree> {
        self.session().await
    }

    /// Ends a mortal session as the death of its process would, without a goodbye. The ephemeral records go
    /// when the backend notices.
    async fn kill(&self, tree: Arc<dyn Tree>);
}

/// A backend whose sessions can end behind the back of their handles.
#[async_trait]
pub(crate) trait Expiring: Backend {
    async fn victim(&self) -> Victim {
        self.victim_with(SHORT_SESSION).await
    }

    async fn victim_with(&self, session: Duration) -> Victim;
}

/// A handle whose session can be ended.
pub(crate) struct Victim {
    pub tree: Arc<dyn Tree>,
    proxy: Proxy,
    observer: Arc<dyn Tree>,
}

impl Victim {
    /// Ends the session. The handle finds out when it gets through to the server again.
    pub(crate) async fn expire(&self) {
        let marker = p("/marker-of-the-victim");
        self.tree
            .create(&marker, Bytes::new(), CreateMode::Ephemeral)
            .await
            .unwrap();
        self.proxy.refuse(true);
        gone(&self.observer, &marker).await;
        self.proxy.refuse(false);
    }

    /// Breaks the connection; the session stays.
    pub(crate) fn disconnect(&self) {
        self.proxy.drop_connections();
    }
}

pub(crate) struct EmbeddedBackend {
    store: Arc<Embedded>,
    _directory: tempfile::TempDir,
}

pub(crate) async fn embedded() -> EmbeddedBackend {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(directory.path()).unwrap();
    EmbeddedBackend {
        store,
        _directory: directory,
    }
}

#[async_trait]
impl Backend for EmbeddedBackend {
    async fn session(&self) -> Arc<dyn Tree> {
        self.store.session()
    }

    async fn kill(&self, tree: Arc<dyn Tree>) {
        drop(tree);
    }
}

/// An embedded store that this process owns, seen through its socket.
pub(crate) struct SocketBackend {
    directory: tempfile::TempDir,
    server: JoinHandle<()>,
}

pub(crate) async fn socket() -> SocketBackend {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(directory.path()).unwrap();
    let path = directory.path().join(socket::FILE_NAME);
    let socket = StoreSocket::bind(&path).await.unwrap();
    let server = tokio::spawn(socket.serve(store, std::future::pending()));
    SocketBackend { directory, server }
}

impl SocketBackend {
    fn path(&self) -> PathBuf {
        self.directory.path().join(socket::FILE_NAME)
    }

    async fn connect(&self, session_timeout: Duration) -> Arc<dyn Tree> {
        let options = socket::ConnectOptions {
            session_timeout,
            patience: PATIENCE,
        };
        socket::connect(&self.path(), options).await.unwrap()
    }

    /// A port that leads to the socket.
    async fn port(&self) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let path = self.path();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut store = UnixStream::connect(&path).await.unwrap();
                tokio::spawn(async move {
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut store).await;
                });
            }
        });
        port
    }
}

impl Drop for SocketBackend {
    fn drop(&mut self) {
        self.server.abort();
    }
}

#[async_trait]
impl Backend for SocketBackend {
    async fn session(&self) -> Arc<dyn Tree> {
        self.connect(LONG_SESSION).await
    }

    async fn mortal(&self) -> Arc<dyn Tree> {
        self.connect(SHORT_SESSION).await
    }

    async fn kill(&self, tree: Arc<dyn Tree>) {
        drop(tree);
    }
}

#[async_trait]
impl Expiring for SocketBackend {
    async fn victim_with(&self, session: Duration) -> Victim {
        let proxy = Proxy::start(self.port().await).unwrap();
        let mut options = Options::new(vec![host(proxy.port())]);
        options.session_timeout = session;
        Victim {
            tree: connect(options).await,
            proxy,
            observer: self.session().await,
        }
    }
}

/// A directory of its own on a server that all tests share.
pub(crate) struct ZooKeeperBackend {
    chroot: TreePath,
    tls: bool,
}

fn server() -> &'static ZooKeeperServer {
    static SERVER: LazyLock<ZooKeeperServer> = LazyLock::new(|| ZooKeeperServer::start().unwrap());
    &SERVER
}

pub(crate) async fn zookeeper() -> ZooKeeperBackend {
    ZooKeeperBackend::new(false).await
}

pub(crate) async fn zookeeper_tls() -> ZooKeeperBackend {
    ZooKeeperBackend::new(true).await
}

impl ZooKeeperBackend {
    async fn new(tls: bool) -> Self {
        static COUNTER: AtomicUsize = AtomicUsize::new(0);
        let server = tokio::task::spawn_blocking(server).await.unwrap();
        let chroot = p(&format!("/test-{}", COUNTER.fetch_add(1, Ordering::SeqCst)));
        let plain = connect(Options::new(vec![host(server.port())])).await;
        plain
            .create(&chroot, Bytes::new(), CreateMode::Persistent)
            .await
            .unwrap();
        plain.close().await;
        Self { chroot, tls }
    }

    /// How other clients are told where to connect, without TLS.
    pub(crate) fn connection_string(&self) -> String {
        format!("127.0.0.1:{}{}", server().port(), self.chroot)
    }

    fn options(&self, timeout: Duration) -> Options {
        let server = server();
        let certificates = server.certificates();
        let mut options = Options::new(vec![host(if self.tls {
            server.tls_port()
        } else {
            server.port()
        })]);
        options.chroot = self.chroot.clone();
        options.session_timeout = timeout;
        options.tls = self.tls.then(|| ZooKeeperTlsFiles {
            ca: certificates.ca.clone(),
            cert: certificates.client.cert.clone(),
            key: certificates.client.key.clone(),
            verify_hostname: true,
        });
        options
    }
}

pub(crate) fn host(port: u16) -> Host {
    Host::Tcp {
        name: "127.0.0.1".to_owned(),
        port,
    }
}

pub(crate) async fn connect(options: Options) -> Arc<dyn Tree> {
    let client = ZooKeeper::connect(options);
    client.connected(PATIENCE).await.unwrap();
    client
}

#[async_trait]
impl Backend for ZooKeeperBackend {
    async fn session(&self) -> Arc<dyn Tree> {
        connect(self.options(LONG_SESSION)).await
    }

    async fn mortal(&self) -> Arc<dyn Tree> {
        connect(self.options(SHORT_SESSION)).await
    }

    async fn kill(&self, tree: Arc<dyn Tree>) {
        drop(tree);
    }
}

#[async_trait]
impl Expiring for ZooKeeperBackend {
    async fn victim_with(&self, session: Duration) -> Victim {
        let mut options = self.options(session);
        let Host::Tcp { port, .. } = options.hosts[0] else {
            panic!("not a port");
        };
        let proxy = Proxy::start(port).unwrap();
        options.hosts = vec![host(proxy.port())];
        Victim {
            tree: connect(options).await,
            proxy,
            observer: self.session().await,
        }
    }
}

pub(crate) fn p(path: &str) -> TreePath {
    TreePath::new(path).unwrap()
}

pub(crate) fn id_of(tree: &Arc<dyn Tree>) -> SessionId {
    tree.session().borrow().id().unwrap()
}

/// Fails the test instead of hanging it.
pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("the test hangs")
}

/// Waits until the condition holds.
pub(crate) async fn eventually<F>(mut condition: impl FnMut() -> F)
where
    F: Future<Output = bool>,
{
    within(async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

pub(crate) async fn gone(tree: &Arc<dyn Tree>, path: &TreePath) {
    eventually(|| async { tree.stat(path).await.unwrap().is_none() }).await;
}
