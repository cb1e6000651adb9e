//! Deletes the servers of a node with their floating IPs and volumes, or one resource.

use std::time::Duration;

use nodeyard_driver::{Error, ResourceKind, Target};
use nodeyard_model::NodeId;
use nodeyard_openstack::{ErrorKind, Server, Volume};

use super::volumes::volume_tags;
use super::{OpenStackDriver, text_id};
use crate::failure::driver_error;

/// How long the list of servers may show one as deleted. Nova counts it in the quota for a moment, and some clouds show
/// it for longer.
const SHOWN: Duration = Duration::from_secs(60);
/// After this time a volume that still exists is left to the search for leaks.
const VOLUMES_GO: Duration = Duration::from_secs(300);

impl OpenStackDriver {
    pub(super) async fn delete_target(&self, target: &Target) -> Result<(), Error> {
        let (node, servers) = match target {
            Target::Node { node, external_id } => {
                let id = external_id.as_ref().map(text_id).transpose()?;
                (Some(*node), self.servers_of(*node, id.as_deref()).await?)
            }
            Target::Resource { kind, id } if *kind == ResourceKind::INSTANCES => {
                let server = self.compute.server(&text_id(id)?).await;
                let server = server.map_err(driver_error)?;
                (None, server.into_iter().collect())
            }
            Target::Resource { kind, id } => {
                return self.delete_resource(kind, &text_id(id)?).await;
            }
        };
        for server in &servers {
            self.delete_server(node, server).await?;
        }
        if servers.is_empty() {
            // A server that was deleted by someone else leaves its floating IP.
            self.delete_floating_ips(node, None).await?;
        }
        self.wait_until_deleted(node, &servers).await
    }

    async fn wait_until_deleted(
        &self,
        node: Option<NodeId>,
        servers: &[Server],
    ) -> Result<(), Error> {
        let timer = self.options.poll.start();
        while self.servers_exist(servers, timer.age()).await?
            || self.volumes_exist(node, servers, timer.age()).await?
        {
            timer.tick().await;
        }
        Ok(())
    }

    /// `age` is the time since the deletion: an older list does not count.
    async fn servers_exist(&self, servers: &[Server], age: Duration) -> Result<bool, Error> {
        if servers.is_empty() {
            return Ok(false);
        }
        let all = self.servers(self.options.list_age.min(age)).await?;
        Ok(all.iter().any(|server| {
            let is_target = servers.iter().any(|target| target.id == server.id);
            is_target && !(server.is_gone() && age > SHOWN)
        }))
    }

    /// Returns whether volumes of the servers, or tagged with the node, exist. The cloud deletes them after their server;
    /// those that it kept are deleted here.
    async fn volumes_exist(
        &self,
        node: Option<NodeId>,
        servers: &[Server],
        age: Duration,
    ) -> Result<bool, Error> {
        let attached: Vec<_> = servers
            .iter()
            .flat_map(|server| &server.volumes)
            .filter(|volume| volume.delete_on_termination)
            .map(|volume| &volume.id)
            .collect();
        if (attached.is_empty() && !self.boots_from_volumes()) || age > VOLUMES_GO {
            return Ok(false);
        }
        let is_target = |volume: &&Volume| {
            let owner = &self.options.owner;
            attached.contains(&&volume.id)
                || node.is_some_and(|node| owner.owns_node(&volume_tags(volume), node))
        };
        let all = self.volumes(self.options.list_age.min(age)).await?;
        let mut exist = false;
        for volume in all.iter().filter(is_target) {
            exist = true;
            if matches!(&*volume.status, "available" | "error") {
                let deleted = self.volumes.delete_volume(&volume.id).await;
                deleted.map_err(driver_error)?;
            }
        }
        Ok(exist)
    }

    /// Returns the servers that carry the node's id, and the one that its record names. A lost response may have left
    /// two.
    async fn servers_of(&self, node: NodeId, id: Option<&str>) -> Result<Vec<Server>, Error> {
        let is_named = |server: &Server| Some(&*server.id) == id;
        let known = self.servers(self.options.list_age).await?;
        let all = if known.iter().any(is_named) {
            known
        } else {
            self.all_servers().await?
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
            kind if *kind == ResourceKind::IMAGES => return self.delete_image_by_id(id).await,
            kind => return Err(Error::unsupported(&format!("delete {kind}"))),
        };
        deleted.map_err(driver_error)
    }

    /// Deletes a server and its floating IPs. These go first: without the server they could not be found.
    ///
    /// A server that is being deleted is deleted again: if its compute host is gone, Nova acts on the second call only.
    pub(super) async fn delete_server(
        &self,
        node: Option<NodeId>,
        server: &Server,
    ) -> Result<(), Error> {
        self.delete_floating_ips(node, Some(server)).await?;
        match self.compute.delete_server(&server.id).await {
            Err(error) if server.is_going() && error.kind() == ErrorKind::Conflict => Ok(()),
            result => result.map_err(driver_error),
        }
    }
}
