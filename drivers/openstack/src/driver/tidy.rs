//! Removing what cannot carry tags: floating IPs without a port, and ports that stay down.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_driver::Error;
use nodeyard_driver_common::openstack::Untagged;
use nodeyard_openstack::{self as openstack, ErrorKind, Port};

use super::OpenStackDriver;
use crate::failure::failed;

#[async_trait]
impl Untagged for OpenStackDriver {
    /// Those that lead nowhere, whoever made them: that is what the key asks for.
    async fn remove_floating_ips(&self) -> Result<usize, Error> {
        let ips = self.floating_ips(Duration::ZERO).await?;
        let mut removed = 0;
        for ip in ips.iter().filter(|ip| ip.port_id.is_none()) {
            let deleted = self.network.delete_unchanged_floating_ip(ip).await;
            removed += usize::from(is_removed(deleted)?);
        }
        Ok(removed)
    }

    /// Those of servers that do not exist, and of nobody; not those of routers and the like.
    async fn down_ports(&self) -> Result<BTreeSet<Box<str>>, Error> {
        let ports = self.network.ports_that_are("DOWN").await.map_err(failed)?;
        if ports.is_empty() {
            return Ok(BTreeSet::new());
        }
        // Asked after the ports: a server whose port we have seen is older than that.
        let servers = self.servers(Duration::ZERO).await?;
        let servers: HashSet<_> = servers.iter().map(|server| &server.id).collect();
        let is_left = |port: &Port| {
            let of_nobody = port.device_owner.is_empty();
            (of_nobody || port.device_owner.starts_with("compute:"))
                && !servers.contains(&port.device_id)
        };
        Ok(ports
            .into_iter()
            .filter(is_left)
            .map(|port| port.id)
            .collect())
    }

    async fn remove_port(&self, port: &str) -> Result<bool, Error> {
        is_removed(self.network.delete_port(port).await)
    }
}

/// What we may not remove stays: newer Neutrons leave the ports of servers to Nova.
fn is_removed(result: Result<(), openstack::Error>) -> Result<bool, Error> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::Forbidden | ErrorKind::Conflict) => {
            tracing::warn!(%error, "something that nobody uses cannot be removed");
            Ok(false)
        }
        Err(error) => Err(failed(error)),
    }
}
