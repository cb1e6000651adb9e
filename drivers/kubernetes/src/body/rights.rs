//! The account that Zuul acts as in a namespace, its token and its role.
//!
//! Names are Nodepool's if a namespace has one node. In a shared one they have a suffix.

use serde_json::{Value, json};

use crate::api::put;
use crate::names;

const ALL: [&str; 7] = [
    "create", "delete", "get", "list", "patch", "update", "watch",
];
/// Resources for working in pods.
const IN_PODS: &[&str] = &["pods/exec", "pods/attach", "pods/log", "pods/portforward"];
const RBAC: &str = "rbac.authorization.k8s.io";

const PEER_ROLE: &str = "zuul-peer";

pub(crate) fn account(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
}

/// Returns a secret that the cluster fills with a token, valid as long as the secret exists.
pub(crate) fn token_secret(account: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": account,
            "annotations": {"kubernetes.io/service-account.name": account},
        },
        "type": "kubernetes.io/service-account-token",
    })
}

/// Returns a role to create objects in the namespace.
pub(crate) fn role_of_namespace(name: &str, extra: &[serde_json::Map<String, Value>]) -> Value {
    let mut rules = vec![
        rule(
            "",
            &[
                "pods",
                "pods/exec",
                "pods/attach",
                "pods/log",
                "pods/portforward",
                "services",
                "endpoints",
                "configmaps",
                "secrets",
                "serviceaccounts",
            ],
        ),
        json!({"apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"]}),
        rule("apps", &["deployments", "replicasets"]),
        rule("batch", &["jobs", "cronjobs"]),
    ];
    rules.extend(extra.iter().cloned().map(Value::Object));
    role(name, &rules)
}

/// Returns a role to run commands in one pod of several.
pub(crate) fn role_of_one_pod(name: &str, pod: &str) -> Value {
    let mut look = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
    let mut act = rule("", IN_PODS);
    for rule in [&mut look, &mut act] {
        put(rule, "resourceNames", json!([pod]));
    }
    role(name, &[look, act])
}

/// Returns a role to read the services of the namespace.
pub(crate) fn role_of_peers() -> Value {
    let look = ["get", "list", "watch"];
    role(
        PEER_ROLE,
        &[json!({"apiGroups": [""], "resources": ["services"], "verbs": look})],
    )
}

/// Returns a binding of that role to all accounts of the namespace `peer`.
pub(crate) fn binding_of_peer(peer: &str) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "RoleBinding",
        "metadata": {"name": names::peer(peer)},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": PEER_ROLE},
        "subjects": [{
            "apiGroup": RBAC,
            "kind": "Group",
            "name": format!("system:serviceaccounts:{peer}"),
        }],
    })
}

/// Returns a role to run commands in the pods of the namespace.
pub(crate) fn role_of_pod(name: &str) -> Value {
    role(
        name,
        &[
            json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}),
            rule("", IN_PODS),
        ],
    )
}

fn rule(group: &str, resources: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": ALL})
}

fn role(name: &str, rules: &[Value]) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "Role",
        "metadata": {"name": name},
        "rules": rules,
    })
}

/// Returns a binding of a role to an account.
pub(crate) fn binding(
    name: &str,
    (namespace, account): (&str, &str),
    kind: &str,
    role: &str,
) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "RoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    })
}
