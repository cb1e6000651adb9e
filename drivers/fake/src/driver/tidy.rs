//! Removing what cannot carry tags: floating IPs without a server, and ports that stay down.

use std::collections::BTreeSet;

use nodeyard_driver::{Error, ResourceKind, Tidied};
use nodeyard_model::Timestamp;
use serde_json::json;

use super::{FakeDriver, lock};
use crate::client::{FloatingIp, Port};

/// Ports that were down when somebody last looked.
#[derive(Debug)]
pub(super) struct DownPorts {
    seen: Timestamp,
    ports: BTreeSet<String>,
}

impl FakeDriver {
    pub(super) async fn remove_untagged(&self, now: Timestamp) -> Result<Vec<Tidied>, Error> {
        let mut tidied = Vec::new();
        let mut note = |kind, count| {
            if count > 0 {
                tidied.push(Tidied { kind, count });
            }
        };
        if self.options.clean_floating_ips {
            note(
                ResourceKind::FLOATING_IPS,
                self.remove_floating_ips().await?,
            );
        }
        if !self.options.port_cleanup_interval.is_zero() {
            note(ResourceKind::PORTS, self.remove_down_ports(now).await?);
        }
        Ok(tidied)
    }

    async fn remove_floating_ips(&self) -> Result<usize, Error> {
        let ips: Vec<FloatingIp> = self.client.call("list_floating_ips", json!({})).await?;
        let mut removed = 0;
        for ip in ips.iter().filter(|ip| ip.port_id.is_none()) {
            self.client.delete("delete_floating_ip", &ip.id).await?;
            removed += 1;
        }
        Ok(removed)
    }

    /// A port is down for a moment while its server is made: only what is down at two looks that are an
    /// interval apart goes.
    async fn remove_down_ports(&self, now: Timestamp) -> Result<usize, Error> {
        let before = match &*lock(&self.down_ports) {
            Some(down) if now.since(down.seen) < self.options.port_cleanup_interval => {
                return Ok(0);
            }
            Some(down) => down.ports.clone(),
            None => BTreeSet::new(),
        };
        let mut ports = self.down_ports_now().await?;
        let mut removed = 0;
        for port in &before {
            if ports.remove(port) {
                self.client.delete("delete_port", port).await?;
                removed += 1;
            }
        }
        *lock(&self.down_ports) = Some(DownPorts { seen: now, ports });
        Ok(removed)
    }

    /// Those of servers and of nobody, not those of routers and the like.
    async fn down_ports_now(&self) -> Result<BTreeSet<String>, Error> {
        let ports: Vec<Port> = self
            .client
            .call("list_ports", json!({"status": "DOWN"}))
            .await?;
        let of_compute = |port: &Port| {
            let owner = port.device_owner.as_deref().unwrap_or_default();
            owner.is_empty() || owner.starts_with("compute:")
        };
        Ok(ports
            .into_iter()
            .filter(of_compute)
            .map(|port| port.id)
            .collect())
    }
}
