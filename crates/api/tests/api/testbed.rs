//! A store with something of everything in it, and a webapp in front of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nodeyard_api::{
    Metrics, RenderedExplanation, RequestExplainer, StatusViews, WebappServer, WebappSources,
    webapp,
};
use nodeyard_model::{
    BuildKey, BuildState, ImageBuild, ImageName, ImageUpload, Label, Node, NodeId, NodeRequest,
    NodeState, PoolComponent, ProviderName, RequestId, RequestState, Timestamp, UploadState,
};
use nodeyard_store::embedded::Embedded;
use nodeyard_store::lock::LockGuard;
use nodeyard_store::registry::{self, Lifetime, Patience, Registration, Registry};
use nodeyard_store::{CreateMode, Tree, TreePath, ext};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(crate) use nodeyard_testbeds::until;

/// Long enough for a busy machine; reaching it means that something hangs.
pub(crate) const DEADLINE: Duration = Duration::from_secs(300);

pub(crate) fn at(seconds: f64) -> Timestamp {
    Timestamp::from_secs(seconds).unwrap()
}

pub(crate) fn provider(name: &str) -> ProviderName {
    ProviderName::new(name).unwrap()
}

/// A store of this process alone.
pub(crate) fn embedded() -> (Registry, Arc<Embedded>, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(directory.path()).unwrap();
    (Registry::new(store.session()), store, directory)
}

/// Nodes, requests, a pool and images. What is held stays with the fleet.
pub(crate) struct StoreFixture {
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) _lock: LockGuard,
    pub(crate) _pool: Registration,
}

impl StoreFixture {
    pub(crate) async fn create(registry: &Registry) -> Self {
        let mut request = NodeRequest::new(RequestState::Fulfilled, at(2.5));
        request.labels = vec!["small".into(), "large".into()];
        request.requestor = Some("zuul".into());
        request.relative_priority = 3;
        request.declined_by = vec!["a".into(), "b".into()];
        request.event_id = Some("e1".into());
        let lifetime = Lifetime::UntilDeleted;
        let requests = registry.requests();
        let (request_id, _) = requests.create(200, &request, lifetime).await.unwrap();
        let mut failed = NodeRequest::new(RequestState::Failed, at(2.5));
        failed.labels = vec!["unheard-of".into()];
        requests.create(100, &failed, lifetime).await.unwrap();

        let mut ready = node("cloud", &["small"], NodeState::Ready);
        ready.external_id = serde_json::from_str("\"server-1\"").unwrap();
        ready.public_ipv4 = Some("192.0.2.1".into());
        let mut held = node("cloud", &["small", "large"], NodeState::Hold);
        held.hold_job = Some("acme job".into());
        held.comment = Some("br\u{f6}ken \"<b>".into());
        held.az = Some("nova".into());
        held.allocated_to = Some(request_id.into());
        held.public_ipv6 = Some("2001:db8::1".into());
        held.connection_port = serde_json::from_str("{\"token\": \"hush\"}").unwrap();
        let old = node("gone.cloud", &["old.label"], NodeState::InUse);
        let mut nodes = Vec::new();
        for node in [&ready, &held, &old] {
            nodes.push(registry.nodes().create(node).await.unwrap().0);
        }
        let attempt = registry.nodes().lock(nodes[1], Patience::None).await;
        let lock = attempt.unwrap().held().unwrap().guard;

        let mut pool = PoolComponent::new(
            "np01".into(),
            "np01-PoolWorker.cloud-main-0".into(),
            "main".into(),
            provider("cloud"),
        );
        pool.supported_labels = ["small", "large"].map(Label::from).to_vec();
        let registration = registry.components().register_pool(&pool).unwrap();
        until("the pool is registered", async || {
            !registry.components().pools().await.unwrap().is_empty()
        })
        .await;

        images(registry).await;
        Self {
            nodes,
            _lock: lock,
            _pool: registration,
        }
    }
}

pub(crate) fn node(of: &str, labels: &[&str], state: NodeState) -> Node {
    let mut node = Node::new(state, at(1.5));
    node.provider = Some(provider(of));
    node.pool = Some("main".into());
    node.labels = labels.iter().map(|label| Label::from(*label)).collect();
    node
}

/// A ready one with an upload, one that is paused, one that is asked for and one that is being built.
async fn images(registry: &Registry) {
    let image = |name: &str| ImageName::new(name.to_owned()).unwrap();
    let images = registry.images();
    let key = BuildKey {
        image: image("debian"),
        build: "0a5c8c1e6e2f4d0f9c3b7a8d5e1f2a3b".parse().unwrap(),
    };
    let mut build = ImageBuild::new(BuildState::Ready, at(3.5));
    build.builder = Some("nb01".into());
    build.formats = ["qcow2", "raw"].into_iter().collect();
    images.create_build(&key, &build).await.unwrap();
    let upload = ImageUpload::new(UploadState::Ready, at(4.5));
    let cloud = provider("cloud");
    images.create_upload(&key, &cloud, &upload).await.unwrap();

    images.request_build(&image("asked")).await.unwrap();
    images.request_build(&image("under-way")).await.unwrap();
    let lock = TreePath::new("/nodepool/images/under-way/builds/lock").unwrap();
    ext::ensure_path(&**registry.tree(), &lock).await.unwrap();
    let contender = lock.join("0f__lock__0000000000").unwrap();
    create(registry.tree(), &contender, "builder").await;
    let key = BuildKey {
        image: image("under-way"),
        ..key
    };
    let build = ImageBuild::new(BuildState::Building, at(5.5));
    images.create_build(&key, &build).await.unwrap();
    let quiet = TreePath::new("/nodepool/images/quiet").unwrap();
    create(registry.tree(), &quiet, "").await;
    images.pause(&image("quiet")).await.unwrap();
}

pub(crate) async fn create(tree: &Arc<dyn Tree>, path: &TreePath, data: &'static str) {
    let data = Bytes::from_static(data.as_bytes());
    let created = tree.create(path, data, CreateMode::Persistent).await;
    created.unwrap();
}

/// A webapp that answers on a port of its own.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) views: StatusViews,
    pub(crate) metrics: Metrics,
    pub(crate) ready: watch::Sender<bool>,
    pub(crate) shutdown: CancellationToken,
    pub(crate) task: tokio::task::JoinHandle<()>,
}

impl TestServer {
    pub(crate) async fn start(registry: &Registry) -> Self {
        let records = registry::Views::open(registry).unwrap();
        let views = StatusViews::open(registry, records).unwrap();
        let metrics = Metrics::default();
        let (ready, is_ready) = watch::channel(false);
        let sources = WebappSources {
            explain: Arc::new(FakeExplainer),
            views: views.clone(),
            metrics: metrics.clone(),
            ready: is_ready,
        };
        let options = webapp::Options {
            address: "127.0.0.1".to_owned(),
            port: 0,
        };
        let webapp = WebappServer::bind(options, sources).await.unwrap();
        let address = webapp.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(webapp.run(shutdown.clone()));
        views.synced().await.unwrap();
        Self {
            address,
            views,
            metrics,
            ready,
            shutdown,
            task,
        }
    }
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
