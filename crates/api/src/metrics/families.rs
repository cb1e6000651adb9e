//! The Prometheus metrics of a launcher.

use std::collections::BTreeMap;

use nodeyard_model::ProviderName;
use nodeyard_store::Session;
use nodeyard_store::view::{Shape, View};

use super::LauncherCounters;
use super::exposition::{Exposition, MetricType};
use super::histogram::Histogram;
use crate::counts::RecordCounts;
use crate::views::StatusViews;

pub(super) fn all(
    counters: &LauncherCounters,
    counts: &RecordCounts,
    views: &StatusViews,
) -> String {
    let mut exposition = Exposition::default();
    write_gauges(&mut exposition, counts);
    write_counters(&mut exposition, counters);
    write_limits(&mut exposition, counters);
    write_store(&mut exposition, views);
    write_queues(&mut exposition, counters);
    exposition.build_info();
    exposition.finish()
}

fn write_gauges(exposition: &mut Exposition, counts: &RecordCounts) {
    let mut nodes = exposition.family(
        MetricType::Gauge,
        "nodeyard_nodes",
        "Nodes of a provider in a state.",
    );
    for (provider, counts) in &counts.by_provider {
        for (state, count) in counts.iter() {
            let labels = [("provider", provider.as_str()), ("state", state.as_str())];
            nodes.sample(&labels, count);
        }
    }
    let mut nodes = exposition.family(
        MetricType::Gauge,
        "nodeyard_label_nodes",
        "Nodes with a label in a state; a node with several labels counts for each.",
    );
    for (label, counts) in &counts.by_label {
        for (state, count) in counts.iter() {
            let labels = [("label", label.as_str()), ("state", state.as_str())];
            nodes.sample(&labels, count);
        }
    }
    let mut requests = exposition.family(
        MetricType::Gauge,
        "nodeyard_requests",
        "Node requests in a state.",
    );
    for (state, count) in &counts.requests {
        requests.sample(&[("state", state.as_str())], count);
    }
    let mut addressable = exposition.family(
        MetricType::Gauge,
        "nodeyard_pool_addressable_requests",
        "Node requests in any state whose labels a pool offers, all of them.",
    );
    for ((provider, pool), count) in &counts.addressable {
        let labels = [("provider", provider.as_str()), ("pool", pool.as_str())];
        addressable.sample(&labels, count);
    }
}

fn write_counters(exposition: &mut Exposition, counters: &LauncherCounters) {
    let mut launches = exposition.family(
        MetricType::Counter,
        "nodeyard_launches_total",
        "Attempts of this launcher to launch a node, by result.",
    );
    for ((provider, result), count) in &counters.launches {
        let labels = [("provider", provider.as_str()), ("result", result.as_str())];
        launches.sample(&labels, count);
    }
    write_histograms(
        exposition,
        "nodeyard_launch_seconds",
        "How long launches took that ended with a ready node.",
        &counters.launch_times,
    );
    write_histograms(
        exposition,
        "nodeyard_request_wait_seconds",
        "How long requests waited from their creation until this launcher accepted them.",
        &counters.waits,
    );
    write_histograms(
        exposition,
        "nodeyard_request_fulfil_seconds",
        "How long requests took from their creation until this launcher had fulfilled them.",
        &counters.fulfilments,
    );
    exposition
        .family(
            MetricType::Counter,
            "nodeyard_requests_failed_total",
            "Requests that this launcher has marked as failed.",
        )
        .sample(&[], counters.failed_requests);
    let mut leaked = exposition.family(
        MetricType::Counter,
        "nodeyard_leaked_total",
        "Resources without a record that this launcher has removed from a cloud.",
    );
    for ((provider, metric_type), count) in &counters.leaked {
        leaked.sample(
            &[("provider", provider.as_str()), ("kind", metric_type)],
            count,
        );
    }
}

fn write_histograms(
    exposition: &mut Exposition,
    name: &'static str,
    help: &str,
    counters: &BTreeMap<ProviderName, Histogram>,
) {
    let mut family = exposition.family(MetricType::Histogram, name, help);
    for (provider, histogram) in counters {
        family.histogram(&[("provider", provider.as_str())], histogram);
    }
}

fn write_limits(exposition: &mut Exposition, counters: &LauncherCounters) {
    let mut pools = exposition.family(
        MetricType::Gauge,
        "nodeyard_pool_limit",
        "How much of a resource a pool may use; what is not limited is not listed.",
    );
    for (provider, of_pools) in &counters.limits {
        for (pool, limits) in of_pools {
            for (resource, limit) in limits.iter() {
                let labels = [
                    ("provider", provider.as_str()),
                    ("pool", pool.as_str()),
                    ("resource", resource.as_str()),
                ];
                pools.sample(&labels, limit);
            }
        }
    }
    let mut tenants = exposition.family(
        MetricType::Gauge,
        "nodeyard_tenant_limit",
        "How much of a resource a tenant may use.",
    );
    for (tenant, limits) in &counters.tenant_limits {
        for (resource, limit) in limits.iter() {
            let labels = [("tenant", tenant.as_str()), ("resource", resource.as_str())];
            tenants.sample(&labels, limit);
        }
    }
}

fn write_store(exposition: &mut Exposition, views: &StatusViews) {
    let session = match *views.session.borrow() {
        Session::Connecting => "connecting",
        Session::Connected(_) => "connected",
        Session::Suspended(_) => "suspended",
        Session::Closed => "closed",
    };
    let mut family = exposition.family(
        MetricType::Gauge,
        "nodeyard_store_session",
        "1 for the state that the session with the store is in.",
    );
    for state in ["connecting", "connected", "suspended", "closed"] {
        family.sample(&[("state", state)], u8::from(state == session));
    }

    exposition
        .family(
            MetricType::Gauge,
            "nodeyard_store_unanswered_requests",
            "Requests to the servers of the store that are not answered yet.",
        )
        .sample(&[], views.tree.unanswered());
    let views = [
        ("nodes", ViewStatus::of(&views.nodes)),
        ("requests", ViewStatus::of(&views.requests)),
        ("pools", ViewStatus::of(&views.pools)),
        ("images", ViewStatus::of(&views.images)),
    ];
    let mut current = exposition.family(
        MetricType::Gauge,
        "nodeyard_view_current",
        "1 while the copy of a part of the store follows its changes, 0 while it may be old.",
    );
    for (view, status) in &views {
        current.sample(&[("view", view)], u8::from(status.current));
    }
    let mut backlog = exposition.family(
        MetricType::Gauge,
        "nodeyard_view_backlog",
        "Changes of a part of the store that its copy does not show yet.",
    );
    for (view, status) in &views {
        backlog.sample(&[("view", view)], status.backlog);
    }
    let mut flaws = exposition.family(
        MetricType::Gauge,
        "nodeyard_malformed_records",
        "Records of the store that make no sense and are ignored; the log names them.",
    );
    for (view, status) in &views {
        flaws.sample(&[("view", view)], status.flaws);
    }
}

fn write_queues(exposition: &mut Exposition, counters: &LauncherCounters) {
    let mut keys = exposition.family(
        MetricType::Gauge,
        "nodeyard_queue_keys",
        "Keys of a work queue by state; those whose last run failed count as failing as well.",
    );
    for (queue, counted) in &counters.queues {
        let counts = counted.counts();
        for (state, count) in [
            ("running", counts.running),
            ("ready", counts.ready),
            ("delayed", counts.delayed),
            ("failing", counts.failing),
        ] {
            keys.sample(&[("queue", queue), ("state", state)], count);
        }
    }
}

/// The state of one cached view.
struct ViewStatus {
    current: bool,
    backlog: usize,
    flaws: usize,
}

impl ViewStatus {
    fn of<S: Shape>(view: &View<S>) -> Self {
        Self {
            current: view.is_current(),
            backlog: view.backlog().events + view.backlog().reads,
            flaws: view.flaws().len(),
        }
    }
}
