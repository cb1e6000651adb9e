//! Records of nodes: machines, pods, namespaces and slots.

use std::fmt;
use std::sync::Arc;

use serde_json::value::RawValue;

use crate::ids::RequestId;
use crate::json::{self, DecodeError, JsonField, Opaque, json_serde};
use crate::names::{Label, LauncherId, PoolName, ProviderName, TenantName};
use crate::quota::Resources;
use crate::record::{impl_set_state, record};
use crate::state::NodeState;
use crate::time::Timestamp;

record! {
    /// A node. Its id is in its path.
    ///
    /// While it is allocated, the requestor owns the record; Zuul writes back everything it read.
    Node, "node", drops is_reserved_key;
    required {
        "state" => state: NodeState;
        /// When `state` was last set.
        "state_time" => state_time: Timestamp;
    }
    optional {
        /// The labels of the node. The first is the one it was launched for.
        "type" => labels: Vec<Label> = Vec::new(), reads label_or_list;
        /// Absent only in the remains of a deleted record.
        "provider" => provider: Option<ProviderName> = None;
        "pool" => pool: Option<PoolName> = None;
        /// The request it is allocated to. Zuul rejects nodes that do not name its request.
        "allocated_to" => allocated_to: Option<Allocation> = None;
        "launcher" => launcher: Option<LauncherId> = None;
        "created_time" => created_time: Option<Timestamp> = None;
        "tenant_name" => tenant_name: Option<TenantName> = None;
        "requestor" => requestor: Option<Arc<str>> = None;

        /// The provider's id of the node: a string, on some clouds an object.
        "external_id" => external_id: Opaque = Opaque::NULL;
        "hostname" => hostname: Option<Box<str>> = None;
        /// Where Zuul connects to.
        "interface_ip" => interface_ip: Option<Box<str>> = None;
        "public_ipv4" => public_ipv4: Option<Box<str>> = None;
        "private_ipv4" => private_ipv4: Option<Box<str>> = None;
        "public_ipv6" => public_ipv6: Option<Box<str>> = None;
        /// How Zuul connects: `ssh`, `winrm`, `network_cli`, `kubectl`, `namespace`, `project`.
        "connection_type" => connection_type: Option<Arc<str>> = None;
        /// `ssh_port` is for older readers.
        "connection_port" | "ssh_port" => connection_port: ConnectionPort = ConnectionPort::Number(22);
        "username" => username: Option<Arc<str>> = None, absent Some("zuul".into());
        /// Passed to Ansible unchanged, so `auto` if not configured.
        "python_path" => python_path: Option<Arc<str>> = None;
        "shell_type" => shell_type: Option<Arc<str>> = None;
        /// Each is `<type> <base64>`. If empty, Zuul does not verify the host.
        "host_keys" => host_keys: Vec<Box<str>> = Vec::new();

        "cloud" => cloud: Option<Arc<str>> = None;
        "region" => region: Option<Arc<str>> = None;
        "az" => az: Option<Arc<str>> = None;
        "host_id" => host_id: Option<Box<str>> = None;
        /// The path of the upload it booted from, or the name of a cloud image.
        "image_id" => image_id: Option<Arc<str>> = None;
        /// The resources that count towards quotas.
        "resources" => resources: Option<Resources> = None;
        /// The pool's `node-attributes`.
        "attributes" => attributes: Opaque = Opaque::NULL;
        "node_properties" => node_properties: Opaque = Opaque::empty_object();
        /// The slot of a shared machine.
        "slot" => slot: Option<i64> = None;
        /// The driver's own data.
        "driver_data" => driver_data: Opaque = Opaque::NULL;

        /// The requestor's own data.
        "user_data" => user_data: Opaque = Opaque::NULL;
        /// The job for which it is held.
        "hold_job" => hold_job: Option<Box<str>> = None;
        "comment" => comment: Option<Box<str>> = None;
        /// The maximum number of seconds in `hold`; zero and null mean no limit.
        "hold_expiration" => hold_expiration: Option<i64> = None, reads parse_seconds;
    }
}

impl_set_state!(Node: NodeState);

impl Node {
    /// Creates a node in the state `init`.
    pub fn init(now: Timestamp) -> Self {
        Self {
            created_time: Some(now),
            ..Self::new(NodeState::Init, now)
        }
    }

    /// Returns the request it is allocated to, if that is a valid request id.
    pub fn request(&self) -> Option<RequestId> {
        self.allocated_to.as_ref().and_then(Allocation::request)
    }
}

/// What a node is allocated to.
///
/// Python allows any text here. A text that is not a request id is preserved and treated like a request that does not
/// exist.
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

impl JsonField for Allocation {
    fn read(value: &RawValue) -> Result<Self, DecodeError> {
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

/// Returns whether the key must not be written. Zuul turns every key into an attribute of its node object, and these
/// would replace its own attributes and methods. Zuul adds `id` to every record it writes.
fn is_reserved_key(key: &str) -> bool {
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

/// Parses labels. Older records have a single label instead of a list.
fn label_or_list(value: &RawValue) -> Result<Vec<Label>, DecodeError> {
    if json::is_string(value) {
        Ok(vec![Label::read(value)?])
    } else {
        Vec::read(value)
    }
}

/// Parses a number of seconds, which may be a string or a fraction. Text that is not a number means no limit.
fn parse_seconds(value: &RawValue) -> Result<Option<i64>, DecodeError> {
    if json::is_null(value) {
        return Ok(None);
    }
    if json::is_string(value) {
        return Ok(Some(json::text(value)?.trim().parse().unwrap_or(0)));
    }
    i64::read(value)
        .or_else(|error| json::finite_number(value).map(truncate).map_err(|_| error))
        .map(Some)
}

/// Truncates to an integer, saturating.
fn truncate(number: f64) -> i64 {
    number as i64
}

/// The port of a node, or the connection data of a pod or namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionPort {
    /// Unknown. Zuul clears the port of cluster nodes that it has used.
    Null,
    Number(u16),
    /// Server, token and names of a namespace or pod.
    Cluster(Opaque),
}

/// Written by Python's metastatic driver while it waits for a machine.
const UNKNOWN_PORT: &str = r#""unknown""#;

impl JsonField for ConnectionPort {
    fn read(value: &RawValue) -> Result<Self, DecodeError> {
        if json::is_null(value) || value.get() == UNKNOWN_PORT {
            return Ok(Self::Null);
        }
        if json::is_object(value) {
            return Opaque::read(value).map(Self::Cluster);
        }
        let number = i64::read(value)
            .map_err(|_| DecodeError::wrong_type("a port number, an object or null", value))?;
        u16::try_from(number).map(Self::Number).map_err(|_| {
            DecodeError::new(format_args!("{number} is not a port; ports end at 65535"))
        })
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
    fn absent_keys_have_pythons_defaults() {
        let node = read("");
        assert_eq!(node.username.as_deref(), Some("zuul"));
        assert_eq!(node.connection_port, ConnectionPort::Number(22));
        assert_eq!(node.node_properties.text(), "{}");
        assert_eq!(node.python_path, None);
        assert!(node.labels.is_empty() && node.host_keys.is_empty());
    }

    #[test]
    fn older_forms_are_parsed() {
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
    fn allocations_may_be_any_text() {
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
    fn reserved_keys_are_not_written() {
        let node = read(
            r#", "id": "0000000001", "label": "x", "lock": 1, "stat": {}, "_keys": [],
                "toDict": 1, "name": "n", "private_ipv6": "::1""#,
        );
        let keys: Vec<_> = node.other().iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["private_ipv6"]);
        assert!(!written(&node).contains("\"lock\""));
    }

    #[test]
    fn the_port_is_written_under_both_keys() {
        let json = written(&read(r#", "connection_port": 5986"#));
        assert!(
            json.contains(r#""connection_port": 5986"#) && json.contains(r#""ssh_port": 5986"#)
        );
    }

    #[test]
    fn type_errors_have_the_path_but_not_the_value() {
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
            assert_eq!(error.to_string(), format!("invalid node record: {message}"));
        }
    }

    #[test]
    fn tokens_are_not_in_debug_output() {
        let node = read(r#", "connection_port": {"token": "secret"}"#);
        assert!(!format!("{node:?}").contains("secret"));
    }
}
