//! The fixture: a store, a launcher with simulated clouds, a keeper, and a clock that can be stepped.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nodeyard_config::{self as config, Environment, Mode};
use nodeyard_launcher::{
    Launcher, LauncherParts, LauncherTiming, NoLauncherEvents, Options as LauncherOptions,
};
use nodeyard_lease::{
    ExplainFailure, LeaseDependencies, LeaseId, LeaseKeeper, LeasePhase, LeaseSpec, LeaseStatus,
    Leases, Lessee, NoExplanations, Options,
};
use nodeyard_model::{Clock, Label, NodeId, layout, now};
use nodeyard_nodescan::NetworkScanner;
use nodeyard_store::lock::Locks;
use nodeyard_store::registry::{Registry, Views};
use nodeyard_store::{Tree, TreePath, Version};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::cloud::{self, Clouds};

pub(crate) use nodeyard_testbeds::eventually;
pub(crate) use nodeyard_testbeds::store::Store;

/// A timeout that only a hang exceeds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

/// The system's time with an offset. Cloning is cheap.
#[derive(Debug, Clone, Default)]
pub(crate) struct Time(Arc<AtomicU64>);

impl Time {
    pub(crate) fn jump(&self, by: Duration) {
        self.0.fetch_add(by.as_secs(), Ordering::SeqCst);
    }

    fn clock(&self) -> Clock {
        let ahead = Arc::clone(&self.0);
        Clock::new(move || {
            let ahead = Duration::from_secs(ahead.load(Ordering::SeqCst));
            now() + ahead
        })
    }
}

/// Waits until the lease has its nodes, or will not get any.
pub(crate) async fn wait_settled(leases: &Leases, caller: &Lessee, id: LeaseId) -> LeaseStatus {
    let mut changes = leases.changes();
    loop {
        let status = leases.get(caller, id).await.unwrap();
        if status.lease.phase.is_settled() {
            return status;
        }
        changes.next().await.unwrap();
    }
}

/// A running service.
pub(crate) struct Running<E> {
    tree: Arc<dyn Tree>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), E>>,
}

impl<E: std::fmt::Debug + Send + 'static> Running<E> {
    fn start(
        tree: Arc<dyn Tree>,
        run: impl FnOnce(CancellationToken) -> JoinHandle<Result<(), E>>,
    ) -> Self {
        let stop = CancellationToken::new();
        let task = run(stop.clone());
        Self { tree, stop, task }
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        let ended = tokio::time::timeout(PATIENCE, self.task).await.unwrap();
        ended.unwrap().unwrap();
        self.tree.close().await;
    }

    /// Aborts the service and closes its session, as `kill -9` would.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
        self.tree.close().await;
    }
}

pub(crate) async fn launcher(
    store: &Store,
    clouds: &Arc<Clouds>,
    text: &str,
) -> Running<nodeyard_launcher::Error> {
    let tree = store.session().await;
    let main = (Path::new("nodepool.yaml"), text.as_bytes());
    let (config, problems) = config::load_bytes(main, None, &Environment::default(), Mode::Daemon);
    let config = Arc::new(config.unwrap_or_else(|| panic!("{problems:?}")));
    let options = LauncherOptions {
        hostname: "np01".into(),
        fqdn: "np01.example.com".into(),
        version: "0.1.0".into(),
        timing: LauncherTiming {
            cleanup: Duration::from_millis(500),
            delete_retry: Duration::from_millis(200),
            ..LauncherTiming::default()
        },
        policy: nodeyard_plan::Policy::default(),
    };
    let parts = LauncherParts {
        views: Views::open(&Registry::new(Arc::clone(&tree))).unwrap(),
        tree: Arc::clone(&tree),
        config: watch::channel(config).1,
        drivers: cloud::kinds(clouds),
        scanner: Arc::new(NetworkScanner::default()),
        events: Arc::new(NoLauncherEvents),
        clock: Clock::system(),
    };
    let (launcher, _) = Launcher::new(options, parts);
    Running::start(tree, |stop| tokio::spawn(launcher.run(stop)))
}

pub(crate) fn leases(tree: &Arc<dyn Tree>, time: &Time) -> Leases {
    leases_with(tree, time, Arc::new(NoExplanations))
}

pub(crate) fn leases_with(
    tree: &Arc<dyn Tree>,
    time: &Time,
    explain: Arc<dyn ExplainFailure>,
) -> Leases {
    let dependencies = LeaseDependencies {
        views: Views::open(&Registry::new(Arc::clone(tree))).unwrap(),
        tree: Arc::clone(tree),
        clock: time.clock(),
        explain,
    };
    Leases::open(dependencies).unwrap()
}

/// Returns options of a keeper that ends leases as soon as they are overdue, also after a step of the clock.
pub(crate) fn options() -> Options {
    Options {
        // A step of the clock wakes no timer.
        pass: Duration::from_millis(100),
        renewal_window: Duration::ZERO,
        ..Options::new("test")
    }
}

/// A process with a keeper and an interface for lessees.
pub(crate) struct Keeping {
    pub(crate) leases: Leases,
    locks: Locks,
    pub(crate) service: Running<nodeyard_lease::KeeperError>,
}

impl Keeping {
    pub(crate) fn start(tree: Arc<dyn Tree>, time: &Time) -> Self {
        let leases = leases(&tree, time);
        Self::start_with(tree, leases, options())
    }

    pub(crate) fn start_with(tree: Arc<dyn Tree>, leases: Leases, options: Options) -> Self {
        let keeper = LeaseKeeper::new(options, &leases);
        Self {
            leases,
            locks: Locks::new(Arc::clone(&tree)),
            service: Running::start(tree, |stop| tokio::spawn(keeper.run(stop))),
        }
    }

    /// Returns true if this keeper is the leader.
    pub(crate) async fn is_working(&self) -> bool {
        let election = TreePath::new(layout::LEASES_ELECTION).unwrap();
        let candidates = self.locks.lock(election).contenders().await.unwrap();
        let session = self.locks.tree().session().borrow().id();
        candidates
            .first()
            .is_some_and(|first| first.session == session)
    }

    pub(crate) async fn until_working(&self) {
        eventually("the keeper works", || async {
            self.is_working().await.then_some(())
        })
        .await;
    }
}

/// A store with a launcher and a keeper.
pub(crate) struct Yard {
    pub(crate) store: Store,
    pub(crate) time: Time,
    pub(crate) clouds: Arc<Clouds>,
    pub(crate) text: String,
    pub(crate) launcher: Running<nodeyard_launcher::Error>,
    pub(crate) keeping: Keeping,
    /// For reading the records.
    pub(crate) records: Registry,
}

impl Yard {
    pub(crate) async fn start(store: Store, text: String) -> Self {
        logs();
        let time = Time::default();
        let clouds = Clouds::new();
        let launcher = launcher(&store, &clouds, &text).await;
        let keeping = Keeping::start(store.session().await, &time);
        let records = Registry::new(store.session().await);
        Self {
            store,
            time,
            clouds,
            text,
            launcher,
            keeping,
            records,
        }
    }

    pub(crate) fn leases(&self) -> &Leases {
        &self.keeping.leases
    }

    /// Creates a lease and waits until it is settled.
    pub(crate) async fn lease(&self, caller: &Lessee, ask: &LeaseSpec) -> LeaseStatus {
        let asked = self.leases().create(caller, ask, None).await.unwrap();
        self.wait_settled(caller, asked.id).await
    }

    pub(crate) async fn wait_settled(&self, caller: &Lessee, id: LeaseId) -> LeaseStatus {
        let settled = wait_settled(self.leases(), caller, id);
        tokio::time::timeout(PATIENCE, settled)
            .await
            .expect("a lease does not wait for ever")
    }

    pub(crate) async fn ended(&self, caller: &Lessee, id: nodeyard_lease::LeaseId) -> LeaseStatus {
        eventually("the lease ends", || async {
            let status = self.leases().get(caller, id).await.unwrap();
            (status.lease.phase == LeasePhase::Ended).then_some(status)
        })
        .await
    }

    /// Breaks the lock of a node.
    pub(crate) async fn take_away(&self, node: NodeId) {
        let lock = self.records.nodes().lock_of(node).unwrap();
        let holder = &lock.contenders().await.unwrap()[0];
        let tree = self.records.tree();
        tree.delete(&holder.path, Version::Any).await.unwrap();
    }

    /// Waits until there are no nodes, requests and servers, and all leases have ended.
    pub(crate) async fn nothing_is_left(&self) {
        nothing_is_left(&self.records, &self.clouds).await;
        let admin = admin();
        eventually("every lease has ended", || async {
            let leases = self.leases().list(&admin);
            let ended = |status: &LeaseStatus| status.lease.phase == LeasePhase::Ended;
            leases.iter().all(ended).then_some(())
        })
        .await;
    }

    pub(crate) async fn stop(self) {
        self.keeping.service.stop().await;
        self.launcher.stop().await;
        self.records.tree().close().await;
    }
}

pub(crate) async fn nothing_is_left(records: &Registry, clouds: &Clouds) {
    eventually("no node, request or server is left", || async {
        let nodes = records.nodes().list().await.unwrap();
        let requests = records.requests().list().await.unwrap();
        let servers = clouds.servers().await;
        (nodes.is_empty() && requests.is_empty() && servers == 0).then_some(())
    })
    .await;
}

pub(crate) fn ask(labels: &[&str]) -> LeaseSpec {
    LeaseSpec::new(labels.iter().copied().map(Label::from).collect(), HOUR)
}

pub(crate) fn caller(tenant: &str) -> Lessee {
    Lessee {
        name: format!("somebody of {tenant}").into(),
        tenant: Some(tenant.into()),
    }
}

/// Returns a lessee with access to all tenants.
pub(crate) fn admin() -> Lessee {
    Lessee {
        name: "admin".into(),
        tenant: None,
    }
}

/// Prints the log if `RUST_LOG` is set.
pub(crate) fn logs() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_test_writer()
        .try_init();
}
