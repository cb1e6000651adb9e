//! Making a server.

use std::time::Duration;

use nodeyard_driver::{CreateOrder, Error, Instance, State, Step};
use nodeyard_driver_common::openstack::{LabelOptions, PoolOptions};
use nodeyard_model::{NodeId, Resources, Timestamp};
use nodeyard_openstack::{BootVolume, ErrorKind, NewServer, Server};
use serde::{Deserialize, Serialize};

use super::OpenStackDriver;
use crate::addresses::{self, Choice, Chosen};
use crate::failure::{broken, failed};

/// How far it is.
#[derive(Debug, Default, Serialize, Deserialize)]
enum Create {
    /// Asked for, perhaps already made without our knowing.
    #[default]
    Ordered,
    Booting {
        server: Box<str>,
        since: Timestamp,
    },
}

impl OpenStackDriver {
    pub(super) async fn step_create(
        &self,
        order: &CreateOrder,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<Instance>, Error> {
        let pool = self.pool(&order.pool)?;
        let label = pool.label(&order.label)?;
        match state.read()? {
            Create::Ordered => {
                let wanted = self.new_server(order, pool, label).await?;
                if !state.take_fresh() && !self.clear_debris(order, state, now).await? {
                    return Ok(Step::wait(self.options.poll.least));
                }
                if state.external_id.is_none() {
                    let id = self.create_server(&wanted, order, pool, label).await?;
                    state.external_id = Some((&*id).into());
                    state.write(&Create::Booting {
                        server: id,
                        since: now,
                    })?;
                }
                Ok(Step::wait(self.options.poll.least))
            }
            Create::Booting { server, since } => {
                let age = now.since(since);
                let all = self.servers(self.options.list_age.min(age)).await?;
                if self.remove_doubles(order.node, &server, &all).await? {
                    return Ok(Step::wait(self.options.poll.after(age)));
                }
                let Some(server) = self.look_at(&server, &all).await? else {
                    start_over(state)?;
                    let text = format!("server {server} was deleted while it booted");
                    return Err(Error::retry(text));
                };
                if server.is_broken() {
                    start_over(state)?;
                    return Err(broken(&server));
                }
                // A server without any address yet is one that Nova has not described in full.
                if !server.is_active() || server.addresses.is_empty() {
                    return Ok(Step::wait(self.options.poll.after(age)));
                }
                self.finish(order, pool, label, server).await
            }
        }
    }

    /// The server, as the list shows it. What is not in the list may be too new for it.
    async fn look_at(&self, id: &str, all: &[Server]) -> Result<Option<Server>, Error> {
        match all
            .iter()
            .find(|server| *server.id == *id && !server.is_gone())
        {
            Some(server) => Ok(Some(server.clone())),
            None => self.compute.server(id).await.map_err(failed),
        }
    }

    /// An order whose answer was lost may be carried out after we have looked in vain and placed it again. True if there
    /// was such a server.
    async fn remove_doubles(&self, node: NodeId, id: &str, all: &[Server]) -> Result<bool, Error> {
        let is_double = |server: &&Server| self.is_of_node(server, node) && *server.id != *id;
        let mut found = false;
        for server in all.iter().filter(is_double) {
            found = true;
            // Not by the node's id: its floating IP belongs to the other one.
            self.delete_server(None, server).await?;
        }
        Ok(found)
    }

    /// It is up: what it still lacks, and what it is.
    async fn finish(
        &self,
        order: &CreateOrder,
        pool: &PoolOptions,
        label: &LabelOptions,
        mut server: Server,
    ) -> Result<Step<Instance>, Error> {
        let networks = self.networks().await?;
        let choice = Choice {
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
            self.give_floating_ip(order.node, &networks, &mut server)
                .await?;
            chosen = choice.of(&server);
        }
        if label.boot_volume.is_some() {
            self.mark_volumes(order, &server).await?;
        }
        let flavor = self.flavor_of(label).await?;
        let takes = label.takes(flavor.vcpus, flavor.ram);
        Ok(Step::Done(self.instance(server, chosen, takes)))
    }

    /// What an earlier run of this order left behind: one good server is taken over, everything else goes.
    /// True if nothing is in the way any more.
    async fn clear_debris(
        &self,
        order: &CreateOrder,
        state: &mut State,
        now: Timestamp,
    ) -> Result<bool, Error> {
        let all = self.servers(Duration::ZERO).await?;
        let mut servers: Vec<_> = all
            .iter()
            .filter(|server| self.is_of_node(server, order.node))
            .collect();
        let good = servers
            .iter()
            .position(|server| !server.is_broken() && !server.is_going());
        let good = good.map(|index| servers.remove(index));
        for server in &servers {
            self.delete_server(Some(order.node), server).await?;
        }
        if !servers.is_empty() {
            return Ok(false);
        }
        state.external_id = None;
        if let Some(server) = good {
            state.external_id = Some((&*server.id).into());
            state.write(&Create::Booting {
                server: server.id.clone(),
                since: now,
            })?;
        }
        Ok(true)
    }

    async fn create_server(
        &self,
        wanted: &NewServer,
        order: &CreateOrder,
        pool: &PoolOptions,
        label: &LabelOptions,
    ) -> Result<Box<str>, Error> {
        match self.compute.create_server(wanted).await {
            Ok(id) => Ok(id),
            // Something that we believed to be there may have gone.
            Err(error) if error.kind() == ErrorKind::Refused => {
                self.catalog.forget().await;
                let now = self.new_server(order, pool, label).await?;
                if now == *wanted {
                    Err(failed(error))
                } else {
                    Err(Error::retry(
                        "the cloud does not have any more what a server was to be made of",
                    )
                    .because(error))
                }
            }
            Err(error) => Err(failed(error)),
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

    /// The volume that Nova makes for a server carries nothing that leads back to us. It goes with the server, unless
    /// something goes wrong; then the mark tells whose it is.
    async fn mark_volumes(&self, order: &CreateOrder, server: &Server) -> Result<(), Error> {
        let metadata = order.tags.to_metadata();
        let own = server
            .volumes
            .iter()
            .filter(|volume| volume.delete_on_termination);
        for volume in own {
            match self.volumes.mark_volume(&volume.id, &metadata).await {
                Ok(()) => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::Forbidden | ErrorKind::NoService) =>
                {
                    tracing::warn!(volume = %volume.id, %error, "a volume cannot be marked as ours");
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }

    fn instance(&self, server: Server, chosen: Chosen, takes: Resources) -> Instance {
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

/// What was made is of no use; the next run clears it away and makes another.
fn start_over(state: &mut State) -> Result<(), Error> {
    state.write(&Create::Ordered)
}
