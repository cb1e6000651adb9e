//! Deleting what a node consists of.

use nodeyard_driver::{Error, ResourceKind, State, Step, Target};
use nodeyard_model::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{FakeDriver, server_id};
use crate::client::{FloatingIp, Port, Server};

#[derive(Debug, Default, Serialize, Deserialize)]
enum Delete {
    #[default]
    Asked,
    /// The cloud was told.
    Going {
        servers: Vec<String>,
        since: Timestamp,
    },
}

impl FakeDriver {
    pub(super) async fn step_delete(
        &self,
        target: &Target,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<()>, Error> {
        match state.read()? {
            Delete::Asked => {
                let Some(servers) = self.servers_of(target).await? else {
                    return Ok(Step::Done(()));
                };
                for server in &servers {
                    self.delete_with_addresses(server).await?;
                }
                if servers.is_empty() {
                    return Ok(Step::Done(()));
                }
                let servers = servers.into_iter().map(|server| server.id).collect();
                state.write(&Delete::Going {
                    servers,
                    since: now,
                })?;
                Ok(Step::go_on())
            }
            Delete::Going { servers, since } => {
                for server in &servers {
                    if self.client.get_server(server).await?.is_some() {
                        return Ok(Step::wait(self.options.poll.after(now.since(since))));
                    }
                }
                Ok(Step::Done(()))
            }
        }
    }

    /// The servers that are to go. None if the target is something else, which is gone now.
    async fn servers_of(&self, target: &Target) -> Result<Option<Vec<Server>>, Error> {
        match target {
            Target::Node { node, external_id } => {
                // An id that leads nowhere may be that of an earlier try.
                if let Some(id) = external_id
                    && let Some(server) = self.client.get_server(&server_id(id)?).await?
                {
                    return Ok(Some(vec![server]));
                }
                Ok(Some(self.servers_of_node(*node).await?))
            }
            Target::Resource { kind, id } if *kind == ResourceKind::INSTANCES => {
                let server = self.client.get_server(&server_id(id)?).await?;
                Ok(Some(server.into_iter().collect()))
            }
            Target::Resource { kind, id } => {
                let method = match kind {
                    kind if *kind == ResourceKind::IMAGES => "delete_image",
                    kind if *kind == ResourceKind::FLOATING_IPS => "delete_floating_ip",
                    kind if *kind == ResourceKind::PORTS => "delete_port",
                    kind => return Err(Error::unsupported(&format!("delete {kind}"))),
                };
                self.client.delete(method, &server_id(id)?).await?;
                Ok(None)
            }
        }
    }

    /// Floating IPs go first: without their server nobody would find them.
    pub(super) async fn delete_with_addresses(&self, server: &Server) -> Result<(), Error> {
        if server.has_floating_ip() {
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
        }
        if !server.is_going() {
            self.client.delete_server(&server.id).await?;
        }
        Ok(())
    }
}
