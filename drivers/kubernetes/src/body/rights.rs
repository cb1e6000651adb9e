//! Who may do what in a namespace: the account that Zuul acts as, its token, its role.

use serde_json::{Value, json};

use super::ACCOUNT;

const ALL: [&str; 7] = [
    "create", "delete", "get", "list", "patch", "update", "watch",
];
const RBAC: &str = "rbac.authorization.k8s.io";

pub(crate) fn account() -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}})
}

/// The cluster puts a token into it that lives as long as the secret does.
pub(crate) fn token_secret() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": ACCOUNT,
            "annotations": {"kubernetes.io/service-account.name": ACCOUNT},
        },
        "type": "kubernetes.io/service-account-token",
    })
}

/// For somebody who builds things in the namespace.
pub(crate) fn role_of_space(extra: &[serde_json::Map<String, Value>]) -> Value {
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
    role("zuul", &rules)
}

/// For somebody who runs things in a pod and may not make another.
pub(crate) fn role_of_pod() -> Value {
    role(
        "zuul-restricted",
        &[
            json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}),
            rule(
                "",
                &["pods/exec", "pods/attach", "pods/log", "pods/portforward"],
            ),
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

/// Gives the account a role, of the namespace or of the cluster.
pub(crate) fn binding(name: &str, namespace: &str, kind: &str, role: &str) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "RoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}],
    })
}
