//! Removing what cannot carry tags: floating IPs without a port, and ports that stay down.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use nodeyard_driver::{Error, Tidied};
use nodeyard_driver_common::openstack::Removed;
use nodeyard_model::Timestamp;
use nodeyard_openstack::{self as openstack, ErrorKind, Port};

use super::OpenStackDriver;
use crate::failure::failed;

impl OpenStackDriver {
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

    /// Those that lead nowhere, whoever made them: that is what the key asks for.
    async fn remove_floating_ips(&self) -> Result<usize, Error> {
        let ips = self.floating_ips(Duration::ZERO).await?;
        let mut removed = 0;
        for ip in ips.iter().filter(|ip| ip.port_id.is_none()) {
            removed += removal(self.network.delete_unchanged_floating_ip(ip).await)?;
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
                removed += removal(self.network.delete_port(port).await)?;
            }
        }
        self.down_ports.seen(now, ports);
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
