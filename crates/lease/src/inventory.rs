//! Nodes as an Ansible inventory, in the format of `ansible-inventory --list`.

use std::collections::BTreeMap;

use nodeyard_model::{Label, Node, NodeId};
use serde_json::{Map, Value, json};

use crate::connection::NodeConnection;

/// Names of groups that have a meaning in inventories.
const RESERVED: [&str; 3] = ["_meta", "all", "ungrouped"];

/// Returns an inventory with a host `<label>-<node id>` for each node and a group for each label.
pub fn inventory<'a>(nodes: impl IntoIterator<Item = (NodeId, &'a Label, &'a Node)>) -> Value {
    let mut hosts = Map::new();
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (id, label, node) in nodes {
        let connection = NodeConnection::from_node(node);
        // Jobs cannot run commands in a namespace.
        if matches!(&*connection.kind, "namespace" | "project") {
            continue;
        }
        let name = format!("{label}-{id}");
        hosts.insert(
            name.clone(),
            Value::Object(host(id, label, node, &connection)),
        );
        groups.entry(group(label)).or_default().push(name);
    }
    let children: Vec<&str> = groups.keys().map(String::as_str).collect();
    let children = [&["ungrouped"], &children[..]].concat();
    let mut all = Map::new();
    all.insert("all".to_owned(), json!({ "children": children }));
    for (group, names) in groups {
        all.insert(group, json!({ "hosts": names }));
    }
    all.insert("_meta".to_owned(), json!({ "hostvars": hosts }));
    Value::Object(all)
}

fn group(label: &Label) -> String {
    if RESERVED.contains(&label.as_str()) {
        format!("label-{label}")
    } else {
        label.to_string()
    }
}

fn host(id: NodeId, label: &Label, node: &Node, connection: &NodeConnection) -> Map<String, Value> {
    let mut vars = Map::new();
    let mut set = |key: &str, value: Value| {
        if !value.is_null() {
            vars.insert(key.to_owned(), value);
        }
    };
    set("ansible_connection", json!(connection.kind));
    set("ansible_host", json!(connection.host));
    set("ansible_port", json!(connection.port));
    set("ansible_user", json!(connection.user));
    set("ansible_python_interpreter", json!(connection.python));
    set("ansible_shell_type", json!(connection.shell));
    if let (true, Some(cluster)) = (connection.kind == "kubectl", &connection.cluster) {
        let field = |key: &str| cluster.get(key).cloned().unwrap_or(Value::Null);
        set("ansible_kubectl_host", field("host"));
        set("ansible_kubectl_namespace", field("namespace"));
        set("ansible_kubectl_pod", field("pod"));
        set("ansible_kubectl_token", field("token"));
        let skips = field("skiptls").as_bool();
        set(
            "ansible_kubectl_verify_ssl",
            json!(skips.map(|skips| !skips)),
        );
    }
    let external = serde_json::from_str(node.external_id.text()).unwrap_or(Value::Null);
    let nodepool = json!({
        "id": id,
        "label": label,
        "provider": node.provider,
        "cloud": node.cloud.as_deref(),
        "region": node.region.as_deref(),
        "az": node.az.as_deref(),
        "host_id": node.host_id,
        "external_id": external,
        "interface_ip": node.interface_ip,
        "public_ipv4": node.public_ipv4,
        "private_ipv4": node.private_ipv4,
        "public_ipv6": node.public_ipv6,
        "slot": node.slot,
        "host_keys": node.host_keys,
    });
    set("nodepool", nodepool);
    vars
}

#[cfg(test)]
mod tests {
    use nodeyard_model::Record as _;

    use super::*;

    fn node(keys: &str) -> Node {
        let json = format!(r#"{{"state": "in-use", "state_time": 1.5{keys}}}"#);
        Node::from_json(json.as_bytes()).unwrap()
    }

    fn host(kind: &str, keys: &str) -> Value {
        let id: NodeId = "0000000007".parse().unwrap();
        let node = node(&format!(r#", "connection_type": "{kind}", {keys}"#));
        let list = inventory([(id, &Label::from("l"), &node)]);
        list["_meta"]["hostvars"]["l-0000000007"].clone()
    }

    #[test]
    fn each_kind_of_connection_gets_its_variables() {
        let ssh = host(
            "ssh",
            r#""interface_ip": "192.0.2.7", "connection_port": 2222, "username": "debian", "python_path": "auto",
               "shell_type": "sh", "provider": "east", "external_id": {"id": "i-7"}, "host_keys": ["ssh-ed25519 AAAA"]"#,
        );
        assert_eq!(ssh["ansible_connection"], "ssh");
        assert_eq!(ssh["ansible_host"], "192.0.2.7");
        assert_eq!(ssh["ansible_port"], 2222);
        assert_eq!(ssh["ansible_user"], "debian");
        assert_eq!(ssh["ansible_python_interpreter"], "auto");
        assert_eq!(ssh["ansible_shell_type"], "sh");
        assert_eq!(ssh["nodepool"]["external_id"]["id"], "i-7");
        assert_eq!(ssh["nodepool"]["host_keys"][0], "ssh-ed25519 AAAA");

        let exec = host(
            "podman",
            r#""interface_ip": "np0000000007", "connection_port": null, "username": null"#,
        );
        assert_eq!(exec["ansible_connection"], "podman");
        assert_eq!(exec["ansible_host"], "np0000000007");
        for absent in ["ansible_port", "ansible_user", "ansible_shell_type"] {
            assert!(exec.get(absent).is_none(), "{absent}");
        }

        let pod = host(
            "kubectl",
            r#""interface_ip": "pod-7", "connection_port": {"host": "https://k8s:6443", "namespace": "ns", "user":
               "zuul-worker", "token": "t", "skiptls": false, "ca_crt": "Q0E=", "pod": "pod-7"}"#,
        );
        assert_eq!(pod["ansible_kubectl_host"], "https://k8s:6443");
        assert_eq!(pod["ansible_kubectl_namespace"], "ns");
        assert_eq!(pod["ansible_kubectl_pod"], "pod-7");
        assert_eq!(pod["ansible_kubectl_verify_ssl"], true);
        assert!(pod.get("ansible_port").is_none());
    }

    #[test]
    fn labels_are_groups_and_namespaces_are_no_hosts() {
        let machine = node(r#", "interface_ip": "192.0.2.1""#);
        let namespace =
            node(r#", "connection_type": "namespace", "connection_port": {"namespace": "x"}"#);
        let [a, b, c] = ["0000000001", "0000000002", "0000000003"].map(|id| id.parse().unwrap());
        let [all, small] = ["all", "small"].map(Label::from);
        let list = inventory([
            (a, &small, &machine),
            (b, &all, &machine),
            (c, &small, &namespace),
        ]);
        assert_eq!(list["small"]["hosts"], json!(["small-0000000001"]));
        assert_eq!(list["label-all"]["hosts"], json!(["all-0000000002"]));
        assert_eq!(
            list["all"]["children"],
            json!(["ungrouped", "label-all", "small"])
        );
        assert_eq!(list["_meta"]["hostvars"].as_object().unwrap().len(), 2);
    }
}
