//! Drivers and launchers for tests.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_config::{self as config, Config, Environment, Fake, Mode};
use nodeyard_driver::{Error, Poll};
use nodeyard_driver_common::DriverKinds;
use nodeyard_driver_fake::{Connector, FakeKind, Transport};
use nodeyard_driver_metastatic::MetastaticKind;
use nodeyard_driver_static::StaticKind;
use nodeyard_launcher::{
    Launcher, LauncherHandle, LauncherParts, LauncherTiming, NoLauncherEvents, Options,
};
use nodeyard_model::{Clock, Node, NodeId, RequestId};
use nodeyard_nodescan::{NetworkScanner, Scanner};
use nodeyard_plan::Policy;
use nodeyard_store::Tree;
use nodeyard_store::registry::{Registry, Views};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) use nodeyard_testbeds::eventually;
pub(crate) use nodeyard_testbeds::store::Store;

/// So long that only a hang exceeds it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// No simulated clouds, for tests of machines that exist already.
#[derive(Debug, Default)]
pub(crate) struct Drivers;

impl Connector for Drivers {
    fn connect(&self, provider: &str, _: &Fake) -> Result<Arc<dyn Transport>, Error> {
        Err(Error::permanent(format!(
            "no cloud {provider} in this test"
        )))
    }
}

/// Returns the drivers of tests, with these simulated clouds.
fn kinds(clouds: Arc<dyn Connector>) -> DriverKinds {
    let poll = Poll {
        least: Duration::from_millis(5),
        most: Duration::from_millis(50),
    };
    DriverKinds::default()
        .with(FakeKind::new(clouds).with_poll(poll))
        .with(MetastaticKind)
        .with(StaticKind::new(Arc::new(NetworkScanner::default())))
}

pub(crate) fn parse(text: &str) -> Arc<Config> {
    let main = (Path::new("nodepool.yaml"), text.as_bytes());
    let (config, problems) = config::load_bytes(main, None, &Environment::default(), Mode::Daemon);
    Arc::new(config.unwrap_or_else(|| panic!("{problems:?}")))
}

/// A launcher at work.
pub(crate) struct Running {
    pub(crate) handle: LauncherHandle,
    pub(crate) config: watch::Sender<Arc<Config>>,
    pub(crate) tree: Arc<dyn Tree>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), nodeyard_launcher::Error>>,
}

pub(crate) fn quick() -> LauncherTiming {
    LauncherTiming {
        pass: Duration::from_secs(5),
        cleanup: Duration::from_millis(500),
        delete_retry: Duration::from_millis(200),
        start_retry: Duration::from_millis(300),
        cloud_check: Duration::from_secs(2),
        departure_grace: Duration::from_millis(200),
        ..LauncherTiming::default()
    }
}

impl Running {
    pub(crate) async fn start(store: &Store, clouds: Arc<dyn Connector>, text: &str) -> Self {
        Self::start_on(store.session().await, clouds, text, quick()).await
    }

    pub(crate) async fn start_on(
        tree: Arc<dyn Tree>,
        clouds: Arc<dyn Connector>,
        text: &str,
        timing: LauncherTiming,
    ) -> Self {
        let scanner = Arc::new(NetworkScanner::default());
        Self::start_with(tree, clouds, scanner, text, timing).await
    }

    pub(crate) async fn start_with(
        tree: Arc<dyn Tree>,
        clouds: Arc<dyn Connector>,
        scanner: Arc<dyn Scanner>,
        text: &str,
        timing: LauncherTiming,
    ) -> Self {
        Self::start_with_kinds(tree, kinds(clouds), scanner, text, timing).await
    }

    pub(crate) async fn start_with_kinds(
        tree: Arc<dyn Tree>,
        drivers: DriverKinds,
        scanner: Arc<dyn Scanner>,
        text: &str,
        timing: LauncherTiming,
    ) -> Self {
        let (sender, config) = watch::channel(parse(text));
        let options = Options {
            hostname: "np01".into(),
            fqdn: "np01.example.com".into(),
            version: "0.1.0".into(),
            timing,
            policy: Policy::default(),
        };
        let parts = LauncherParts {
            views: Views::open(&Registry::new(Arc::clone(&tree))).unwrap(),
            tree: Arc::clone(&tree),
            config,
            drivers,
            scanner,
            events: Arc::new(NoLauncherEvents),
            clock: Clock::system(),
        };
        let (launcher, handle) = Launcher::new(options, parts);
        let stop = CancellationToken::new();
        let task = tokio::spawn(launcher.run(stop.clone()));
        Self {
            handle,
            config: sender,
            tree,
            stop,
            task,
        }
    }

    /// Stops it in order.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.task)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        self.tree.close().await;
    }

    /// Ends it as `kill -9` would, with its session.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
        self.tree.close().await;
    }
}

pub(crate) async fn nodes(registry: &Registry) -> Vec<(NodeId, Node)> {
    let nodes = registry.nodes().list().await.unwrap();
    nodes
        .into_iter()
        .map(|(id, stored)| (id, stored.value))
        .collect()
}

/// Returns the requests whose lock has contenders.
pub(crate) async fn locked_requests(registry: &Registry) -> Vec<RequestId> {
    let requests = registry.requests();
    let (ids, _) = requests.lock_dirs().await.unwrap();
    let mut locked = Vec::new();
    for id in ids {
        let dir = requests.lock_dir(id).await.unwrap();
        if dir.is_some_and(|stat| stat.num_children > 0) {
            locked.push(id);
        }
    }
    locked
}

/// Shows the log of a test that is run alone with `RUST_LOG` set.
pub(crate) fn logs() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_test_writer()
        .try_init();
}
