//! What a namespace is furnished with before anything runs in it.

use nodeyard_config::Object;
use serde_json::{Value, json};

/// Nothing comes in from other namespaces; a `NetworkPolicy` that lets something in adds to it.
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

/// A secret of another namespace, under its own name.
pub(crate) fn copied_secret(name: &str, original: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": original.get("type"),
        "data": original.get("data"),
    })
}
