//! Nodes: machines, pods and slots, from the moment they are planned until they are gone.

use std::fmt;
use std::sync::Arc;

use serde_json::value::RawValue;

use crate::ids::RequestId;
use crate::json::{self, Field, Flaw, Opaque, json_serde};
use crate::names::{Label, LauncherId, PoolName, ProviderName, TenantName};
use crate::quota::Resources;
use crate::record::{record, timed_state};
use crate::state::NodeState;
use crate::time::Timestamp;

record! {
    /// A node. Its id is its name in the store.
    ///
    /// While it is allocated, the record belongs to the requestor: Zuul writes back everything it read.
    Node, "node", drops must_not_be_written;
    required {
        "state" => state: NodeState;
        /// When `state` was last set.
        "state_time" => state_time: Timestamp;
    }
    optional {
        /// The labels it can serve. The first is the one it was launched for.
        "type" => labels: Vec<Label> = Vec::new(), reads one_or_many;
        /// A record without provider is the rest of a deleted one.
        "provider" => provider: Option<ProviderName> = None;
        "pool" => pool: Option<PoolName> = None;
        /// The request it is given to. Zuul refuses a node that does not name its request.
        "allocated_to" => allocated_to: Option<Allocation> = None;
        "launcher" => launcher: Option<LauncherId> = None;
        "created_time" => created_time: Option<Timestamp> = None;
        "tenant_name" => tenant_name: Option<TenantName> = None;
        "requestor" => requestor: Option<Arc<str>> = None;

        /// How the provider calls it: a string, on some clouds an object.
        "external_id" => external_id: Opaque = Opaque::NULL;
        "hostname" => hostname: Option<Box<str>> = None;
        /// Where Zuul connects to.
        "interface_ip" => interface_ip: Option<Box<str>> = None;
        "public_ipv4" => public_ipv4: Option<Box<str>> = None;
        "private_ipv4" => private_ipv4: Option<Box<str>> = None;
        "public_ipv6" => public_ipv6: Option<Box<str>> = None;
        /// How Zuul connects: `ssh`, `winrm`, `network_cli`, `kubectl`, `namespace`, `project`.
        "connection_type" => connection_type: Option<Arc<str>> = None;
        /// Older readers look for `ssh_port`.
        "connection_port" | "ssh_port" => connection_port: ConnectionPort = ConnectionPort::Number(22);
        "username" => username: Option<Arc<str>> = None, absent Some("zuul".into());
        /// Reaches Ansible as it is, so `auto` where nothing is configured.
        "python_path" => python_path: Option<Arc<str>> = None;
        "shell_type" => shell_type: Option<Arc<str>> = None;
        /// `<type> <base64>` each; without any, Zuul does not check the host.
        "host_keys" => host_keys: Vec<Box<str>> = Vec::new();

        "cloud" => cloud: Option<Arc<str>> = None;
        "region" => region: Option<Arc<str>> = None;
        "az" => az: Option<Arc<str>> = None;
        "host_id" => host_id: Option<Box<str>> = None;
        /// The path of the upload it booted from, or the name of a cloud image.
        "image_id" => image_id: Option<Arc<str>> = None;
        /// What it takes of the quotas.
        "resources" => resources: Option<Resources> = None;
        /// The pool's `node-attributes`.
        "attributes" => attributes: Opaque = Opaque::NULL;
        "node_properties" => node_properties: Opaque = Opaque::empty_object();
        /// Which part of a shared machine.
        "slot" => slot: Option<i64> = None;
        /// The driver's own data.
        "driver_data" => driver_data: Opaque = Opaque::NULL;

        /// The requestor's own data.
        "user_data" => user_data: Opaque = Opaque::NULL;
        /// For whom it is held.
        "hold_job" => hold_job: Option<Box<str>> = None;
        "comment" => comment: Option<Box<str>> = None;
        /// Seconds it may stay in `hold`; zero and null mean without end.
        "hold_expiration" => hold_expiration: Option<i64> = None, reads seconds;
    }
}

timed_state!(Node: NodeState);

impl Node {
    /// A node that is about to be launched; its first state time is its creation time.
    pub fn init(now: Timestamp) -> Self {
        Self {
            created_time: Some(now),
            ..Self::new(NodeState::Init, now)
        }
    }

    /// The request it is given to; none also if what it names can be no request.
    pub fn request(&self) -> Option<RequestId> {
        self.allocated_to.as_ref().and_then(Allocation::request)
    }
}

/// Whom a node is given to.
///
/// To Python this is any text. One that no request can be called by stays as it is, and means what it means there: a
/// request that is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allocation {
    Request(RequestId),
    Other(Box<str>),
}

impl Allocation {
    pub fn request(&self) -> Option<RequestId> {
        match self {
            Self::Request(id) => Some(*id),
            Self::Other(_) => None,
        }
    }
}

impl From<RequestId> for Allocation {
    fn from(id: RequestId) -> Self {
        Self::Request(id)
    }
}

impl fmt::Display for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(id) => id.fmt(f),
            Self::Other(text) => f.write_str(text),
        }
    }
}

impl Field for Allocation {
    fn read(value: &RawValue) -> Result<Self, Flaw> {
        let text = json::text(value)?;
        Ok(match text.parse() {
            Ok(id) => Self::Request(id),
            Err(_) => Self::Other(text.into()),
        })
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Request(id) => id.write(out),
            Self::Other(text) => text.write(out),
        }
    }
}

/// Zuul makes an attribute of its node object from every key it reads. These would replace its own: the
/// label a job asked for, its lock, its methods. `id` comes with every record that Zuul has written.
fn must_not_be_written(key: &str) -> bool {
    key.starts_with('_')
        || matches!(
            key,
            "id" | "label"
                | "lock"
                | "stat"
                | "name"
                | "aliases"
                | "reuse"
                | "kubernetes_connection"
                | "source_context"
                | "start_mark"
                | "fromDict"
                | "toDict"
                | "updateFromDict"
        )
}

/// A node used to have one label, written without the list.
fn one_or_many(value: &RawValue) -> Result<Vec<Label>, Flaw> {
    if json::is_string(value) {
        Ok(vec![Label::read(value)?])
    } else {
        Vec::read(value)
    }
}

/// Seconds come from people by way of Zuul: also as text or fractions. What is no number means no limit.
fn seconds(value: &RawValue) -> Result<Option<i64>, Flaw> {
    if json::is_null(value) {
        return Ok(None);
    }
    if json::is_string(value) {
        return Ok(Some(json::text(value)?.trim().parse().unwrap_or(0)));
    }
    i64::read(value)
        .or_else(|flaw| json::finite(value).map(whole_part).map_err(|_| flaw))
        .map(Some)
}

/// Returns the whole part, saturated: whatever does not fit into 64 bits is without end.
fn whole_part(number: f64) -> i64 {
    number as i64
}

/// Where to connect to on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionPort {
    /// Not known: Zuul leaves that behind on a node of a cluster that it has used.
    Null,
    Number(u16),
    /// How to reach a namespace or pod: server, token, names.
    Cluster(Opaque),
}

/// Python's metastatic driver writes this while it waits for a machine.
const UNKNOWN_PORT: &str = r#""unknown""#;

impl Field for ConnectionPort {
    fn read(value: &RawValue) -> Result<Self, Flaw> {
        if json::is_null(value) || value.get() == UNKNOWN_PORT {
            return Ok(Self::Null);
        }
        if json::is_object(value) {
            return Opaque::read(value).map(Self::Cluster);
        }
        let number = i64::read(value)
            .map_err(|_| Flaw::wrong_type("a port number, an object or null", value))?;
        u16::try_from(number)
            .map(Self::Number)
            .map_err(|_| Flaw::new(format_args!("{number} is not a port; ports end at 65535")))
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Number(port) => i64::from(*port).write(out),
            Self::Cluster(object) => object.write(out),
        }
    }
}

json_serde!(ConnectionPort);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    fn read(keys: &str) -> Node {
        Node::from_json(format!(r#"{{"state": "ready", "state_time": 1.5{keys}}}"#).as_bytes())
            .unwrap()
    }

    fn written(node: &Node) -> String {
        String::from_utf8(node.to_json()).unwrap()
    }

    #[test]
    fn absent_keys_mean_what_they_mean_in_python() {
        let node = read("");
        assert_eq!(node.username.as_deref(), Some("zuul"));
        assert_eq!(node.connection_port, ConnectionPort::Number(22));
        assert_eq!(node.node_properties.text(), "{}");
        assert_eq!(node.python_path, None);
        assert!(node.labels.is_empty() && node.host_keys.is_empty());
    }

    #[test]
    fn older_forms_are_read() {
        assert_eq!(read(r#", "type": "small""#).labels, [Label::from("small")]);
        assert_eq!(read(r#", "type": null, "host_keys": null"#).labels, []);
        assert_eq!(
            read(r#", "ssh_port": 2222"#).connection_port,
            ConnectionPort::Number(2222)
        );
        assert_eq!(
            read(r#", "ssh_port": "unknown", "connection_port": "unknown""#).connection_port,
            ConnectionPort::Null
        );
        assert_eq!(
            read(r#", "ssh_port": "stale", "connection_port": null"#).connection_port,
            ConnectionPort::Null
        );
        for (text, seconds) in [
            ("null", None),
            ("3600", Some(3600)),
            ("\" 3600 \"", Some(3600)),
            ("\"soon\"", Some(0)),
            ("1.9", Some(1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", Some(i64::MAX)),
            ("1e300", Some(i64::MAX)),
            ("-1e300", Some(i64::MIN)),
        ] {
            let node = read(&format!(r#", "hold_expiration": {text}"#));
            assert_eq!(node.hold_expiration, seconds, "{text}");
        }
    }

    #[test]
    fn a_node_may_be_given_to_what_is_no_request() {
        let node = read(r#", "allocated_to": "200-0000000042""#);
        assert_eq!(node.request(), "200-0000000042".parse().ok());
        for text in ["", "0000000042", "static driver", r#"a \"b\" \u0001 ü"#] {
            let node = read(&format!(r#", "allocated_to": "{text}""#));
            assert!(matches!(node.allocated_to, Some(Allocation::Other(_))));
            assert_eq!(node.request(), None);
            let written = written(&node);
            assert!(
                written.contains(&format!(r#""allocated_to": "{text}""#)),
                "{written}"
            );
        }
    }

    #[test]
    fn what_would_break_zuul_is_not_written() {
        let node = read(
            r#", "id": "0000000001", "label": "x", "lock": 1, "stat": {}, "_keys": [],
                "toDict": 1, "name": "n", "private_ipv6": "::1""#,
        );
        let keys: Vec<_> = node.other().iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["private_ipv6"]);
        assert!(!written(&node).contains("\"lock\""));
    }

    #[test]
    fn the_port_is_written_twice() {
        let json = written(&read(r#", "connection_port": 5986"#));
        assert!(
            json.contains(r#""connection_port": 5986"#) && json.contains(r#""ssh_port": 5986"#)
        );
    }

    #[test]
    fn a_wrong_type_is_named_and_not_shown() {
        for (keys, message) in [
            (
                r#", "connection_port": "22""#,
                "key `connection_port`: expected a port number, an object or null, found a string",
            ),
            (
                r#", "host_keys": ["a", 5]"#,
                "key `host_keys[1]`: expected a string, found a number",
            ),
            (
                r#", "resources": {"ram": "much"}"#,
                "key `resources.ram`: expected a number, found a string",
            ),
            (
                r#", "allocated_to": 42"#,
                "key `allocated_to`: expected a string, found a number",
            ),
            (
                r#", "state_time": []"#,
                "key `state_time`: expected a number, found a list",
            ),
        ] {
            let data = format!(r#"{{"state": "ready", "state_time": 1.5{keys}}}"#);
            let error = Node::from_json(data.as_bytes()).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("the node record cannot be used: {message}")
            );
        }
    }

    #[test]
    fn tokens_do_not_reach_logs() {
        let node = read(r#", "connection_port": {"token": "secret"}"#);
        assert!(!format!("{node:?}").contains("secret"));
    }
}
