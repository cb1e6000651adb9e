//! Deletion of servers with everything that belongs to them, and of single resources.

use nodeyard_driver::{Error, ExternalId, ResourceKind, Target};
use serde_json::json;

use super::{FakeDriver, server_id};
use crate::client::{FloatingIp, Port, Server};

impl FakeDriver {
    pub(super) async fn delete_target(&self, target: &Target) -> Result<(), Error> {
        let servers = match target {
            Target::Node { node, external_id } => {
                let known = match external_id {
                    Some(id) => self.client.get_server(&server_id(id)?).await?,
                    None => None,
                };
                match known {
                    Some(server) => vec![server],
                    // An id that does not exist may be that of an earlier attempt.
                    None => self.servers_of_node(*node).await?,
                }
            }
            Target::Resource { kind, id } if *kind == ResourceKind::INSTANCES => {
                let server = self.client.get_server(&server_id(id)?).await?;
                server.into_iter().collect()
            }
            Target::Resource { kind, id } => return self.delete_resource(kind, id).await,
        };
        self.delete_servers(&servers).await
    }

    async fn delete_resource(&self, kind: &ResourceKind, id: &ExternalId) -> Result<(), Error> {
        let method = match kind {
            kind if *kind == ResourceKind::IMAGES => "delete_image",
            kind if *kind == ResourceKind::FLOATING_IPS => "delete_floating_ip",
            kind if *kind == ResourceKind::PORTS => "delete_port",
            kind => return Err(Error::unsupported(&format!("delete {kind}"))),
        };
        self.client.delete(method, &server_id(id)?).await
    }

    /// Returns when the servers are gone.
    pub(super) async fn delete_servers(&self, servers: &[Server]) -> Result<(), Error> {
        for server in servers {
            self.delete_floating_ips(server).await?;
            if !server.is_going() {
                self.client.delete_server(&server.id).await?;
            }
        }
        let timer = self.options.poll.start();
        for server in servers {
            while self.client.get_server(&server.id).await?.is_some() {
                timer.tick().await;
            }
        }
        Ok(())
    }

    /// Runs before the server is deleted: afterwards nothing says which floating IPs were its own.
    async fn delete_floating_ips(&self, server: &Server) -> Result<(), Error> {
        if !server.has_floating_ip() {
            return Ok(());
        }
        let ports: Vec<Port> = self.client.call("list_ports", json!({})).await?;
        let ips: Vec<FloatingIp> = self.client.call("list_floating_ips", json!({})).await?;
        let of_server = |id: &String| {
            ports
                .iter()
                .any(|port| port.id == *id && port.device_id.as_deref() == Some(&server.id))
        };
        for ip in ips
            .iter()
            .filter(|ip| ip.port_id.as_ref().is_some_and(of_server))
        {
            self.client.delete("delete_floating_ip", &ip.id).await?;
        }
        Ok(())
    }
}
