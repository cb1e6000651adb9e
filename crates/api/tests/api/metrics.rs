//! All names and help texts of Prometheus' metrics, with values.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_api::metrics::LaunchSample;
use nodeyard_api::{LaunchOutcome, Metrics};
use nodeyard_model::{Limits, ResourceName};
use nodeyard_reconcile::{Backoff, Options, WorkQueue};
use nodeyard_store::TreePath;
use nodeyard_testbeds::checkout;

use crate::http::get;
use crate::testbed::{StoreFixture, TestServer, create, embedded, provider};

/// A bit of everything.
pub(crate) fn record(metrics: &Metrics) {
    let cloud = provider("cloud");
    for (result, seconds) in [(LaunchOutcome::Ready, 42), (LaunchOutcome::Quota, 1)] {
        metrics.record_launch(LaunchSample {
            provider: &cloud,
            az: Some("nova"),
            requestor: Some("zuul.example:1"),
            result,
            duration: Duration::from_secs(seconds),
        });
    }
    metrics.record_request_accepted(&cloud, Duration::from_millis(3));
    metrics.record_request_fulfilled(&cloud, Duration::from_secs(43));
    metrics.record_request_failed();
    metrics.record_leaked(&cloud, "instances", 2);
    let limits = |instances: i64| Limits::from_iter([(ResourceName::INSTANCES, instances)]);
    let pools = [("main".into(), limits(5)), ("other".into(), limits(3))];
    metrics.set_provider_limits(&cloud, BTreeMap::from(pools));
    let unlimited = [
        ("main".into(), limits(5)),
        ("free".into(), Limits::unlimited()),
    ];
    metrics.set_provider_limits(&provider("endless"), BTreeMap::from(unlimited));
    metrics.set_provider_limits(
        &provider("left"),
        BTreeMap::from([("main".into(), limits(7))]),
    );
    metrics.set_provider_limits(&provider("left"), BTreeMap::new());
    metrics.set_tenant_limits(BTreeMap::from([("acme.org:a".into(), limits(9))]));
    let queue = WorkQueue::new(Options {
        name: "leases",
        concurrency: 1,
        backoff: Backoff {
            first: Duration::ZERO,
            max: Duration::ZERO,
        },
        grace: Duration::ZERO,
    });
    queue.add("a lease");
    metrics.add_queue("leases", Arc::new(queue));
}

#[tokio::test]
async fn metrics_match_the_golden_file() {
    let (registry, _store, _directory) = embedded();
    let _fleet = StoreFixture::create(&registry).await;
    let broken = TreePath::new("/nodepool/nodes/0000000009").unwrap();
    create(registry.tree(), &broken, "{").await;
    let served = TestServer::start(&registry).await;
    record(&served.metrics);
    let page = get(served.address, "/metrics", &[]).await;
    assert_eq!(
        page.header("content-type"),
        "text/plain; version=0.0.4; charset=utf-8"
    );
    assert_golden("metrics.txt", &page.body);
}

/// Compares a page with the file that has it.
pub(crate) fn assert_golden(file: &str, shown: &str) {
    let shown = shown.replace(env!("CARGO_PKG_VERSION"), "VERSION");
    let golden = checkout().join("crates/api/tests/golden");
    let golden = golden.join(file);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&golden, &shown).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap();
    assert_eq!(
        shown,
        expected,
        "UPDATE_GOLDEN=1 rewrites {}",
        golden.display()
    );
}

#[tokio::test]
async fn ids_are_not_used_as_labels() {
    let (registry, _store, _directory) = embedded();
    let fleet = StoreFixture::create(&registry).await;
    let served = TestServer::start(&registry).await;
    record(&served.metrics);
    let text = served.metrics.exposition(&served.views);
    for id in &fleet.nodes {
        assert!(!text.contains(&id.to_string()));
    }
    for outside in ["200-0000000000", "unheard-of", "zuul", "nova", "server-1"] {
        assert!(!text.contains(outside), "{outside}");
    }
}
