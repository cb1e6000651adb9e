//! Ports and floating IPs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::catalog::ById;
use super::random::Random;
use super::{Cloud, CloudError, Reply};

#[derive(Debug, Clone, Serialize)]
pub(super) struct Port {
    id: String,
    status: &'static str,
    /// Null for ports without owner.
    device_owner: Option<String>,
    device_id: String,
}

#[derive(Debug, Default)]
pub(super) struct Ports(BTreeMap<String, Port>);

impl Ports {
    /// Starts with two abandoned ports.
    pub(super) fn new(random: &mut Random) -> Self {
        let mut ports = Self::default();
        for device_owner in [Some("compute:nova".to_owned()), None] {
            ports.add(Port {
                id: random.id(),
                status: "DOWN",
                device_owner,
                device_id: String::new(),
            });
        }
        ports
    }

    fn add(&mut self, port: Port) {
        self.0.insert(port.id.clone(), port);
    }

    pub(super) fn attach(&mut self, id: &str, server: &str, zone: &str) {
        self.add(Port {
            id: id.to_owned(),
            status: "ACTIVE",
            device_owner: Some(format!("compute:{zone}")),
            device_id: server.to_owned(),
        });
    }

    pub(super) fn remove(&mut self, id: &str) {
        self.0.remove(id);
    }
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct FloatingIp {
    id: String,
    floating_ip_address: String,
    status: &'static str,
    port_id: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct FloatingIps(BTreeMap<String, FloatingIp>);

impl FloatingIps {
    /// Detaches the floating IP of a deleted server. It remains until it is deleted itself, as in OpenStack.
    pub(super) fn detach(&mut self, port: &str) {
        for ip in self.0.values_mut() {
            if ip.port_id.as_deref() == Some(port) {
                ip.port_id = None;
                ip.status = "DOWN";
            }
        }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct ListPorts {
    #[serde(default)]
    status: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct CreateFloatingIp {
    server: String,
}

impl Cloud {
    pub(super) fn list_ports(&self, wanted: &ListPorts) -> Result<Reply, CloudError> {
        let status = wanted.status.as_deref();
        let ports: Vec<_> = self
            .ports
            .0
            .values()
            .filter(|port| status.is_none_or(|status| port.status == status))
            .collect();
        Reply::now(&ports)
    }

    pub(super) fn delete_port(&mut self, wanted: &ById) -> Result<Reply, CloudError> {
        self.ports.remove(&wanted.id);
        Reply::now(&())
    }

    pub(super) fn list_floating_ips(&self) -> Result<Reply, CloudError> {
        Reply::now(&self.floating_ips.0.values().collect::<Vec<_>>())
    }

    /// Creates a floating IP and attaches it.
    pub(super) fn create_floating_ip(
        &mut self,
        wanted: &CreateFloatingIp,
    ) -> Result<Reply, CloudError> {
        let Some(server) = self.servers.get_mut(&wanted.server) else {
            return Err(CloudError::not_found("server", &wanted.server));
        };
        let address = "fake".to_owned();
        server.add_floating_ip(&address);
        let ip = FloatingIp {
            id: self.random.id(),
            floating_ip_address: address,
            status: "ACTIVE",
            port_id: Some(server.port.clone()),
        };
        self.floating_ips.0.insert(ip.id.clone(), ip.clone());
        Reply::now(&ip)
    }

    pub(super) fn delete_floating_ip(&mut self, wanted: &ById) -> Result<Reply, CloudError> {
        self.floating_ips.0.remove(&wanted.id);
        Reply::now(&())
    }
}
