//! Making a server.

use nodeyard_driver::{BootImage, CreateOrder, Error, Instance, State, Step};
use nodeyard_driver_common::LabelImage;
use nodeyard_driver_common::openstack::{LabelOptions, PoolOptions};
use nodeyard_model::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{FakeDriver, server_id};
use crate::client::Server;

/// How far it is.
#[derive(Debug, Default, Serialize, Deserialize)]
enum Create {
    /// Asked for, perhaps already made without our knowing.
    #[default]
    Ordered,
    Booting {
        server: String,
        since: Timestamp,
    },
}

impl FakeDriver {
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
                let arguments = self.create_arguments(order, pool, label, now).await?;
                if !state.take_fresh() && !self.clear_debris(order, state, now).await? {
                    return Ok(Step::wait(self.options.poll.least));
                }
                if state.external_id.is_none() {
                    let server = self.create_server(arguments, state).await?;
                    state.external_id = Some(server.id.as_str().into());
                    state.write(&Create::Booting {
                        server: server.id,
                        since: now,
                    })?;
                }
                Ok(Step::wait(self.options.poll.least))
            }
            Create::Booting { server, since } => {
                let Some(server) = self.client.get_server(&server).await? else {
                    start_over(state)?;
                    let text = format!("server {server} was deleted while it booted");
                    return Err(Error::retry(text));
                };
                if server.is_broken() {
                    let failure = server.failure();
                    start_over(state)?;
                    return Err(failure);
                }
                if !server.is_active() {
                    return Ok(Step::wait(self.options.poll.after(now.since(since))));
                }
                if self.lacks_floating_ip(&server, pool, label).await? {
                    let arguments = json!({"server": server.id});
                    let _ip: Value = self.client.call("create_floating_ip", arguments).await?;
                    return Ok(Step::go_on());
                }
                let flavor = self.flavor_of(label).await?;
                let takes = label.takes(flavor.vcpus, flavor.ram);
                Ok(Step::Done(self.instance(server, takes)))
            }
        }
    }

    /// What an earlier run of this order left behind: one good server is taken over, everything else goes.
    /// True if nothing is in the way any more.
    async fn clear_debris(
        &self,
        order: &CreateOrder,
        state: &mut State,
        now: Timestamp,
    ) -> Result<bool, Error> {
        let mut servers = self.servers_of_node(order.node).await?;
        let good = servers
            .iter()
            .position(|server| !server.is_broken() && !server.is_going());
        let good = good.map(|index| servers.remove(index));
        for server in &servers {
            self.delete_with_addresses(server).await?;
        }
        if !servers.is_empty() {
            return Ok(false);
        }
        state.external_id = None;
        if let Some(server) = good {
            state.external_id = Some(server.id.as_str().into());
            state.write(&Create::Booting {
                server: server.id,
                since: now,
            })?;
        }
        Ok(true)
    }

    async fn create_server(&self, arguments: Value, state: &mut State) -> Result<Server, Error> {
        match self.client.call("create_server", arguments).await {
            Ok(server) => Ok(server),
            Err(failure) => {
                if failure.stale {
                    self.forget_catalog();
                }
                if failure.half_made.is_some() {
                    state.external_id.clone_from(&failure.half_made);
                    return Err(self.explain_half_made(state, failure.error).await);
                }
                Err(failure.error)
            }
        }
    }

    /// The server that was half made may know better why than the answer does.
    async fn explain_half_made(&self, state: &State, error: Error) -> Error {
        let Some(Ok(id)) = state.external_id.as_ref().map(server_id) else {
            return error;
        };
        match self.client.get_server(&id).await {
            Ok(Some(server)) if server.fault().is_some() => server.failure().because(error),
            _ => error,
        }
    }

    async fn create_arguments(
        &self,
        order: &CreateOrder,
        pool: &PoolOptions,
        label: &LabelOptions,
        now: Timestamp,
    ) -> Result<Value, Error> {
        let flavor = self.flavor_of(label).await?;
        let (image_name, image, config_drive) = self.choose_image(order, label, now).await?;
        let networks = self.networks_of(label).await?;
        let mut arguments = Map::new();
        let mut put = |key: &str, value: Value| arguments.insert(key.to_owned(), value);
        put("name", order.hostname().into());
        put("image", image.into());
        put("flavor", flavor.id.into());
        put("config_drive", config_drive.into());
        let provider = &self.options.owner.provider;
        put("meta", json!(label.metadata(provider, order, &image_name)));
        if let Some(zone) = &order.az {
            put("availability_zone", (&**zone).into());
        }
        if let Some(key) = &label.key_name {
            put("key_name", (&**key).into());
        }
        if let Some(userdata) = &label.userdata {
            put("userdata", (&**userdata).into());
        }
        if !pool.security_groups.is_empty() {
            put("security_groups", json!(pool.security_groups));
        }
        if !networks.is_empty() {
            let nics: Vec<_> = networks.iter().map(|n| json!({"net-id": n.id})).collect();
            put("nics", nics.into());
        }
        if let Some(size) = label.boot_volume {
            put("boot_from_volume", true.into());
            put("volume_size", size.into());
            put("terminate_volume", true.into());
        }
        Ok(arguments.into())
    }

    /// The image's name, its id in the cloud, and whether to boot with a config drive.
    async fn choose_image(
        &self,
        order: &CreateOrder,
        label: &LabelOptions,
        now: Timestamp,
    ) -> Result<(String, String, Option<bool>), Error> {
        match (&order.image, &label.image) {
            (BootImage::Upload { image, external_id }, _) => {
                let mut known = self.options.cloud.disk_images.iter();
                let config_drive = known
                    .find(|known| known.name == *image)
                    .and_then(|known| known.config_drive);
                Ok((image.to_string(), server_id(external_id)?, config_drive))
            }
            (BootImage::Cloud, LabelImage::Cloud(name)) => {
                let (id, config_drive) = self.boot_image(name, now).await?;
                Ok((name.to_string(), server_id(&id)?, config_drive))
            }
            (BootImage::Cloud, LabelImage::Disk(image)) => Err(Error::permanent(format!(
                "label {} boots from an upload of {image}, but there is none",
                label.name
            ))),
        }
    }

    async fn lacks_floating_ip(
        &self,
        server: &Server,
        pool: &PoolOptions,
        label: &LabelOptions,
    ) -> Result<bool, Error> {
        let has_public = server.public_v4.as_deref().is_some_and(|ip| !ip.is_empty());
        if has_public || !pool.auto_floating_ip {
            return Ok(false);
        }
        let networks = self.networks_of(label).await?;
        Ok(networks.iter().any(|network| network.nat_destination))
    }

    fn instance(&self, server: Server, takes: nodeyard_model::Resources) -> Instance {
        let some = |text: Option<String>| text.filter(|text| !text.is_empty());
        Instance {
            // As Nodepool has it: nodes without a private address show the public one there, and an address
            // that the cloud calls empty stays so.
            private_ipv4: some(server.private_v4)
                .or_else(|| server.public_v4.clone())
                .map(Into::into),
            public_ipv4: server.public_v4.map(Into::into),
            public_ipv6: server.public_v6.map(Into::into),
            interface_ip: some(server.interface_ip).map(Into::into),
            cloud: Some(self.options.cloud.name.clone()),
            region: self.options.cloud.region.clone(),
            az: server.zone,
            host_id: server.host_id,
            ..Instance::new(server.id.as_str().into(), takes)
        }
    }
}

/// What was made is of no use; the next run clears it away and makes another.
fn start_over(state: &mut State) -> Result<(), Error> {
    state.write(&Create::Ordered)
}
