//! Drivers and launchers for tests.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_config::{self as config, Config, Environment, Mode};
use nodeyard_driver::{self as driver, Driver};
use nodeyard_driver_static::StaticDriver;
use nodeyard_launcher::{
    DriverFactory, Handle, Launcher, NoEvents, Options, Parts, Surroundings, Timing,
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

/// Makes the drivers of tests.
#[derive(Debug, Default)]
pub(crate) struct Drivers;

impl DriverFactory for Drivers {
    fn make(
        &self,
        provider: &config::Provider,
        around: Surroundings<'_>,
    ) -> Result<Arc<dyn Driver>, driver::Error> {
        match &provider.driver {
            config::Driver::Static(section) => Ok(Arc::new(StaticDriver::new(
                around.owner.provider,
                section,
                Arc::new(NetworkScanner::default()),
            ))),
            other => Err(driver::Error::permanent(format!(
                "no {} in tests",
                other.name()
            ))),
        }
    }
}

pub(crate) fn parse(text: &str) -> Arc<Config> {
    let main = (Path::new("nodepool.yaml"), text.as_bytes());
    let (config, problems) = config::load_bytes(main, None, &Environment::default(), Mode::Daemon);
    Arc::new(config.unwrap_or_else(|| panic!("{problems:?}")))
}

/// A launcher at work.
pub(crate) struct Running {
    pub(crate) handle: Handle,
    pub(crate) config: watch::Sender<Arc<Config>>,
    pub(crate) tree: Arc<dyn Tree>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), nodeyard_launcher::Error>>,
}

pub(crate) fn quick() -> Timing {
    Timing {
        pass: Duration::from_secs(5),
        cleanup: Duration::from_millis(500),
        delete_retry: Duration::from_millis(200),
        start_retry: Duration::from_millis(300),
        cloud_check: Duration::from_secs(2),
        departure_grace: Duration::from_millis(200),
        ..Timing::default()
    }
}

impl Running {
    pub(crate) async fn start(store: &Store, drivers: Arc<dyn DriverFactory>, text: &str) -> Self {
        Self::start_on(store.session().await, drivers, text, quick()).await
    }

    pub(crate) async fn start_on(
        tree: Arc<dyn Tree>,
        drivers: Arc<dyn DriverFactory>,
        text: &str,
        timing: Timing,
    ) -> Self {
        let scanner = Arc::new(NetworkScanner::default());
        Self::start_with(tree, drivers, scanner, text, timing).await
    }

    pub(crate) async fn start_with(
        tree: Arc<dyn Tree>,
        drivers: Arc<dyn DriverFactory>,
        scanner: Arc<dyn Scanner>,
        text: &str,
        timing: Timing,
    ) -> Self {
        let (sender, config) = watch::channel(parse(text));
        let options = Options {
            hostname: "np01".into(),
            fqdn: "np01.example.com".into(),
            version: "0.1.0".into(),
            timing,
            policy: Policy::default(),
        };
        let parts = Parts {
            views: Views::open(&Registry::new(Arc::clone(&tree))).unwrap(),
            tree: Arc::clone(&tree),
            config,
            drivers,
            scanner,
            events: Arc::new(NoEvents),
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

/// The requests whose lock somebody has or waits for.
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
