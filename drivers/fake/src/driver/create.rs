//! Creation of servers.

use nodeyard_driver::{BootImage, CreateOrder, Error, ExternalId, Instance, Progress};
use nodeyard_driver_common::LabelImage;
use nodeyard_driver_common::openstack::{LabelOptions, PoolOptions};
use nodeyard_model::{NodeId, Resources};
use serde_json::{Map, Value, json};

use super::{FakeDriver, server_id};
use crate::client::Server;

impl FakeDriver {
    pub(super) async fn create_node(
        &self,
        order: &CreateOrder,
        progress: &Progress,
    ) -> Result<Instance, Error> {
        let pool = self.pool(&order.pool)?;
        let label = pool.label(&order.label)?;
        let server = self
            .find_or_create_server(order, pool, label, progress)
            .await?;
        let server = self.wait_until_active(server).await?;
        let server = self.attach_floating_ip(server, pool, label).await?;
        let flavor = self.flavor_of(label).await?;
        Ok(self.instance(server, label.takes(flavor.vcpus, flavor.ram)))
    }

    async fn find_or_create_server(
        &self,
        order: &CreateOrder,
        pool: &PoolOptions,
        label: &LabelOptions,
        progress: &Progress,
    ) -> Result<Server, Error> {
        let mut server = None;
        if !order.first_attempt {
            server = self.find_server(order.node).await?;
        }
        let server = match server {
            Some(server) => server,
            None => {
                progress.clear_external_id();
                let arguments = self.create_arguments(order, pool, label).await?;
                self.create_server(arguments, progress).await?
            }
        };
        progress.set_external_id(server.id.as_str());
        Ok(server)
    }

    /// Returns a usable server that an earlier attempt created for the node, and deletes all its others.
    async fn find_server(&self, node: NodeId) -> Result<Option<Server>, Error> {
        let mut servers = self.servers_of_node(node).await?;
        let usable = servers
            .iter()
            .position(|server| !server.is_broken() && !server.is_going());
        let usable = usable.map(|index| servers.remove(index));
        self.delete_servers(&servers).await?;
        Ok(usable)
    }

    async fn create_server(&self, arguments: Value, progress: &Progress) -> Result<Server, Error> {
        match self.client.call("create_server", arguments).await {
            Ok(server) => Ok(server),
            Err(failure) => {
                if failure.stale {
                    self.invalidate_catalog();
                }
                let Some(id) = failure.half_made else {
                    return Err(failure.error);
                };
                progress.set_external_id(id.clone());
                Err(self.explain_half_made(&id, failure.error).await)
            }
        }
    }

    /// Prefers the fault of the half-made server to the error of the call.
    async fn explain_half_made(&self, id: &ExternalId, error: Error) -> Error {
        let Ok(id) = server_id(id) else {
            return error;
        };
        match self.client.get_server(&id).await {
            Ok(Some(server)) if server.fault().is_some() => server.failure().because(error),
            _ => error,
        }
    }

    async fn wait_until_active(&self, mut server: Server) -> Result<Server, Error> {
        let timer = self.options.poll.start();
        while !server.is_active() {
            if server.is_broken() {
                return Err(server.failure());
            }
            timer.tick().await;
            server = self.reload(&server).await?;
        }
        Ok(server)
    }

    async fn reload(&self, server: &Server) -> Result<Server, Error> {
        let found = self.client.get_server(&server.id).await?;
        found.ok_or_else(|| {
            let id = &server.id;
            Error::retry(format!("server {id} was deleted while it booted"))
        })
    }

    async fn attach_floating_ip(
        &self,
        server: Server,
        pool: &PoolOptions,
        label: &LabelOptions,
    ) -> Result<Server, Error> {
        if !self.lacks_floating_ip(&server, pool, label).await? {
            return Ok(server);
        }
        let arguments = json!({"server": server.id});
        let _ip: Value = self.client.call("create_floating_ip", arguments).await?;
        self.reload(&server).await
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

    async fn create_arguments(
        &self,
        order: &CreateOrder,
        pool: &PoolOptions,
        label: &LabelOptions,
    ) -> Result<Value, Error> {
        let flavor = self.flavor_of(label).await?;
        let (image_name, image, config_drive) = self.choose_image(order, label).await?;
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

    /// Returns the image's name, its id in the cloud, and whether to boot with a config drive.
    async fn choose_image(
        &self,
        order: &CreateOrder,
        label: &LabelOptions,
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
                let (id, config_drive) = self.boot_image(name).await?;
                Ok((name.to_string(), server_id(&id)?, config_drive))
            }
            (BootImage::Cloud, LabelImage::Disk(image)) => Err(Error::permanent(format!(
                "label {} boots from image {image}, which was not uploaded",
                label.name
            ))),
        }
    }

    fn instance(&self, server: Server, takes: Resources) -> Instance {
        let some = |text: Option<String>| text.filter(|text| !text.is_empty());
        Instance {
            // As in Nodepool: a node without a private address shows the public one there, and an address that
            // the cloud calls empty stays empty.
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
