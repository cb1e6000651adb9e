//! Labels and annotations: tags, and what the configuration adds.

use nodeyard_config::{ClusterLabel, Table};
use nodeyard_driver::{CreateOrder, template};
use nodeyard_model::{Quantity, ResourceName, Resources};
use serde_json::{Map, Value};
use tracing::warn;

use crate::names::label_value;

/// Returns the labels of a node's objects. Tags win over the configuration.
pub(crate) fn labels(label: &ClusterLabel, order: &CreateOrder) -> Map<String, Value> {
    let mut labels = texts(label.labels.as_ref());
    for (key, text) in &label.dynamic_labels {
        match template::render(text, &order.request) {
            Ok(value) => {
                labels.insert(key.clone(), label_value(&value).into());
            }
            Err(error) => {
                warn!(%error, key, label = %order.label, "failed to render dynamic label; omitting it");
            }
        }
    }
    for (key, value) in order.tags.to_metadata() {
        labels.insert(key.to_owned(), label_value(&value).into());
    }
    labels.insert(
        "nodepool_node_label".to_owned(),
        label_value(order.label.as_str()).into(),
    );
    labels
}

/// Returns the labels of a namespace, which may have more.
pub(crate) fn namespace_labels(label: &ClusterLabel, order: &CreateOrder) -> Map<String, Value> {
    let mut all = texts(Some(&label.hardening.namespace_labels));
    all.extend(labels(label, order));
    all
}

pub(crate) fn texts(table: Option<&Table<String>>) -> Map<String, Value> {
    let entries = table.into_iter().flatten();
    entries
        .map(|(key, text)| (key.clone(), text.clone().into()))
        .collect()
}

/// Returns the resources that a node of the label takes.
pub(crate) fn takes(label: &ClusterLabel) -> Resources {
    let whole = |number: Option<u64>| {
        Quantity::from(i64::try_from(number.unwrap_or(0)).unwrap_or(i64::MAX))
    };
    let mut takes = Resources::new(whole(label.cpu), 1, whole(label.memory));
    if label.storage.is_some() {
        takes.set("ephemeral-storage".into(), whole(label.storage));
    }
    if let (Some(gpu), Some(name)) = (label.gpu, &label.gpu_resource)
        && let Some(count) = Quantity::from_f64(gpu)
    {
        takes.set(name.as_str().into(), count);
    }
    for (name, count) in &label.extra_resources {
        takes.set(name.as_str().into(), whole(Some(*count)));
    }
    if let Some(sidecar) = &label.git_sidecar {
        let requests = sidecar
            .resources
            .as_ref()
            .and_then(|all| all.get("requests"));
        let request = |name: &str| requests?.get(name).and_then(quantity);
        if let Some(cores) = request("cpu").and_then(Quantity::from_f64) {
            let sum = takes.get(&ResourceName::CORES) + cores;
            takes.set(ResourceName::CORES, sum);
        }
        if let Some(bytes) = request("memory") {
            let mib = (bytes / f64::from(1 << 20)).ceil() as i64;
            let sum = takes.get(&ResourceName::RAM) + Quantity::from(mib);
            takes.set(ResourceName::RAM, sum);
        }
    }
    if let Some(ssh) = &label.ssh
        && ssh.expose == nodeyard_config::Expose::LoadBalancer
    {
        takes.set("load-balancers".into(), 1);
    }
    takes
}

/// Parses a quantity of Kubernetes: `500m`, `1`, `64Mi`.
fn quantity(value: &Value) -> Option<f64> {
    let text = match value {
        Value::Number(number) => return number.as_f64(),
        Value::String(text) => text.trim(),
        _ => return None,
    };
    const SUFFIXES: &[(&str, f64)] = &[
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("m", 0.001),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
    ];
    for (suffix, factor) in SUFFIXES {
        if let Some(number) = text.strip_suffix(suffix) {
            return Some(number.parse::<f64>().ok()? * factor);
        }
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, number) in [
            ("2", Some(2.0)),
            ("500m", Some(0.5)),
            ("64Mi", Some(67_108_864.0)),
            ("1G", Some(1e9)),
            ("much", None),
        ] {
            assert_eq!(quantity(&text.into()), number, "{text}");
        }
        assert_eq!(quantity(&serde_json::json!(1.5)), Some(1.5));
    }
}
