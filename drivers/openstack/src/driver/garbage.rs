//! Deletes what cannot carry tags: floating IPs without a port, and ports that stay down.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_driver::Error;
use nodeyard_driver_common::openstack::Untagged;
use nodeyard_openstack::{self as openstack, ErrorKind, Port};

use super::OpenStackDriver;
use crate::failure::driver_error;

#[async_trait]
impl Untagged for OpenStackDriver {
    /// Deletes all floating IPs of the project without a port, also those of others: that is what the configuration key
    /// asks for.
    async fn remove_floating_ips(&self) -> Result<usize, Error> {
        if !self.has_project().await? {
            return Ok(0);
        }
        let ips = self.floating_ips(Duration::ZERO).await?;
        let mut removed = 0;
        for ip in ips.iter().filter(|ip| ip.port_id.is_none()) {
            let deleted = self.network.delete_unchanged_floating_ip(ip).await;
            removed += usize::from(was_deleted(deleted)?);
        }
        Ok(removed)
    }

    /// Lists the project's ports of servers that do not exist and those without an owner, but not those of routers and the
    /// like.
    async fn down_ports(&self) -> Result<BTreeSet<Box<str>>, Error> {
        if !self.has_project().await? {
            return Ok(BTreeSet::new());
        }
        let ports = self
            .network
            .ports_that_are("DOWN")
            .await
            .map_err(driver_error)?;
        if ports.is_empty() {
            return Ok(BTreeSet::new());
        }
        // Listed after the ports: a server whose port was listed is older than its port.
        let servers = self.all_servers().await?;
        let servers: HashSet<_> = servers.iter().map(|server| &server.id).collect();
        let is_left = |port: &Port| {
            let unowned = port.device_owner.is_empty();
            (unowned || port.device_owner.starts_with("compute:"))
                && !servers.contains(&port.device_id)
        };
        Ok(ports
            .into_iter()
            .filter(is_left)
            .map(|port| port.id)
            .collect())
    }

    async fn remove_port(&self, port: &str) -> Result<bool, Error> {
        was_deleted(self.network.delete_port(port).await)
    }
}

impl OpenStackDriver {
    /// Returns whether the login has a project. Otherwise the lists are those of all projects, and nothing is deleted.
    async fn has_project(&self) -> Result<bool, Error> {
        let project = self.session.project_id().await.map_err(driver_error)?;
        if project.is_none() {
            tracing::warn!(
                "skipping clean-up of ports and floating IPs: the login has no project; set project_name in clouds.yaml"
            );
        }
        Ok(project.is_some())
    }
}

/// A refusal is logged and skipped: newer Neutrons let only Nova delete the ports of servers.
fn was_deleted(result: Result<(), openstack::Error>) -> Result<bool, Error> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::Forbidden | ErrorKind::Conflict) => {
            tracing::warn!(%error, "failed to delete unused resource");
            Ok(false)
        }
        Err(error) => Err(driver_error(error)),
    }
}
