//! Records that make no sense: reported once, skipped, never deleted, and nothing that belongs to them is harmed.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use nodeyard_launcher::LauncherTiming;
use nodeyard_model::{
    BuildKey, ImageName, NodeId, NodeRequest, NodeState, ProviderName, RequestState, UploadKey,
    layout,
};
use nodeyard_store::registry::{Lifetime, Registry};
use nodeyard_store::{CreateMode, Tree, TreePath, Version, ext};
use tracing::Level;

use crate::bed::{Drivers, Running, Store, eventually, nodes, quick};
use crate::cloud::SMALL;
use crate::fake::{FakeCloud, PROVIDER, config, simulate};
use crate::leaks::system_id;
use crate::static_nodes;
use crate::zuul::{Zuul, now};

const BUILD: &str = "0123456789abcdef0123456789abcdef";

/// What is logged on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned();
        text.lines().map(str::to_owned).collect()
    }

    fn subscriber(&self) -> impl tracing::Subscriber + Send + Sync + use<> {
        let log = self.clone();
        tracing_subscriber::fmt()
            .with_max_level(Level::WARN)
            .with_ansi(false)
            .with_writer(move || log.clone())
            .finish()
    }
}

impl Write for Log {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(data)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

async fn put(tree: &dyn Tree, path: &TreePath, data: &[u8]) {
    ext::ensure_path(tree, &path.parent().unwrap())
        .await
        .unwrap();
    let data = Bytes::copy_from_slice(data);
    tree.create(path, data, CreateMode::Persistent)
        .await
        .unwrap();
}

/// Everything runs on one thread, whose log is checked at the end.
#[tokio::test]
async fn what_belongs_to_a_malformed_record_is_never_taken_for_a_leak() {
    let log = Log::default();
    let _logged = tracing::subscriber::set_default(log.subscriber());
    let store = Store::embedded();
    let mut options = simulate();
    options.quota.instances = 100;
    let cloud = FakeCloud::new(options);
    let zuul = Zuul::new(store.session().await);
    let timing = LauncherTiming {
        pass: Duration::from_millis(100),
        cloud_check: Duration::from_millis(100),
        ..quick()
    };
    let session = store.session().await;
    let drivers = Arc::clone(&cloud) as _;
    let launcher = Running::start_on(session, drivers, &config(2, SMALL), timing).await;
    let id = zuul.submit(&["small"]).await;
    let nodeset = zuul.accept(id).await;
    let system: &'static str = system_id(&zuul).await.leak();
    let tags = |of: &[(&'static str, &'static str)]| {
        let mut tags = of.to_vec();
        tags.push(("nodeyard_system_id", system));
        tags.push(("nodepool_provider_name", PROVIDER));
        tags
    };

    let deep = "[".repeat(10_000) + &"]".repeat(10_000);
    let huge = format!(
        r#"{{"state": 7, "state_time": 1, "comment": "{}"}}"#,
        "x".repeat(900_000)
    );
    let deep = format!(r#"{{"state": "ready", "state_time": 1, "comment": {deep}}}"#);
    let records: [(&'static str, &[u8]); 7] = [
        ("0000005001", b"not JSON"),
        ("0000005002", br#"{"state": 7, "state_time": "noon"}"#),
        ("0000005003", br#"{"state": "dreaming", "state_time": 1}"#),
        ("0000005004", huge.as_bytes()),
        ("0000005005", deep.as_bytes()),
        (
            "0000005006",
            b"{\"state\": \"ready\", \"comment\": \"\xff\"}",
        ),
        ("0000005007", b"null"),
    ];
    let path = |id: &str| TreePath::new(layout::node(id.parse().unwrap())).unwrap();
    for (id, data) in records {
        put(&*zuul.tree, &path(id), data).await;
        cloud.create(id, &tags(&[("nodepool_node_id", id)])).await;
    }
    let upload = UploadKey {
        build: BuildKey {
            image: ImageName::new("debian").unwrap(),
            build: BUILD.parse().unwrap(),
        },
        provider: ProviderName::new(PROVIDER).unwrap(),
        upload: "0000000001".parse().unwrap(),
    };
    let upload = TreePath::new(layout::upload(&upload)).unwrap();
    put(&*zuul.tree, &upload, b"{\"state\": []}").await;
    let image = |upload| tags(&[("nodepool_build_id", BUILD), ("nodepool_upload_id", upload)]);
    cloud.create_image("uploaded", &image("0000000001")).await;

    // These are leaks; an empty record is what a late lock left. When they are gone, so would be the others.
    put(&*zuul.tree, &path("0000006001"), b"").await;
    for id in ["0000006001", "0000006002"] {
        cloud.create(id, &tags(&[("nodepool_node_id", id)])).await;
    }
    cloud.create_image("leaked", &image("0000000002")).await;
    eventually("the leaks are gone", || async {
        let servers = cloud.servers().await;
        let images = cloud.images().await;
        let gone = !servers.iter().any(|name| name.starts_with("000000600"));
        (gone && !images.contains(&"leaked".to_owned())).then_some(())
    })
    .await;

    assert!(cloud.images().await.contains(&"uploaded".to_owned()));
    let servers = cloud.servers().await;
    for (id, data) in records {
        assert!(servers.iter().any(|name| name == id), "{id}: {servers:?}");
        let kept = zuul.tree.get(&path(id)).await.unwrap().data;
        assert_eq!(kept, data, "{id}");
    }
    let lines = log.lines();
    let paths = records.map(|(id, _)| path(id)).into_iter();
    for path in paths.chain([upload]) {
        let about = |line: &&String| line.contains(&format!("path={path} "));
        let reports: Vec<_> = lines.iter().filter(about).collect();
        assert_eq!(reports.len(), 1, "{path}: {reports:?}");
    }
    zuul.unlock(nodeset).await;
    launcher.stop().await;
}

/// Everything runs on one thread, whose log is checked at the end.
#[tokio::test]
async fn a_malformed_request_is_reported_once_and_stays_as_it_is() {
    let log = Log::default();
    let _logged = tracing::subscriber::set_default(log.subscriber());
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    // Nobody but the launcher follows the requests.
    let tree = store.session().await;
    let registry = Registry::new(Arc::clone(&tree));
    let requests = registry.requests();
    let deep = "[".repeat(10_000) + &"]".repeat(10_000);
    let deep = format!(r#"{{"state": "requested", "state_time": 1, "requestor_data": {deep}}}"#);
    let huge = format!(
        r#"{{"state": 7, "state_time": 1, "comment": "{}"}}"#,
        "x".repeat(900_000)
    );
    let records: [&[u8]; 7] = [
        b"not JSON",
        br#"{"state": "requested", "state_time": "noon"}"#,
        br#"{"state": "dreaming", "state_time": 1}"#,
        br#"{"state": "requested", "state_time": 1, "node_types": {"small": 1}}"#,
        huge.as_bytes(),
        deep.as_bytes(),
        b"{\"state\": \"requested\", \"requestor\": \"\xff\"}",
    ];
    let path = |number: usize| {
        let id = format!("100-{:010}", 5_000 + number);
        TreePath::new(layout::request(id.parse().unwrap())).unwrap()
    };
    // Half of them are there before the launcher, and all of them come before anybody else.
    for (number, data) in records.iter().enumerate().take(3) {
        put(&*tree, &path(number), data).await;
    }
    let timing = LauncherTiming {
        pass: Duration::from_millis(50),
        cloud_check: Duration::from_millis(50),
        ..quick()
    };
    let drivers = Arc::clone(&cloud) as _;
    let session = store.session().await;
    let launcher = Running::start_on(session, drivers, &config(4, SMALL), timing).await;
    for (number, data) in records.iter().enumerate().skip(3) {
        put(&*tree, &path(number), data).await;
    }
    for _ in 0..3 {
        let mut request = NodeRequest::new(RequestState::Requested, now());
        request.labels = vec!["small".into()];
        let created = requests.create(200, &request, Lifetime::UntilDeleted);
        let (id, _) = created.await.unwrap();
        eventually("the request is fulfilled", || async {
            let request = requests.get(id).await.unwrap().unwrap();
            (request.value.state == RequestState::Fulfilled).then_some(())
        })
        .await;
        cloud.listed_times(2).await;
    }
    launcher.stop().await;
    let lines = log.lines();
    for (number, data) in records.iter().enumerate() {
        let path = path(number);
        assert_eq!(tree.get(&path).await.unwrap().data, *data, "{path}");
        let about = |line: &&String| line.contains(&format!("path={path} "));
        let reports: Vec<_> = lines.iter().filter(about).collect();
        assert_eq!(reports.len(), 1, "{path}: {reports:?}");
        assert!(reports[0].len() < 2_000, "{path}: the record is not quoted");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_whose_record_is_malformed_gets_no_second_one() {
    let store = Store::embedded();
    let text = static_nodes::config(2, 1);
    let mut launcher = Running::start(&store, Arc::new(Drivers), &text).await;
    let zuul = Zuul::new(store.session().await);
    static_nodes::complete(&zuul.registry, 2).await;
    let id = zuul.submit(&["small"]).await;
    let nodeset = zuul.accept(id).await;
    let (node, held) = &nodeset.nodes[0];
    let machine = held.value.hostname.clone().unwrap();
    let path = TreePath::new(layout::node(*node)).unwrap();
    let record = zuul.tree.get(&path).await.unwrap().data;
    let record = String::from_utf8_lossy(&record).into_owned();
    let dreaming = record.replace("\"ready\"", "\"dreaming\"");
    assert_ne!(record, dreaming);
    let is_ready_again = async |used: NodeId| {
        zuul.gone(used).await;
        static_nodes::complete(&zuul.registry, 1).await;
    };

    // A launcher that knew whose it was, one that has to make it out, and one that cannot read it any more but knew.
    for (data, restart) in [
        (dreaming.as_str(), false),
        (dreaming.as_str(), true),
        ("dreaming", false),
    ] {
        let data = Bytes::copy_from_slice(data.as_bytes());
        zuul.tree.set(&path, data, Version::Any).await.unwrap();
        if restart {
            launcher.stop().await;
            launcher = Running::start(&store, Arc::new(Drivers), &text).await;
        }
        // The other machine is used and comes back: what was to be registered is by then.
        let id = zuul.submit(&["small"]).await;
        let used = zuul.run_job(id).await;
        is_ready_again(used[0]).await;
        let mut legible = nodes(&zuul.registry).await.into_iter();
        assert!(legible.all(|(_, node)| node.hostname.as_ref() != Some(&machine)));
    }
    assert!(zuul.tree.stat(&path).await.unwrap().is_some());

    // When it goes, the machine is free.
    ext::delete_recursive(&*zuul.tree, &path).await.unwrap();
    static_nodes::complete(&zuul.registry, 2).await;
    drop(nodeset);
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ready_node_that_becomes_malformed_is_not_given_away() {
    let store = Store::embedded();
    let text = static_nodes::config(2, 1);
    let launcher = Running::start(&store, Arc::new(Drivers), &text).await;
    let zuul = Zuul::new(store.session().await);
    static_nodes::complete(&zuul.registry, 2).await;
    let (first, before) = nodes(&zuul.registry).await.remove(0);
    let path = TreePath::new(layout::node(first)).unwrap();
    let data = Bytes::from_static(b"{}");
    zuul.tree.set(&path, data, Version::Any).await.unwrap();
    for _ in 0..3 {
        let id = zuul.submit(&["small"]).await;
        let mut nodeset = zuul.accept(id).await;
        assert_ne!(nodeset.nodes[0].1.value.hostname, before.hostname);
        zuul.set_state(&mut nodeset, NodeState::Used).await;
        zuul.unlock(nodeset).await;
    }
    assert_eq!(zuul.tree.get(&path).await.unwrap().data, "{}");
    launcher.stop().await;
}
