//! Removing what cannot carry tags: floating IPs without a port, and ports that stay down.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use nodeyard_driver::{Error, ResourceKind, Tidied};
use nodeyard_model::Timestamp;
use nodeyard_openstack::{self as openstack, ErrorKind, Port};

use super::{OpenStackDriver, lock};
use crate::failure::failed;

/// Ports that were down when somebody last looked.
#[derive(Debug)]
pub(super) struct DownPorts {
    seen: Timestamp,
    ports: BTreeSet<Box<str>>,
}

impl OpenStackDriver {
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

    /// Those that lead nowhere, whoever made them: that is what the key asks for.
    async fn remove_floating_ips(&self) -> Result<usize, Error> {
        let ips = self.floating_ips(Duration::ZERO).await?;
        let mut removed = 0;
        for ip in ips.iter().filter(|ip| ip.port_id.is_none()) {
            removed += removal(self.network.delete_unchanged_floating_ip(ip).await)?;
        }
        Ok(removed)
    }

    /// A port is down for a moment while its server is made: only what is down at two looks that are an interval apart
    /// goes.
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
                removed += removal(self.network.delete_port(port).await)?;
            }
        }
        *lock(&self.down_ports) = Some(DownPorts { seen: now, ports });
        Ok(removed)
    }

    /// Those of servers that do not exist, and of nobody; not those of routers and the like.
    async fn down_ports_now(&self) -> Result<BTreeSet<Box<str>>, Error> {
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
}

/// How many were removed. What we may not remove stays: newer Neutrons leave the ports of servers to Nova.
fn removal(result: Result<(), openstack::Error>) -> Result<usize, Error> {
    match result {
        Ok(()) => Ok(1),
        Err(error) if matches!(error.kind(), ErrorKind::Forbidden | ErrorKind::Conflict) => {
            tracing::warn!(%error, "something that nobody uses cannot be removed");
            Ok(0)
        }
        Err(error) => Err(failed(error)),
    }
}
