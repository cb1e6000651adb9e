//! What statsd hears.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nodeyard_api::{Metrics, Statsd, StatusViews, statsd};
use nodeyard_model::{NodeState, layout};
use nodeyard_store::TreePath;
use nodeyard_store::election::Election;
use nodeyard_store::registry::{self, Registry};
use tokio::net::UdpSocket;
use tokio_util::sync::CancellationToken;

use crate::metrics::record;
use crate::testbed::{DEADLINE, StoreFixture, embedded, node};

/// A statsd that only listens.
pub(crate) struct FakeStatsd {
    socket: UdpSocket,
}

impl FakeStatsd {
    pub(crate) async fn open() -> Self {
        Self {
            socket: UdpSocket::bind("127.0.0.1:0").await.unwrap(),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.socket.local_addr().unwrap().port()
    }

    pub(crate) async fn statsd(&self) -> Statsd {
        let port = self.port().to_string();
        let options = statsd::Options::from_variables(Some("127.0.0.1"), Some(&port));
        Statsd::open(&options.unwrap().unwrap()).await.unwrap()
    }

    async fn lines(&self) -> Vec<String> {
        let mut datagram = vec![0; 65_536];
        let received = tokio::time::timeout(DEADLINE, self.socket.recv(&mut datagram));
        let length = received.await.expect("statsd hears nothing").unwrap();
        datagram.truncate(length);
        let text = String::from_utf8(datagram).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// Listens until a line has been heard; returns that and everything before it.
    pub(crate) async fn until(&self, wanted: impl Fn(&str) -> bool) -> Vec<String> {
        let mut heard = Vec::new();
        loop {
            let lines = self.lines().await;
            let done = lines.iter().any(|line| wanted(line));
            heard.extend(lines);
            if done {
                return heard;
            }
        }
    }

    /// The newest gauges about nodes and requests, once `wanted` is among them. Those come last in a report,
    /// so it listens to the end of the next one.
    pub(crate) async fn gauges(&self, wanted: &str) -> BTreeMap<String, String> {
        let is_last = |line: &str| line.contains(".addressable_requests:");
        let mut heard = self.until(|line| line == wanted).await;
        if !heard
            .iter()
            .rev()
            .take_while(|line| *line != wanted)
            .any(|line| is_last(line))
        {
            heard.extend(self.until(is_last).await);
        }
        let gauges = heard
            .iter()
            .filter_map(|line| line.strip_suffix("|g")?.split_once(':'));
        let gauges =
            gauges.filter(|(name, _)| name.contains(".nodes.") || is_last(&format!("{name}:")));
        gauges
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }
}

pub(crate) struct RunningReporter {
    pub(crate) ear: FakeStatsd,
    pub(crate) shutdown: CancellationToken,
    pub(crate) task: tokio::task::JoinHandle<()>,
}

pub(crate) async fn report(registry: &Registry) -> RunningReporter {
    let ear = FakeStatsd::open().await;
    let metrics = Metrics::new(Some(ear.statsd().await));
    let records = registry::Views::open(registry).unwrap();
    let views = StatusViews::open(registry, records).unwrap();
    let reporter = statsd::StatsdReporter::new(metrics, views, registry, "np02").unwrap();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(reporter.run(shutdown.clone()));
    RunningReporter {
        ear,
        shutdown,
        task,
    }
}

#[tokio::test]
async fn events_are_sent_under_nodepools_names() {
    let ear = FakeStatsd::open().await;
    record(&Metrics::new(Some(ear.statsd().await)));
    let heard = ear
        .until(|line| line.starts_with("nodepool.tenant_limits."))
        .await;
    assert_eq!(
        heard,
        [
            "nodepool.launch.provider.cloud.ready:42000.000000|ms",
            "nodepool.launch.provider.cloud.ready:1|c",
            "nodepool.launch.ready:42000.000000|ms",
            "nodepool.launch.ready:1|c",
            "nodepool.launch.provider.cloud.nova.ready:42000.000000|ms",
            "nodepool.launch.provider.cloud.nova.ready:1|c",
            "nodepool.launch.requestor.zuul_example_1.ready:42000.000000|ms",
            "nodepool.launch.requestor.zuul_example_1.ready:1|c",
            "nodepool.launch.provider.cloud.error.quota:1000.000000|ms",
            "nodepool.launch.provider.cloud.error.quota:1|c",
            "nodepool.launch.error.quota:1000.000000|ms",
            "nodepool.launch.error.quota:1|c",
            "nodepool.launch.provider.cloud.nova.error.quota:1000.000000|ms",
            "nodepool.launch.provider.cloud.nova.error.quota:1|c",
            "nodepool.launch.requestor.zuul_example_1.error.quota:1000.000000|ms",
            "nodepool.launch.requestor.zuul_example_1.error.quota:1|c",
            "nodepool.provider.cloud.leaked.instances:2|c",
            "nodepool.provider.cloud.max_servers:8|g",
            "nodepool.provider.endless.max_servers:inf|g",
            "nodepool.provider.left.max_servers:7|g",
            "nodepool.tenant_limits.acme_org_a.instances:9|g",
        ]
    );
}

#[tokio::test]
async fn the_leader_reports_all_providers_and_labels() {
    let (registry, _store, _directory) = embedded();
    let _fleet = StoreFixture::create(&registry).await;
    let reporting = report(&registry).await;
    let gauges = reporting.ear.gauges("nodepool.nodes.ready:1|g").await;
    let scopes = [
        "nodes",
        "provider.cloud.nodes",
        "provider.gone.cloud.nodes",
        "label.small.nodes",
        "label.large.nodes",
        "label.old.label.nodes",
    ];
    let mut names: BTreeSet<String> = scopes
        .iter()
        .flat_map(|scope| {
            NodeState::ALL
                .iter()
                .map(move |state| format!("nodepool.{scope}.{state}"))
        })
        .collect();
    names.insert("nodepool.provider.cloud.pool.main.addressable_requests".to_owned());
    assert_eq!(gauges.keys().cloned().collect::<BTreeSet<_>>(), names);
    let not_zero: BTreeMap<&str, &str> = gauges
        .iter()
        .filter(|(_, value)| *value != "0")
        .map(|(name, value)| (&**name, &**value))
        .collect();
    assert_eq!(
        not_zero,
        BTreeMap::from([
            ("nodepool.nodes.ready", "1"),
            ("nodepool.nodes.hold", "1"),
            ("nodepool.nodes.in-use", "1"),
            ("nodepool.provider.cloud.nodes.ready", "1"),
            ("nodepool.provider.cloud.nodes.hold", "1"),
            ("nodepool.provider.gone.cloud.nodes.in-use", "1"),
            ("nodepool.label.small.nodes.ready", "1"),
            ("nodepool.label.small.nodes.hold", "1"),
            ("nodepool.label.large.nodes.hold", "1"),
            ("nodepool.label.old.label.nodes.in-use", "1"),
            (
                "nodepool.provider.cloud.pool.main.addressable_requests",
                "1"
            ),
        ])
    );

    // A change is told, and the leadership is given back in the end.
    let another = node("cloud", &["small"], NodeState::Ready);
    registry.nodes().create(&another).await.unwrap();
    reporting
        .ear
        .until(|line| line == "nodepool.nodes.ready:2|g")
        .await;
    let election = TreePath::new(layout::STATS_ELECTION).unwrap();
    let election = Election::new(registry.locks(), election, "test");
    let candidates = election.candidates().await.unwrap();
    assert_eq!(candidates.len(), 1);
    let name = format!("np02-{}", std::process::id());
    assert!(format!("{candidates:?}").contains(&name), "{candidates:?}");
    reporting.shutdown.cancel();
    reporting.task.await.unwrap();
    assert!(election.candidates().await.unwrap().is_empty());
}

#[tokio::test]
async fn one_launcher_reports_and_another_takes_over() {
    let (registry, store, _directory) = embedded();
    let _fleet = StoreFixture::create(&registry).await;
    let first = report(&registry).await;
    first
        .ear
        .until(|line| line.starts_with("nodepool.nodes."))
        .await;
    let second = report(&Registry::new(store.session())).await;
    let election = TreePath::new(layout::STATS_ELECTION).unwrap();
    let election = Election::new(registry.locks(), election, "test");
    crate::testbed::until("both are candidates", async || {
        election.candidates().await.unwrap().len() == 2
    })
    .await;
    let mut datagram = [0; 2048];
    while let Ok(length) = second.ear.socket.try_recv(&mut datagram) {
        let text = String::from_utf8_lossy(&datagram[..length]);
        assert!(!text.contains("nodepool.nodes."), "two report: {text}");
    }
    first.shutdown.cancel();
    second
        .ear
        .until(|line| line.starts_with("nodepool.nodes."))
        .await;
    second.shutdown.cancel();
    second.task.await.unwrap();
}

#[tokio::test]
async fn an_unreachable_statsd_is_ignored() {
    let ear = FakeStatsd::open().await;
    let statsd = ear.statsd().await;
    let metrics = Metrics::new(Some(statsd));
    drop(ear);
    for _ in 0..100 {
        record(&metrics);
        tokio::time::sleep(Duration::ZERO).await;
    }
}
