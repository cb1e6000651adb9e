//! Floating IPs: one for each server that has no public address.
//!
//! They are created for a port, so one without a port was left behind. The next server of the same node uses it again.
//! Those of other nodes are left to the search for leaks: Neutron lets two launchers take the same one at the same moment,
//! whatever revision they insist on.

use std::time::Duration;

use nodeyard_driver::Error;
use nodeyard_model::NodeId;
use nodeyard_openstack::{Address, ErrorKind, FloatingIp, NewFloatingIp, Port, Server};

use super::OpenStackDriver;
use crate::description;
use crate::failure::driver_error;
use crate::networks::Networks;

impl OpenStackDriver {
    /// Whether the cloud offers floating IPs and a pool uses them.
    pub(super) async fn has_floating_ips(&self) -> Result<bool, Error> {
        let wanted = self
            .options
            .cloud
            .pools
            .iter()
            .any(|pool| pool.auto_floating_ip);
        if !wanted || !self.session.settings().floating_ips {
            return Ok(false);
        }
        Ok(self.networks().await?.nat_source.is_some())
    }

    /// Attaches a floating IP unless the server has one, and adds it to the server's addresses.
    pub(super) async fn attach_floating_ip(
        &self,
        node: NodeId,
        networks: &Networks,
        server: &mut Server,
    ) -> Result<(), Error> {
        let Some(source) = &networks.nat_source else {
            return Ok(());
        };
        let ports = self.ports_of(server).await?;
        // None on external networks only, or without IPv4: such a server needs no floating IP.
        let Some((port, fixed)) = networks.nat_port(ports.iter()) else {
            return Ok(());
        };
        let description = description::description(&self.options.owner, node);
        let wanted = NewFloatingIp {
            network: source,
            port: &port.id,
            fixed_address: fixed,
            description: &description,
        };
        let ip = self.floating_ip_for(node, &wanted).await?;
        let address = Address {
            addr: ip.address,
            version: 4,
            kind: Some("floating".into()),
            mac: Some(port.mac_address.clone()),
        };
        let on_network =
            |addresses: &&mut Vec<Address>| addresses.iter().any(|a| *a.addr == *fixed);
        match server.addresses.values_mut().find(on_network) {
            Some(addresses) => addresses.push(address),
            None => {
                server
                    .addresses
                    .entry(String::new())
                    .or_default()
                    .push(address);
            }
        }
        Ok(())
    }

    async fn ports_of(&self, server: &Server) -> Result<Vec<Port>, Error> {
        for age in [self.options.list_age, Duration::ZERO] {
            let ports = self.ports(age).await?;
            let own = ports.iter().filter(|port| port.device_id == server.id);
            let own: Vec<_> = own.cloned().collect();
            if !own.is_empty() {
                return Ok(own);
            }
        }
        Ok(Vec::new())
    }

    /// Returns the one that the port has, one that an earlier server of the node had, or a new one.
    async fn floating_ip_for(
        &self,
        node: NodeId,
        wanted: &NewFloatingIp<'_>,
    ) -> Result<FloatingIp, Error> {
        let known = self.floating_ips(self.options.list_age).await?;
        let is_there = |ip: &&FloatingIp| ip.port_id.as_deref() == Some(wanted.port);
        if let Some(ip) = known.iter().find(is_there) {
            return Ok(ip.clone());
        }
        let owner = &self.options.owner;
        let is_free = |ip: &&FloatingIp| {
            ip.port_id.is_none()
                && *ip.network_id == *wanted.network
                && owner.owns_node(&description::tags(&ip.description), node)
        };
        for ip in known.iter().filter(is_free) {
            match self.network.attach_floating_ip(ip, wanted).await {
                Ok(ip) => return Ok(ip),
                // It was changed or deleted meanwhile.
                Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => {
                    self.floating_ips.forget().await;
                }
                Err(error) => return Err(driver_error(error)),
            }
        }
        match self.network.create_floating_ip(wanted).await {
            Ok(ip) => Ok(ip),
            Err(error) => {
                // It may exist, or the port may have got one: the next attempt must list them again.
                self.floating_ips.forget().await;
                Err(driver_error(error))
            }
        }
    }

    /// Deletes the floating IPs that carry the node's id or are attached to the server.
    pub(super) async fn delete_floating_ips(
        &self,
        node: Option<NodeId>,
        server: Option<&Server>,
    ) -> Result<(), Error> {
        if !self.has_floating_ips().await? {
            return Ok(());
        }
        let ips = self.floating_ips(Duration::ZERO).await?;
        let has_some = ips.iter().any(|ip| ip.port_id.is_some());
        let ports = match server {
            Some(server) if has_some => self.ports_of(server).await?,
            _ => Vec::new(),
        };
        let is_of_node = |ip: &FloatingIp| {
            let tags = description::tags(&ip.description);
            node.is_some_and(|node| self.options.owner.owns_node(&tags, node))
        };
        let leads_to_server = |ip: &FloatingIp| {
            let port = ip.port_id.as_ref();
            port.is_some_and(|id| ports.iter().any(|port| port.id == *id))
        };
        for ip in ips
            .iter()
            .filter(|ip| is_of_node(ip) || leads_to_server(ip))
        {
            self.network
                .delete_floating_ip(&ip.id)
                .await
                .map_err(driver_error)?;
        }
        Ok(())
    }
}
