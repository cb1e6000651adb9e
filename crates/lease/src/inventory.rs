//! Nodes as an Ansible inventory, in the form that `ansible-inventory --list` prints.

use std::collections::BTreeMap;

use nodeyard_model::{Label, Node, NodeId};
use serde_json::{Map, Value, json};

use crate::connection::Connection;

/// The groups of an inventory that mean something else.
const RESERVED: [&str; 3] = ["_meta", "all", "ungrouped"];

/// A host `<label>-<node id>` for each node, and a group for each label.
pub fn inventory<'a>(nodes: impl IntoIterator<Item = (NodeId, &'a Label, &'a Node)>) -> Value {
    let mut hosts = Map::new();
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (id, label, node) in nodes {
        let connection = Connection::of(node);
        // A namespace is no host.
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

fn host(id: NodeId, label: &Label, node: &Node, connection: &Connection) -> Map<String, Value> {
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
        let given = |key: &str| cluster.get(key).cloned().unwrap_or(Value::Null);
        set("ansible_kubectl_host", given("host"));
        set("ansible_kubectl_namespace", given("namespace"));
        set("ansible_kubectl_pod", given("pod"));
        set("ansible_kubectl_token", given("token"));
        let skips = given("skiptls").as_bool();
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
