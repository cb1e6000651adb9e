//! Entries of nodes, requests, labels, pools, providers and workers.

use std::collections::{BTreeMap, BTreeSet};

use nodeyard_config::Config;
use nodeyard_model::{
    ComponentKind, Node, NodeId, NodeState, PoolComponent, ProviderName, Quantity, RequestState,
    ResourceName, Resources, Timestamp,
};
use nodeyard_operations::drain::{self, pool_key};
use nodeyard_store::registry::Registry;
use serde_json::{Value, json};

use super::{RecordEntry, age};
use crate::output::count;

fn texts<T: ToString>(items: impl IntoIterator<Item = T>) -> Value {
    items.into_iter().map(|item| item.to_string()).collect()
}

/// Returns the entries of nodes, without connections, because that of a pod contains a token.
pub(super) async fn nodes(registry: &Registry) -> anyhow::Result<Vec<RecordEntry>> {
    let mut found = Vec::new();
    for (id, stored) in registry.nodes().list().await? {
        found.push(node(registry, id, &stored.value).await?);
    }
    Ok(found)
}

/// Returns the entry of a node.
pub(crate) async fn node(
    registry: &Registry,
    id: NodeId,
    node: &Node,
) -> anyhow::Result<RecordEntry> {
    let locked = !registry.nodes().lock_of(id)?.contenders().await?.is_empty();
    // The name as in `pool ls`.
    let pool = node.provider.as_ref().map(|provider| match &node.pool {
        Some(pool) => format!("{provider}/{pool}"),
        None => provider.to_string(),
    });
    Ok(RecordEntry::new(vec![
        ("id", json!(id.to_string())),
        ("state", json!(node.state.as_str())),
        ("age", age(node.state_time)),
        ("labels", texts(&node.labels)),
        ("pool", json!(pool)),
        ("address", json!(node.interface_ip)),
        ("hostname", json!(node.hostname)),
        (
            "request",
            json!(node.allocated_to.as_ref().map(ToString::to_string)),
        ),
        ("requestor", json!(node.requestor.as_deref())),
        ("locked", json!(locked)),
        ("hold_job", json!(node.hold_job)),
        ("comment", json!(node.comment)),
        (
            "launcher",
            json!(node.launcher.as_ref().map(ToString::to_string)),
        ),
        ("image", json!(node.image_id.as_deref())),
    ]))
}

pub(super) async fn requests(registry: &Registry) -> anyhow::Result<Vec<RecordEntry>> {
    let found = registry.requests().list().await?.into_iter();
    let found = found.map(|(id, stored)| {
        let request = stored.value;
        RecordEntry::new(vec![
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
            ("declined_by", texts(&request.declined_by)),
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
struct LabelCounts {
    ready: u64,
    building: u64,
    in_use: u64,
    waiting: u64,
    oldest: Option<Timestamp>,
    pools: BTreeSet<String>,
}

/// Returns the entries of labels. A node that is allocated to a request counts as in use.
pub(super) async fn labels(
    registry: &Registry,
    config: Option<&Config>,
) -> anyhow::Result<Vec<RecordEntry>> {
    let mut labels: BTreeMap<String, LabelCounts> = BTreeMap::new();
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
        RecordEntry::new(vec![
            ("name", json!(name)),
            ("ready", json!(counts.ready)),
            ("building", json!(counts.building)),
            ("in_use", json!(counts.in_use)),
            ("waiting", json!(counts.waiting)),
            ("oldest_wait", counts.oldest.map_or(Value::Null, age)),
            ("pools", texts(counts.pools)),
        ])
    });
    Ok(entries.collect())
}

pub(super) async fn pools(registry: &Registry) -> anyhow::Result<Vec<RecordEntry>> {
    let found = registry.components().pools().await?.into_iter();
    let found = found.map(|pool| {
        RecordEntry::new(vec![
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

/// Returns what the nodes use of the sum of the configured pools' limits. The cloud's own quota is not in the store.
fn quota(configured: Option<&nodeyard_config::Provider>, nodes: &[&Node]) -> Value {
    // The keys for cores and memory belong to the drivers, so they are read from the serialised configuration.
    let provider = configured.and_then(|provider| serde_json::to_value(provider).ok());
    let pools = provider
        .as_ref()
        .and_then(|provider| provider.get("pools")?.as_array());
    let used: Resources = nodes
        .iter()
        .filter_map(|node| node.resources.as_ref())
        .sum();
    let amounts = [
        ("servers", "max-servers", json!(nodes.len())),
        ("cores", "max-cores", number(used.get(&ResourceName::CORES))),
        ("ram", "max-ram", number(used.get(&ResourceName::RAM))),
    ];
    let amounts = amounts.into_iter().filter_map(|(name, key, used)| {
        let limits = pools
            .into_iter()
            .flatten()
            .map(|pool| pool.get(key)?.as_u64());
        let limit: Option<u64> = pools.and(limits.sum());
        let shown = limit.is_some() || name == "servers";
        shown.then(|| json!({"resource": name, "used": used, "limit": limit}))
    });
    amounts.collect()
}

fn number(quantity: Quantity) -> Value {
    quantity.to_string().parse().unwrap_or(Value::Null)
}

pub(super) async fn providers(
    registry: &Registry,
    config: Option<&Config>,
) -> anyhow::Result<Vec<RecordEntry>> {
    let pools = registry.components().pools().await?;
    let nodes = registry.nodes().list().await?;
    let drains = drain::list(&**registry.tree()).await?;
    let of = |node: &Node| node.provider.as_ref().map(ToString::to_string);
    let mut names: BTreeSet<String> = nodes
        .iter()
        .filter_map(|(_, node)| of(&node.value))
        .collect();
    names.extend(pools.iter().map(|pool| pool.provider_name.to_string()));
    let configured = config.iter().flat_map(|config| config.providers.keys());
    names.extend(configured.cloned());
    let entries = names.into_iter().map(|name| {
        let configured = config.and_then(|config| config.provider(&name));
        let own = nodes.iter().map(|(_, node)| &node.value);
        let own: Vec<&Node> = own
            .filter(|node| of(node).as_deref() == Some(&name))
            .collect();
        let running: Vec<&PoolComponent> = pools
            .iter()
            .filter(|pool| pool.provider_name.as_str() == name)
            .collect();
        let mut trouble = Vec::new();
        if running.is_empty() {
            trouble.push("no launcher runs it".to_owned());
        }
        if config.is_some() && configured.is_none() {
            trouble.push("not in the configuration".to_owned());
        }
        for pool in running.iter().filter(|pool| pool.paused) {
            let drained = drains
                .iter()
                .any(|(scope, _)| scope.covers(&pool.hostname, &pool_key(pool)));
            let why = if drained {
                "drained"
            } else {
                "paused: no quota left"
            };
            trouble.push(format!("pool {} is {why}", pool.name));
        }
        let failed = own.iter().filter(|node| node.state == NodeState::Failed);
        match failed.count() {
            0 => {}
            failed => trouble.push(format!("{} failed to launch", count(failed, "node"))),
        }
        RecordEntry::new(vec![
            ("name", json!(name)),
            (
                "driver",
                json!(configured.map(|provider| provider.driver.name())),
            ),
            ("quota", quota(configured, &own)),
            ("trouble", json!(trouble)),
        ])
    });
    Ok(entries.collect())
}

pub(super) async fn workers(registry: &Registry) -> anyhow::Result<Vec<RecordEntry>> {
    let mut entries = Vec::new();
    for kind in [ComponentKind::Builder, ComponentKind::Launcher] {
        for component in registry.components().list(kind).await? {
            entries.push(RecordEntry::new(vec![
                ("name", json!(component.hostname)),
                ("kind", json!(component.kind.as_str())),
                ("state", json!(component.state.as_str())),
                ("version", json!(component.version)),
            ]));
        }
    }
    Ok(entries)
}
