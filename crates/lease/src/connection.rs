//! How to connect to a node, from its record.

use nodeyard_model::{ConnectionPort, Node};
use serde::{Deserialize, Serialize};

/// What is needed to log in to a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeConnection {
    /// `ssh`, `winrm`, `network_cli`, `kubectl`, `namespace`, `project`, or the container engine to `exec` with.
    pub kind: String,
    /// The address, or the name of the pod or container.
    pub host: Option<String>,
    /// None for kinds without a port.
    pub port: Option<u16>,
    pub user: Option<String>,
    /// The interpreter for Ansible: a path, or `auto`.
    pub python: Option<String>,
    pub shell: Option<String>,
    /// `<type> <base64>` each.
    pub host_keys: Vec<String>,
    /// Server, namespace and token of a cluster.
    pub cluster: Option<serde_json::Value>,
}

impl NodeConnection {
    pub fn from_node(node: &Node) -> Self {
        let kind = node.connection_type.as_deref().unwrap_or("ssh");
        let (port, cluster) = match &node.connection_port {
            ConnectionPort::Number(port) => (Some(*port), None),
            ConnectionPort::Cluster(cluster) => (None, cluster.decode().ok()),
            ConnectionPort::Null => (None, None),
        };
        let text = |text: Option<&str>| text.map(str::to_owned);
        Self {
            kind: kind.to_owned(),
            host: text(node.interface_ip.as_deref()),
            port,
            user: text(node.username.as_deref()),
            python: text(node.python_path.as_deref()),
            shell: text(node.shell_type.as_deref()),
            host_keys: node.host_keys.iter().map(ToString::to_string).collect(),
            cluster,
        }
    }

    /// Returns the lines for the `known_hosts` file of ssh.
    pub fn known_hosts(&self) -> String {
        let Some(host) = &self.host else {
            return String::new();
        };
        let host = match self.port {
            Some(port) if port != 22 => format!("[{host}]:{port}"),
            _ => host.clone(),
        };
        let keys = self.host_keys.iter();
        keys.map(|key| format!("{host} {key}\n")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ssh_knows_the_host_by_its_port_unless_it_is_the_usual_one() {
        let mut connection = NodeConnection {
            kind: "ssh".to_owned(),
            host: Some("192.0.2.7".to_owned()),
            port: Some(22),
            user: None,
            python: None,
            shell: None,
            host_keys: vec!["ssh-ed25519 A".to_owned(), "ssh-rsa B".to_owned()],
            cluster: None,
        };
        let known = connection.known_hosts();
        assert_eq!(known, "192.0.2.7 ssh-ed25519 A\n192.0.2.7 ssh-rsa B\n");
        connection.port = Some(2222);
        assert!(connection.known_hosts().starts_with("[192.0.2.7]:2222 "));
        connection.host = None;
        assert_eq!(connection.known_hosts(), "");
    }
}
