//! Stores for tests of what works on one: embedded in the process, or on a real ZooKeeper.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a store that is not there is the failure of the test that wanted it"
)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use nodeyard_store::embedded::Embedded;
use nodeyard_store::zookeeper::{Host, Options, ZooKeeper};
use nodeyard_store::{Tree, TreePath, ext};
use tempfile::TempDir;

use crate::eventually::show_when_stuck;
use crate::proxy::Proxy;
use crate::zookeeper::ZooKeeperServer;

/// A busy machine must not end a session.
const SESSION: Duration = Duration::from_secs(60);

/// A store that nobody else uses.
#[derive(Debug)]
pub enum Store {
    Embedded {
        store: Arc<Embedded>,
        directory: TempDir,
    },
    ZooKeeper {
        chroot: TreePath,
    },
}

impl Store {
    #[must_use]
    pub fn embedded() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Embedded::open(directory.path()).unwrap();
        let shown = Arc::downgrade(&store);
        show_when_stuck(move || {
            let tree = shown.upgrade().map(|store| store.session());
            async move {
                match tree {
                    Some(tree) => show(&tree).await,
                    None => "the store is closed".to_owned(),
                }
            }
        });
        Self::Embedded { store, directory }
    }

    /// A directory of its own on the server that all tests of a process share.
    pub async fn zookeeper() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let chroot = TreePath::new(format!("/test-{number}")).unwrap();
        let root = connect(shared_zookeeper().port(), TreePath::root(), SESSION);
        ext::persist(&*root, || ext::ensure_path(&*root, &chroot))
            .await
            .unwrap();
        root.close().await;
        let shown = chroot.clone();
        show_when_stuck(move || {
            let tree = connect(shared_zookeeper().port(), shown.clone(), SESSION);
            async move { show(&tree).await }
        });
        Self::ZooKeeper { chroot }
    }

    /// A session of its own.
    pub async fn session(&self) -> Arc<dyn Tree> {
        let tree = match self {
            Self::Embedded { store, .. } => store.session(),
            Self::ZooKeeper { chroot } => {
                connect(shared_zookeeper().port(), chroot.clone(), SESSION)
            }
        };
        ext::connected(&*tree).await.unwrap();
        tree
    }

    /// A session that the test can cut off. Only ZooKeeper is behind a network.
    pub async fn through_a_proxy(&self, session: Duration) -> (Arc<dyn Tree>, Proxy) {
        let Self::ZooKeeper { chroot } = self else {
            panic!("an embedded store has no connections");
        };
        let proxy = Proxy::start(shared_zookeeper().port()).unwrap();
        let tree = connect(proxy.port(), chroot.clone(), session);
        ext::connected(&*tree).await.unwrap();
        (tree, proxy)
    }
}

/// Renders every record of a store, a line each.
async fn show(tree: &Arc<dyn Tree>) -> String {
    let mut lines = vec!["the store:".to_owned()];
    let mut paths = vec![TreePath::root()];
    while let Some(path) = paths.pop() {
        let Ok(children) = tree.list(&path).await else {
            lines.push(format!("  {path}: failed to list"));
            continue;
        };
        for (name, record) in children {
            let child = path.join(&name).unwrap();
            let data = String::from_utf8_lossy(&record.data);
            lines.push(format!("  {child} {data}"));
            paths.push(child);
        }
    }
    tree.close().await;
    lines.sort();
    lines.join("\n")
}

/// The server that all tests of a process share.
pub fn shared_zookeeper() -> &'static ZooKeeperServer {
    static SERVER: LazyLock<ZooKeeperServer> = LazyLock::new(|| ZooKeeperServer::start().unwrap());
    &SERVER
}

/// Does not wait for the connection.
#[must_use]
pub fn connect(port: u16, chroot: TreePath, session: Duration) -> Arc<dyn Tree> {
    let host: Host = format!("127.0.0.1:{port}").parse().unwrap();
    let mut options = Options::new(vec![host]);
    options.session_timeout = session;
    options.chroot = chroot;
    ZooKeeper::connect(options)
}
