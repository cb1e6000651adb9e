//! The metrics of Prometheus: all names, with what they mean.

use std::collections::BTreeMap;

use nodeyard_model::ProviderName;
use nodeyard_store::Session;
use nodeyard_store::view::{Shape, View};

use super::Recorded;
use super::exposition::{Exposition, Kind};
use super::histogram::Histogram;
use crate::census::Census;
use crate::views::Views;

pub(super) fn all(recorded: &Recorded, census: &Census, views: &Views) -> String {
    let mut exposition = Exposition::default();
    existing(&mut exposition, census);
    happened(&mut exposition, recorded);
    limits(&mut exposition, recorded);
    store(&mut exposition, views);
    queues(&mut exposition, recorded);
    exposition.build_info();
    exposition.finish()
}

fn existing(exposition: &mut Exposition, census: &Census) {
    let mut nodes = exposition.family(
        Kind::Gauge,
        "nodeyard_nodes",
        "Nodes of a provider in a state.",
    );
    for (provider, counts) in &census.by_provider {
        for (state, count) in counts.iter() {
            let labels = [("provider", provider.as_str()), ("state", state.as_str())];
            nodes.sample(&labels, count);
        }
    }
    let mut nodes = exposition.family(
        Kind::Gauge,
        "nodeyard_label_nodes",
        "Nodes with a label in a state; a node with several labels counts for each.",
    );
    for (label, counts) in &census.by_label {
        for (state, count) in counts.iter() {
            let labels = [("label", label.as_str()), ("state", state.as_str())];
            nodes.sample(&labels, count);
        }
    }
    let mut requests = exposition.family(
        Kind::Gauge,
        "nodeyard_requests",
        "Node requests in a state.",
    );
    for (state, count) in &census.requests {
        requests.sample(&[("state", state.as_str())], count);
    }
    let mut addressable = exposition.family(
        Kind::Gauge,
        "nodeyard_pool_addressable_requests",
        "Node requests in any state whose labels a pool offers, all of them.",
    );
    for ((provider, pool), count) in &census.addressable {
        let labels = [("provider", provider.as_str()), ("pool", pool.as_str())];
        addressable.sample(&labels, count);
    }
}

fn happened(exposition: &mut Exposition, recorded: &Recorded) {
    let mut launches = exposition.family(
        Kind::Counter,
        "nodeyard_launches_total",
        "Attempts of this launcher to launch a node, by result.",
    );
    for ((provider, result), count) in &recorded.launches {
        let labels = [("provider", provider.as_str()), ("result", result.as_str())];
        launches.sample(&labels, count);
    }
    histograms(
        exposition,
        "nodeyard_launch_seconds",
        "How long launches took that ended with a ready node.",
        &recorded.launch_times,
    );
    histograms(
        exposition,
        "nodeyard_request_wait_seconds",
        "How long requests waited from their creation until this launcher accepted them.",
        &recorded.waits,
    );
    histograms(
        exposition,
        "nodeyard_request_fulfil_seconds",
        "How long requests took from their creation until this launcher had fulfilled them.",
        &recorded.fulfilments,
    );
    exposition
        .family(
            Kind::Counter,
            "nodeyard_requests_failed_total",
            "Requests that this launcher has marked as failed.",
        )
        .sample(&[], recorded.failed_requests);
    let mut leaked = exposition.family(
        Kind::Counter,
        "nodeyard_leaked_total",
        "Resources without a record that this launcher has removed from a cloud.",
    );
    for ((provider, kind), count) in &recorded.leaked {
        leaked.sample(&[("provider", provider.as_str()), ("kind", kind)], count);
    }
}

fn histograms(
    exposition: &mut Exposition,
    name: &'static str,
    help: &str,
    recorded: &BTreeMap<ProviderName, Histogram>,
) {
    let mut family = exposition.family(Kind::Histogram, name, help);
    for (provider, histogram) in recorded {
        family.histogram(&[("provider", provider.as_str())], histogram);
    }
}

fn limits(exposition: &mut Exposition, recorded: &Recorded) {
    let mut pools = exposition.family(
        Kind::Gauge,
        "nodeyard_pool_limit",
        "How much of a resource a pool may use; what is not limited is not listed.",
    );
    for (provider, of_pools) in &recorded.limits {
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
        Kind::Gauge,
        "nodeyard_tenant_limit",
        "How much of a resource a tenant may use.",
    );
    for (tenant, limits) in &recorded.tenant_limits {
        for (resource, limit) in limits.iter() {
            let labels = [("tenant", tenant.as_str()), ("resource", resource.as_str())];
            tenants.sample(&labels, limit);
        }
    }
}

fn store(exposition: &mut Exposition, views: &Views) {
    let session = match *views.session.borrow() {
        Session::Connecting => "connecting",
        Session::Connected(_) => "connected",
        Session::Suspended(_) => "suspended",
        Session::Closed => "closed",
    };
    let mut family = exposition.family(
        Kind::Gauge,
        "nodeyard_store_session",
        "1 for the state that the session with the store is in.",
    );
    for state in ["connecting", "connected", "suspended", "closed"] {
        family.sample(&[("state", state)], u8::from(state == session));
    }

    exposition
        .family(
            Kind::Gauge,
            "nodeyard_store_unanswered_requests",
            "Requests to the servers of the store that are not answered yet.",
        )
        .sample(&[], views.tree.unanswered());
    let views = [
        ("nodes", Followed::of(&views.nodes)),
        ("requests", Followed::of(&views.requests)),
        ("pools", Followed::of(&views.pools)),
        ("images", Followed::of(&views.images)),
    ];
    let mut current = exposition.family(
        Kind::Gauge,
        "nodeyard_view_current",
        "1 while the copy of a part of the store follows its changes, 0 while it may be old.",
    );
    for (view, followed) in &views {
        current.sample(&[("view", view)], u8::from(followed.current));
    }
    let mut backlog = exposition.family(
        Kind::Gauge,
        "nodeyard_view_backlog",
        "Changes of a part of the store that its copy does not show yet.",
    );
    for (view, followed) in &views {
        backlog.sample(&[("view", view)], followed.backlog);
    }
    let mut flaws = exposition.family(
        Kind::Gauge,
        "nodeyard_malformed_records",
        "Records of the store that make no sense and are ignored; the log names them.",
    );
    for (view, followed) in &views {
        flaws.sample(&[("view", view)], followed.flaws);
    }
}

fn queues(exposition: &mut Exposition, recorded: &Recorded) {
    let mut keys = exposition.family(
        Kind::Gauge,
        "nodeyard_queue_keys",
        "Keys of a work queue by state; those whose last run failed count as failing as well.",
    );
    for (queue, counted) in &recorded.queues {
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

struct Followed {
    current: bool,
    backlog: usize,
    flaws: usize,
}

impl Followed {
    fn of<S: Shape>(view: &View<S>) -> Self {
        Self {
            current: view.is_current(),
            backlog: view.backlog().events + view.backlog().reads,
            flaws: view.flaws().len(),
        }
    }
}
