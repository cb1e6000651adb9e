//! Leftovers that cannot carry tags: floating IPs without a server, and ports that stay down.

use std::collections::BTreeSet;

use async_trait::async_trait;
use nodeyard_driver::Error;
use nodeyard_driver_common::openstack::Untagged;
use serde_json::json;

use super::FakeDriver;
use crate::client::{FloatingIp, Port};

#[async_trait]
impl Untagged for FakeDriver {
    async fn remove_floating_ips(&self) -> Result<usize, Error> {
        let ips: Vec<FloatingIp> = self.client.call("list_floating_ips", json!({})).await?;
        let mut removed = 0;
        for ip in ips.iter().filter(|ip| ip.port_id.is_none()) {
            self.client.delete("delete_floating_ip", &ip.id).await?;
            removed += 1;
        }
        Ok(removed)
    }

    /// Ports of servers and ports without owner; those of routers and other devices stay.
    async fn down_ports(&self) -> Result<BTreeSet<Box<str>>, Error> {
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

    async fn remove_port(&self, port: &str) -> Result<bool, Error> {
        self.client.delete("delete_port", port).await?;
        Ok(true)
    }
}
