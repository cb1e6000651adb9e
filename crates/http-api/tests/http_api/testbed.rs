//! A store, an API in front of it, and everything that a test does to them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_api::{RenderedExplanation, RequestExplainer, StatusViews};
use nodeyard_config::{Config, Environment, Mode, Port, load_bytes};
use nodeyard_http_api::{ApiSources, HttpApi, LocalToken};
use nodeyard_lease::{LeaseDependencies, LeaseKeeper, Leases, NoExplanations, Options};
use nodeyard_model::{Clock, Label, Node, NodeState, ProviderName, RequestId, Timestamp};
use nodeyard_store::Tree;
use nodeyard_store::embedded::Embedded;
use nodeyard_store::registry::{self, Registry};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::client::Client;

pub(crate) use nodeyard_testbeds::until;

/// Long enough for a busy machine; reaching it means that something hangs.
pub(crate) const DEADLINE: Duration = Duration::from_secs(300);

pub(crate) const READER: &str = "the-token-of-a-reader";
pub(crate) const ALICE: &str = "the-token-of-alice";
pub(crate) const BOB: &str = "the-token-of-bob";
pub(crate) const ACME: &str = "the-token-of-tenant-acme";
pub(crate) const OTHER: &str = "the-token-of-tenant-other";
pub(crate) const OPERATOR: &str = "the-token-of-an-operator";
pub(crate) const ADMIN: &str = "the-token-of-an-admin";

const CONFIGURATION: &str = r"
labels: [{name: small, min-ready: 2}, {name: a/b}]
diskimages: [{name: debian}, {name: quiet, pause: true}]
providers:
  - name: cloud
    driver: fake
    cloud: fake
    diskimages: [{name: debian}]
    pools:
      - name: main
        labels: [{name: small, diskimage: debian, min-ram: 1}]
api:
  rate-limit: 0
  tokens:
    - {name: reader, token: the-token-of-a-reader, right: read}
    - {name: alice, token: the-token-of-alice, right: request}
    - {name: bob, token: the-token-of-bob, right: request}
    - {name: acme, token: the-token-of-tenant-acme, right: request, tenant: acme}
    - {name: other, token: the-token-of-tenant-other, right: operate, tenant: other}
    - {name: operator, token: the-token-of-an-operator, right: operate}
    - {name: admin, token: the-token-of-an-admin, right: admin}
    - {name: old, token: the-token-of-old, right: admin, expires: 2020-01-31}
";

pub(crate) fn configuration(more: &str) -> Config {
    let text = format!("{CONFIGURATION}{more}");
    let main = (Path::new("nodepool.yaml"), text.as_bytes());
    let (config, problems) = load_bytes(main, None, &Environment::default(), Mode::Daemon);
    let mut config = config.unwrap_or_else(|| panic!("{problems:?}"));
    config.api.port = Port(0);
    config
}

/// A store of this process alone.
pub(crate) struct Store {
    pub(crate) engine: Arc<Embedded>,
    pub(crate) directory: TempDir,
}

impl Store {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let engine = Embedded::open(directory.path()).unwrap();
        Self { engine, directory }
    }
}

/// An API that answers on a port of its own. It ends with the value.
pub(crate) struct Testbed {
    pub(crate) registry: Registry,
    pub(crate) address: SocketAddr,
    pub(crate) config: watch::Sender<Arc<Config>>,
    pub(crate) shutdown: CancellationToken,
    pub(crate) task: Option<tokio::task::JoinHandle<()>>,
    _store: Option<Store>,
}

impl Testbed {
    pub(crate) async fn new() -> Self {
        Self::with("").await
    }

    /// With more lines of configuration.
    pub(crate) async fn with(more: &str) -> Self {
        let store = Store::new();
        let mut testbed = Self::on(store.engine.session(), configuration(more), None).await;
        testbed._store = Some(store);
        testbed
    }

    pub(crate) async fn on(tree: Arc<dyn Tree>, config: Config, local: Option<LocalToken>) -> Self {
        let mut sources = sources(tree, config.clone(), local);
        let (sender, config) = watch::channel(Arc::new(config));
        sources.config = config;
        let (registry, views) = (sources.registry.clone(), sources.views.clone());
        let keeper = LeaseKeeper::new(Options::new("test"), &sources.leases);
        let api = HttpApi::bind(sources).await.unwrap();
        let address = api.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        let task = tokio::spawn(async move {
            let (_, kept) = tokio::join!(api.run(stop.clone()), keeper.run(stop));
            kept.unwrap();
        });
        views.synced().await.unwrap();
        Self {
            registry,
            address,
            config: sender,
            shutdown,
            task: Some(task),
            _store: None,
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.address)
    }

    pub(crate) fn by(&self, token: &str) -> Client {
        self.client().with_token(token)
    }
}

/// What an API is made from.
pub(crate) fn sources(
    tree: Arc<dyn Tree>,
    config: Config,
    local: Option<LocalToken>,
) -> ApiSources {
    let registry = Registry::new(Arc::clone(&tree));
    let records = registry::Views::open(&registry).unwrap();
    let parts = LeaseDependencies {
        tree,
        views: records.clone(),
        clock: Clock::system(),
        explain: Arc::new(NoExplanations),
    };
    ApiSources {
        views: StatusViews::open(&registry, records).unwrap(),
        leases: Leases::open(parts).unwrap(),
        config: watch::channel(Arc::new(config)).1,
        explain: Arc::new(FakeExplainer),
        ready: watch::channel(true).1,
        local_token: local,
        registry,
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

pub(crate) fn at(seconds: f64) -> Timestamp {
    Timestamp::from_secs(seconds).unwrap()
}

pub(crate) fn node(label: &str, state: NodeState) -> Node {
    let mut node = Node::new(state, at(1.5));
    node.provider = Some(ProviderName::new("cloud").unwrap());
    node.pool = Some("main".into());
    node.labels = vec![Label::from(label)];
    node
}

/// Explains one request and knows no other.
#[derive(Debug)]
struct FakeExplainer;

#[async_trait::async_trait]
impl RequestExplainer for FakeExplainer {
    async fn explain(&self, request: RequestId) -> Option<RenderedExplanation> {
        (request.to_string() == "200-0000000007").then(|| RenderedExplanation {
            text: "it waits for room\n".to_owned(),
            json: r#"{"next": "room"}"#.to_owned(),
        })
    }
}
