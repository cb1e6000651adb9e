//! Creates the server of a node, with its floating IP and tagged volumes.

use std::collections::BTreeSet;

use nodeyard_driver::{CreateOrder, Error, Instance, Progress};
use nodeyard_driver_common::openstack::{LabelOptions, PoolOptions};
use nodeyard_model::{NodeId, Resources};
use nodeyard_openstack::{BootVolume, ErrorKind, NewServer, Server};

use super::OpenStackDriver;
use crate::addresses::{self, AddressChoice, ServerAddresses};
use crate::failure::{driver_error, server_error};

impl OpenStackDriver {
    pub(super) async fn create_instance(
        &self,
        order: &CreateOrder,
        progress: &Progress,
    ) -> Result<Instance, Error> {
        let pool = self.pool(&order.pool)?;
        let label = pool.label(&order.label)?;
        let id = self.find_or_create_server(order, pool, label).await?;
        progress.set_external_id(&*id);
        progress.set_stage("waiting for the server to become active");
        let server = self.wait_until_active(order.node, &id).await?;
        self.complete(order, pool, label, server).await
    }

    async fn find_or_create_server(
        &self,
        order: &CreateOrder,
        pool: &PoolOptions,
        label: &LabelOptions,
    ) -> Result<Box<str>, Error> {
        if !order.first_attempt
            && let Some(id) = self.find_server(order.node).await?
        {
            return Ok(id);
        }
        let server = self.new_server(order, pool, label).await?;
        self.create_server(&server, order, pool, label).await
    }

    /// Returns the server that an earlier attempt created. Deletes the node's other servers first, and waits until they
    /// are gone.
    async fn find_server(&self, node: NodeId) -> Result<Option<Box<str>>, Error> {
        let timer = self.options.poll.start();
        let mut deleted = BTreeSet::new();
        loop {
            let all = self.all_servers().await?;
            let mut servers: Vec<_> = all
                .iter()
                .filter(|server| self.is_of_node(server, node))
                .collect();
            let usable = servers
                .iter()
                .position(|server| !server.is_broken() && !server.is_going())
                .map(|index| servers.remove(index));
            if servers.is_empty() {
                return Ok(usable.map(|server| server.id.clone()));
            }
            for server in servers {
                if deleted.insert(server.id.clone()) {
                    self.delete_server(Some(node), server).await?;
                }
            }
            timer.tick().await;
        }
    }

    async fn wait_until_active(&self, node: NodeId, id: &str) -> Result<Server, Error> {
        let timer = self.options.poll.start();
        loop {
            timer.tick().await;
            let all = self.servers(self.options.list_age.min(timer.age())).await?;
            if self.delete_duplicates(node, id, &all).await? {
                continue;
            }
            let Some(server) = self.server(id, &all).await? else {
                let text = format!("server {id} was deleted while it booted");
                return Err(Error::retry(text));
            };
            if server.is_broken() {
                return Err(server_error(&server));
            }
            // A server without any address yet is one that Nova has not described in full.
            if server.is_active() && !server.addresses.is_empty() {
                return Ok(server);
            }
        }
    }

    /// Returns the server as the list shows it. The list may be older than the server.
    async fn server(&self, id: &str, all: &[Server]) -> Result<Option<Server>, Error> {
        match all
            .iter()
            .find(|server| *server.id == *id && !server.is_gone())
        {
            Some(server) => Ok(Some(server.clone())),
            None => self.compute.server(id).await.map_err(driver_error),
        }
    }

    /// Deletes other servers of the node: a request whose response was lost may be carried out after we have looked
    /// and sent another. Returns whether there were any.
    async fn delete_duplicates(
        &self,
        node: NodeId,
        id: &str,
        all: &[Server],
    ) -> Result<bool, Error> {
        let is_duplicate = |server: &&Server| self.is_of_node(server, node) && *server.id != *id;
        let mut found = false;
        for server in all.iter().filter(is_duplicate) {
            found = true;
            if !server.is_going() {
                // Without the node's id: its floating IP belongs to the server that stays.
                self.delete_server(None, server).await?;
            }
        }
        Ok(found)
    }

    /// Gives an active server its floating IP, tags its volumes, and describes it.
    async fn complete(
        &self,
        order: &CreateOrder,
        pool: &PoolOptions,
        label: &LabelOptions,
        mut server: Server,
    ) -> Result<Instance, Error> {
        let networks = self.networks().await?;
        let choice = AddressChoice {
            settings: self.session.settings(),
            networks: &networks,
            local_ipv6: self.local_ipv6,
        };
        let mut chosen = choice.of(&server);
        if pool.auto_floating_ip
            && !self.session.settings().private
            && addresses::lacks_public_address(&server, &chosen)
            && self.has_floating_ips().await?
        {
            self.attach_floating_ip(order.node, &networks, &mut server)
                .await?;
            chosen = choice.of(&server);
        }
        if label.boot_volume.is_some() {
            self.tag_volumes(order, &server).await?;
        }
        let flavor = self.flavor_of(label).await?;
        let takes = label.takes(flavor.vcpus, flavor.ram);
        Ok(self.instance(server, chosen, takes))
    }

    async fn create_server(
        &self,
        server: &NewServer,
        order: &CreateOrder,
        pool: &PoolOptions,
        label: &LabelOptions,
    ) -> Result<Box<str>, Error> {
        match self.compute.create_server(server).await {
            Ok(id) => Ok(id),
            // Something in the catalog may have been deleted.
            Err(error) if error.kind() == ErrorKind::Refused => {
                self.catalog.forget().await;
                let now = self.new_server(order, pool, label).await?;
                if now == *server {
                    Err(driver_error(error))
                } else {
                    Err(Error::retry(
                        "the image, flavor or network of the server was deleted meanwhile",
                    )
                    .because(error))
                }
            }
            Err(error) => {
                if error.kind() == ErrorKind::NoCapacity {
                    // The zone may have lost its last host.
                    self.catalog.forget_zones().await;
                }
                Err(driver_error(error))
            }
        }
    }

    async fn new_server(
        &self,
        order: &CreateOrder,
        pool: &PoolOptions,
        label: &LabelOptions,
    ) -> Result<NewServer, Error> {
        let boot = self.boot_of(order, label).await?;
        Ok(NewServer {
            name: order.hostname(),
            flavor: self.flavor_of(label).await?.id,
            volume: label.boot_volume.map(|gigabytes| BootVolume { gigabytes }),
            key_name: label.key_name.clone(),
            zone: order.az.clone(),
            networks: self.networks_of(label).await?,
            security_groups: pool.security_groups.clone(),
            user_data: label.userdata.clone(),
            config_drive: boot.config_drive,
            metadata: label.metadata(&self.options.owner.provider, order, &boot.name),
            image: boot.id,
        })
    }

    /// Tags the volumes that Nova created for a server. Normally they are deleted with it; if not, the tags identify
    /// the node.
    async fn tag_volumes(&self, order: &CreateOrder, server: &Server) -> Result<(), Error> {
        let metadata = order.tags.to_metadata();
        let own = server
            .volumes
            .iter()
            .filter(|volume| volume.delete_on_termination);
        for volume in own {
            match self.volumes.add_metadata(&volume.id, &metadata).await {
                Ok(()) => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::Forbidden | ErrorKind::NoService) =>
                {
                    tracing::warn!(volume = %volume.id, %error, "failed to tag volume");
                }
                Err(error) => return Err(driver_error(error)),
            }
        }
        Ok(())
    }

    fn instance(&self, server: Server, chosen: ServerAddresses, takes: Resources) -> Instance {
        Instance {
            // As Nodepool has it: nodes without a private address show the public one there.
            private_ipv4: chosen.private_v4.or_else(|| chosen.public_v4.clone()),
            public_ipv4: chosen.public_v4,
            public_ipv6: chosen.public_v6,
            interface_ip: chosen.interface,
            cloud: Some(self.options.cloud.name.clone()),
            region: self.options.cloud.region.clone(),
            az: server.zone,
            host_id: server.host_id,
            ..Instance::new((&*server.id).into(), takes)
        }
    }
}
