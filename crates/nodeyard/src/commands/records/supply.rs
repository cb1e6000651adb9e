//! Nodes and requests, and where nodes come from: labels, pools, providers, workers.

use std::collections::{BTreeMap, BTreeSet};

use nodeyard_config::Config;
use nodeyard_model::{
    ComponentKind, Node, NodeId, NodeState, PoolName, ProviderName, RequestState, Timestamp,
};
use nodeyard_store::registry::Registry;
use serde_json::{Value, json};

use super::{Entry, age};

fn texts<T: ToString>(items: impl IntoIterator<Item = T>) -> Value {
    items.into_iter().map(|item| item.to_string()).collect()
}

/// The connection of a pod holds a token, so connections are left out.
pub(super) async fn nodes(registry: &Registry) -> anyhow::Result<Vec<Entry>> {
    let mut found = Vec::new();
    for (id, stored) in registry.nodes().list().await? {
        let locked = registry.nodes().lock_of(id)?.contenders().await?;
        found.push(node(id, &stored.value, !locked.is_empty()));
    }
    Ok(found)
}

fn node(id: NodeId, node: &Node, locked: bool) -> Entry {
    Entry::new(vec![
        ("id", json!(id.to_string())),
        ("state", json!(node.state.as_str())),
        ("age", age(node.state_time)),
        ("labels", texts(&node.labels)),
        (
            "provider",
            json!(node.provider.as_ref().map(ProviderName::as_str)),
        ),
        ("pool", json!(node.pool.as_ref().map(PoolName::as_str))),
        ("address", json!(node.interface_ip)),
        ("hostname", json!(node.hostname)),
        (
            "request",
            json!(node.allocated_to.as_ref().map(ToString::to_string)),
        ),
        ("requestor", json!(node.requestor.as_deref())),
        ("locked", json!(locked)),
        ("hold-job", json!(node.hold_job)),
        ("comment", json!(node.comment)),
        (
            "launcher",
            json!(node.launcher.as_ref().map(ToString::to_string)),
        ),
        ("image", json!(node.image_id.as_deref())),
    ])
}

pub(super) async fn requests(registry: &Registry) -> anyhow::Result<Vec<Entry>> {
    let found = registry.requests().list().await?.into_iter();
    let found = found.map(|(id, stored)| {
        let request = stored.value;
        Entry::new(vec![
            ("id", json!(id.to_string())),
            ("state", json!(request.state.as_str())),
            (
                "age",
                age(request.created_time.unwrap_or(request.state_time)),
            ),
            ("labels", texts(&request.labels)),
            ("requestor", json!(request.requestor.as_deref())),
            ("nodes", texts(&request.nodes)),
            (
                "provider",
                json!(request.provider.as_ref().map(ProviderName::as_str)),
            ),
            ("priority", json!(request.relative_priority)),
            ("declined-by", texts(&request.declined_by)),
            (
                "tenant",
                json!(request.tenant_name.as_ref().map(ToString::to_string)),
            ),
            ("event", json!(request.event_id)),
        ])
    });
    Ok(found.collect())
}

#[derive(Default)]
struct Counts {
    ready: u64,
    building: u64,
    in_use: u64,
    waiting: u64,
    oldest: Option<Timestamp>,
    pools: BTreeSet<String>,
}

/// A node that is given to a request counts as in use, also before its job begins.
pub(super) async fn labels(
    registry: &Registry,
    config: Option<&Config>,
) -> anyhow::Result<Vec<Entry>> {
    let mut labels: BTreeMap<String, Counts> = BTreeMap::new();
    for name in config.iter().flat_map(|config| config.labels.keys()) {
        labels.entry(name.clone()).or_default();
    }
    for pool in registry.components().pools().await? {
        for label in &pool.supported_labels {
            let counts = labels.entry(label.to_string()).or_default();
            let name = format!("{}/{}", pool.provider_name, pool.name);
            counts.pools.insert(name);
        }
    }
    for (_, request) in registry.requests().list().await? {
        let request = request.value;
        let waits = matches!(
            request.state,
            RequestState::Requested | RequestState::Pending
        );
        if !waits {
            continue;
        }
        let since = request.created_time.unwrap_or(request.state_time);
        for label in request.labels.iter().collect::<BTreeSet<_>>() {
            let counts = labels.entry(label.to_string()).or_default();
            counts.waiting += 1;
            let oldest = counts
                .oldest
                .filter(|oldest| oldest.as_secs() < since.as_secs());
            counts.oldest = Some(oldest.unwrap_or(since));
        }
    }
    for (_, node) in registry.nodes().list().await? {
        let node = node.value;
        for label in &node.labels {
            let counts = labels.entry(label.to_string()).or_default();
            match node.state {
                NodeState::Ready if node.allocated_to.is_none() => counts.ready += 1,
                NodeState::Init | NodeState::Building | NodeState::Testing => counts.building += 1,
                NodeState::Ready | NodeState::InUse | NodeState::Used | NodeState::Hold => {
                    counts.in_use += 1;
                }
                _ => {}
            }
        }
    }
    let entries = labels.into_iter().map(|(name, counts)| {
        Entry::new(vec![
            ("name", json!(name)),
            ("ready", json!(counts.ready)),
            ("building", json!(counts.building)),
            ("in-use", json!(counts.in_use)),
            ("waiting", json!(counts.waiting)),
            ("oldest-wait", counts.oldest.map_or(Value::Null, age)),
            ("pools", texts(counts.pools)),
        ])
    });
    Ok(entries.collect())
}

pub(super) async fn pools(registry: &Registry) -> anyhow::Result<Vec<Entry>> {
    let found = registry.components().pools().await?.into_iter();
    let found = found.map(|pool| {
        Entry::new(vec![
            ("id", json!(format!("{}/{}", pool.provider_name, pool.name))),
            ("launcher", json!(pool.hostname)),
            ("state", json!(pool.state.as_str())),
            ("paused", json!(pool.paused)),
            ("labels", texts(&pool.supported_labels)),
            ("priority", json!(pool.priority)),
            ("version", json!(pool.version)),
        ])
    });
    Ok(found.collect())
}

/// The limit is the sum of `max-servers` of the configured pools; what the cloud itself allows is not in the store.
pub(super) async fn providers(
    registry: &Registry,
    config: Option<&Config>,
) -> anyhow::Result<Vec<Entry>> {
    let pools = registry.components().pools().await?;
    let nodes = registry.nodes().list().await?;
    let of = |node: &Node| node.provider.as_ref().map(ToString::to_string);
    let mut names: BTreeSet<String> = nodes
        .iter()
        .filter_map(|(_, node)| of(&node.value))
        .collect();
    names.extend(pools.iter().map(|pool| pool.provider_name.to_string()));
    names.extend(
        config
            .iter()
            .flat_map(|config| config.providers.keys().cloned()),
    );
    let entries = names.into_iter().map(|name| {
        let configured = config.and_then(|config| config.provider(&name));
        let limits = configured.map(nodeyard_config::Provider::pools);
        let limits = limits.iter().flatten().map(|pool| {
            let common = serde_json::to_value(pool.common).ok()?;
            common.get("max-servers")?.as_u64()
        });
        let limit: Option<u64> = configured.and(limits.sum());
        let own = nodes.iter().map(|(_, node)| &node.value);
        let own: Vec<&Node> = own
            .filter(|node| of(node).as_deref() == Some(&name))
            .collect();
        let failed = own
            .iter()
            .filter(|node| node.state == NodeState::Failed)
            .count();
        let mut running = pools
            .iter()
            .filter(|pool| pool.provider_name.as_str() == name)
            .peekable();
        let mut trouble = Vec::new();
        if running.peek().is_none() {
            trouble.push("no launcher runs it".to_owned());
        }
        for pool in running.filter(|pool| pool.paused) {
            trouble.push(format!(
                "pool {} is paused: no quota left, or drained",
                pool.name
            ));
        }
        if config.is_some() && configured.is_none() {
            trouble.push("not in the configuration".to_owned());
        }
        if failed > 0 {
            trouble.push(format!("{failed} failed to launch"));
        }
        Entry::new(vec![
            ("name", json!(name)),
            (
                "driver",
                json!(configured.map(|provider| provider.driver.name())),
            ),
            ("nodes", json!(own.len())),
            ("limit", json!(limit)),
            ("trouble", json!(trouble)),
        ])
    });
    Ok(entries.collect())
}

pub(super) async fn workers(registry: &Registry) -> anyhow::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for kind in [ComponentKind::Builder, ComponentKind::Launcher] {
        for component in registry.components().list(kind).await? {
            entries.push(Entry::new(vec![
                ("name", json!(component.hostname)),
                ("kind", json!(component.kind.as_str())),
                ("state", json!(component.state.as_str())),
                ("version", json!(component.version)),
            ]));
        }
    }
    Ok(entries)
}
