//! Objects of a namespace: its network policy, its quota, and copies of secrets.

use nodeyard_config::Object;
use serde_json::{Value, json};

/// Denies traffic from other namespaces, except what other network policies allow.
pub(crate) fn deny_network() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "deny"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
    })
}

pub(crate) fn quota(hard: &Object) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "nodeyard"},
        "spec": {"hard": hard},
    })
}

/// Copies a secret of another namespace.
pub(crate) fn copied_secret(name: &str, original: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": original.get("type"),
        "data": original.get("data"),
    })
}
