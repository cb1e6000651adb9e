//! Deleting what a node consists of.

use std::time::Duration;

use nodeyard_driver::{Error, ResourceKind, State, Step, Target};
use nodeyard_model::{NodeId, Timestamp};
use nodeyard_openstack::Server;
use serde::{Deserialize, Serialize};

use super::{OpenStackDriver, text_id};
use crate::failure::failed;

/// Nova lists a server as deleted until it does not count any more, which takes a moment; some clouds show it for longer.
const SHOWN: Duration = Duration::from_secs(60);
/// A volume that has not gone after this time is left to whoever looks for leaks.
const VOLUMES_GO: Duration = Duration::from_secs(300);

#[derive(Debug, Default, Serialize, Deserialize)]
enum Delete {
    #[default]
    Asked,
    /// The cloud was told.
    Going {
        servers: Vec<Box<str>>,
        /// They should go with their servers.
        volumes: Vec<Box<str>>,
        since: Timestamp,
    },
}

impl OpenStackDriver {
    pub(super) async fn step_delete(
        &self,
        target: &Target,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<()>, Error> {
        match state.read()? {
            Delete::Asked => {
                let (node, servers) = match target {
                    Target::Node { node, external_id } => {
                        let id = external_id.as_ref().map(text_id).transpose()?;
                        (Some(*node), self.servers_of(*node, id.as_deref()).await?)
                    }
                    Target::Resource { kind, id } if *kind == ResourceKind::INSTANCES => {
                        let server = self.compute.server(&text_id(id)?).await.map_err(failed)?;
                        (None, server.into_iter().collect())
                    }
                    Target::Resource { kind, id } => {
                        self.delete_resource(kind, &text_id(id)?).await?;
                        return Ok(Step::Done(()));
                    }
                };
                if servers.is_empty() {
                    // The server may have gone by itself, and left its address.
                    self.delete_floating_ips(node, None).await?;
                    return Ok(Step::Done(()));
                }
                for server in &servers {
                    self.delete_server(node, server).await?;
                }
                let attached = servers.iter().flat_map(|server| &server.volumes);
                let volumes = attached.filter(|volume| volume.delete_on_termination);
                state.write(&Delete::Going {
                    volumes: volumes.map(|volume| volume.id.clone()).collect(),
                    servers: servers.into_iter().map(|server| server.id).collect(),
                    since: now,
                })?;
                Ok(Step::go_on())
            }
            Delete::Going {
                servers,
                volumes,
                since,
            } => {
                let age = now.since(since);
                // A list from before the deletion may not know the server yet.
                let there = self.servers(self.options.list_age.min(age)).await?;
                let is_there = |server: &Server| {
                    servers.contains(&server.id) && !(server.is_gone() && age > SHOWN)
                };
                let waits =
                    there.iter().any(is_there) || self.volumes_are_there(&volumes, age).await?;
                Ok(if waits {
                    Step::wait(self.options.poll.after(age))
                } else {
                    Step::Done(())
                })
            }
        }
    }

    /// Volumes go with their server, but after it. Those that do not are deleted.
    async fn volumes_are_there(&self, volumes: &[Box<str>], age: Duration) -> Result<bool, Error> {
        if volumes.is_empty() || age > VOLUMES_GO {
            return Ok(false);
        }
        let all = self.volumes(self.options.list_age.min(age)).await?;
        let mut there = false;
        for volume in all.iter().filter(|volume| volumes.contains(&volume.id)) {
            there = true;
            if matches!(&*volume.status, "available" | "error") {
                self.volumes
                    .delete_volume(&volume.id)
                    .await
                    .map_err(failed)?;
            }
        }
        Ok(there)
    }

    /// All that carry the node's id, and the one that its record names. A lost answer may have left two.
    async fn servers_of(&self, node: NodeId, id: Option<&str>) -> Result<Vec<Server>, Error> {
        let is_named = |server: &Server| Some(&*server.id) == id;
        let known = self.servers(self.options.list_age).await?;
        let all = if known.iter().any(is_named) {
            known
        } else {
            self.servers(Duration::ZERO).await?
        };
        let is_one = |server: &&Server| is_named(server) || self.is_of_node(server, node);
        Ok(all.iter().filter(is_one).cloned().collect())
    }

    async fn delete_resource(&self, kind: &ResourceKind, id: &str) -> Result<(), Error> {
        let deleted = match kind {
            kind if *kind == ResourceKind::FLOATING_IPS => {
                self.network.delete_floating_ip(id).await
            }
            kind if *kind == ResourceKind::PORTS => self.network.delete_port(id).await,
            kind if *kind == ResourceKind::VOLUMES => self.volumes.delete_volume(id).await,
            kind if *kind == ResourceKind::IMAGES => return self.remove_image(id).await,
            kind => return Err(Error::unsupported(&format!("delete {kind}"))),
        };
        deleted.map_err(failed)
    }

    /// Floating IPs go first: without their server nobody would find them.
    pub(super) async fn delete_server(
        &self,
        node: Option<NodeId>,
        server: &Server,
    ) -> Result<(), Error> {
        self.delete_floating_ips(node, Some(server)).await?;
        if !server.is_going() {
            self.compute
                .delete_server(&server.id)
                .await
                .map_err(failed)?;
        }
        Ok(())
    }
}
