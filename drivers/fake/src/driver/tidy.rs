//! Removing what cannot carry tags: floating IPs without a server, and ports that stay down.

use std::collections::BTreeSet;

use nodeyard_driver::{Error, Tidied};
use nodeyard_driver_common::openstack::Removed;
use nodeyard_model::Timestamp;
use serde_json::json;

use super::FakeDriver;
use crate::client::{FloatingIp, Port};

impl FakeDriver {
    pub(super) async fn remove_untagged(&self, now: Timestamp) -> Result<Vec<Tidied>, Error> {
        let mut removed = Removed::default();
        if self.options.clean_floating_ips {
            removed.floating_ips = self.remove_floating_ips().await?;
        }
        if !self.options.port_cleanup_interval.is_zero() {
            removed.ports = self.remove_down_ports(now).await?;
        }
        Ok(removed.tidied())
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

    /// Those that are down at two looks that are an interval apart.
    async fn remove_down_ports(&self, now: Timestamp) -> Result<usize, Error> {
        let interval = self.options.port_cleanup_interval;
        let Some(before) = self.down_ports.before(now, interval) else {
            return Ok(0);
        };
        let mut ports = self.down_ports_now().await?;
        let mut removed = 0;
        for port in &before {
            if ports.remove(port) {
                self.client.delete("delete_port", port).await?;
                removed += 1;
            }
        }
        self.down_ports.seen(now, ports);
        Ok(removed)
    }

    /// Those of servers and of nobody, not those of routers and the like.
    async fn down_ports_now(&self) -> Result<BTreeSet<Box<str>>, Error> {
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
            .map(|port| port.id.into())
            .collect())
    }
}
