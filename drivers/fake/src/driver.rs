//! A driver for one provider in a simulated cloud.

mod catalog;
mod create;
mod delete;
mod garbage;
mod image_list;
mod images;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use nodeyard_driver::{
    CloudImage, Collected, CreateOrder, Driver, Error, ExternalId, ImageTarget, Images, Instance,
    Machines, Progress, RateLimiter, Readiness, Resource, ResourceKind, Target, UploadOrder,
    UploadedImage,
};
use nodeyard_driver_common::openstack::{DownPorts, PoolOptions, takes};
use nodeyard_model::{Label, Limits, NodeId, PoolName, ResourceName, Resources};
use serde::Deserialize;
use serde_json::json;

use self::catalog::{CatalogCache, IMAGE_LIFETIME};
use self::image_list::ImageList;
use crate::client::{Client, Flavor, Server, SharedList, Volume};
use crate::options::Options;
use crate::transport::Transport;

/// A driver for one provider in a simulated cloud.
pub struct FakeDriver {
    options: Options,
    client: Client,
    catalog: Mutex<CatalogCache>,
    images: ImageList,
    down_ports: DownPorts,
}

impl fmt::Debug for FakeDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FakeDriver")
            .field(&self.options.owner.provider)
            .finish()
    }
}

impl FakeDriver {
    pub fn new(options: Options, transport: Arc<dyn Transport>) -> Self {
        Self {
            client: Client {
                transport,
                limiter: RateLimiter::every(options.rate),
                timeout: options.call_timeout,
                servers: SharedList::default(),
            },
            options,
            catalog: Mutex::default(),
            images: ImageList::new(IMAGE_LIFETIME),
            down_ports: DownPorts::default(),
        }
    }

    fn pool(&self, name: &PoolName) -> Result<&PoolOptions, Error> {
        self.options
            .cloud
            .pools
            .iter()
            .find(|pool| pool.name == *name)
            .ok_or_else(|| {
                let provider = &self.options.owner.provider;
                Error::permanent(format!("provider {provider} has no pool {name}"))
            })
    }

    /// Returns the servers tagged with a node of this provider.
    async fn servers_of_node(&self, node: NodeId) -> Result<Vec<Server>, Error> {
        let servers = self.client.list_servers().await?;
        let ours = |server: &&Server| self.options.owner.owns_node(&server.tags(), node);
        Ok(servers.iter().filter(ours).cloned().collect())
    }

    async fn list_instances(&self) -> Result<Vec<Resource>, Error> {
        let servers = self.client.list_servers().await?;
        let flavors = self.flavors().await?;
        let flavors: HashMap<_, &Flavor> = flavors.iter().map(|f| (f.id.as_str(), f)).collect();
        let volumes: Vec<Volume> = if servers
            .iter()
            .any(|server| server.volume_ids().next().is_some())
        {
            self.client.call("list_volumes", json!({})).await?
        } else {
            Vec::new()
        };
        let sizes: HashMap<_, _> = volumes.iter().map(|v| (v.id.as_str(), v.size)).collect();
        let resource = |server: &Server| {
            let sizes = server.volume_ids().filter_map(|id| sizes.get(id).copied());
            // A server of a flavor that was removed still counts as one instance.
            let takes = server
                .flavor_id()
                .and_then(|id| flavors.get(id))
                .map_or_else(|| Resources::new(0, 1, 0), |f| takes(f.vcpus, f.ram, sizes));
            Resource {
                kind: ResourceKind::INSTANCES,
                id: server.id.as_str().into(),
                name: Some(server.name.as_str().into()),
                tags: server.tags(),
                takes,
            }
        };
        Ok(servers.iter().map(resource).collect())
    }
}

impl Driver for FakeDriver {
    fn machines(&self) -> Option<&dyn Machines> {
        Some(self)
    }

    fn images(&self) -> Option<&dyn Images> {
        Some(self)
    }
}

#[async_trait]
impl Machines for FakeDriver {
    async fn create(&self, order: &CreateOrder, progress: &Progress) -> Result<Instance, Error> {
        self.create_node(order, progress).await
    }

    async fn delete(&self, target: &Target) -> Result<(), Error> {
        self.delete_target(target).await
    }

    async fn list(&self) -> Result<Vec<Resource>, Error> {
        let mut all = self.list_instances().await?;
        all.extend(
            self.client
                .list_images()
                .await?
                .into_iter()
                .map(|image| Resource {
                    kind: ResourceKind::IMAGES,
                    tags: image.tags(),
                    id: image.id,
                    name: Some(image.name),
                    takes: Resources::default(),
                }),
        );
        Ok(all)
    }

    async fn limits(&self) -> Result<Limits, Error> {
        #[derive(Deserialize)]
        struct Compute {
            max_total_cores: i64,
            max_total_instances: i64,
            max_total_ram_size: i64,
        }
        #[derive(Deserialize)]
        struct Volumes {
            absolute: Absolute,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Absolute {
            max_total_volumes: i64,
            max_total_volume_gigabytes: i64,
        }
        let compute: Compute = self.client.call("get_compute_limits", json!({})).await?;
        let volumes: Volumes = self.client.call("get_volume_limits", json!({})).await?;
        let limits = [
            (ResourceName::CORES, compute.max_total_cores),
            (ResourceName::INSTANCES, compute.max_total_instances),
            (ResourceName::RAM, compute.max_total_ram_size),
            ("volumes".into(), volumes.absolute.max_total_volumes),
            (
                "volume-gb".into(),
                volumes.absolute.max_total_volume_gigabytes,
            ),
        ];
        Ok(limits
            .into_iter()
            .filter(|(_, limit)| *limit != -1)
            .collect())
    }

    async fn cost(&self, pool: &PoolName, label: &Label) -> Result<Resources, Error> {
        let label = self.pool(pool)?.label(label)?;
        let flavor = self.flavor_of(label).await?;
        Ok(label.takes(flavor.vcpus, flavor.ram))
    }

    async fn readiness(&self, pool: &PoolName, label: &Label) -> Result<Readiness, Error> {
        let label = self.pool(pool)?.label(label)?;
        self.image_readiness(label).await
    }

    async fn zones(&self, pool: &PoolName) -> Result<Vec<Box<str>>, Error> {
        let configured = &self.pool(pool)?.availability_zones;
        if configured.is_empty() {
            self.all_zones().await
        } else {
            Ok(configured.clone())
        }
    }

    async fn evidence(
        &self,
        pool: &PoolName,
        label: &Label,
        id: &ExternalId,
    ) -> Result<Option<String>, Error> {
        if !self.pool(pool)?.label(label)?.console_log {
            return Ok(None);
        }
        let arguments = json!({"id": server_id(id)?});
        Ok(self.client.call("get_server_console", arguments).await?)
    }

    async fn collect_garbage(&self) -> Result<Vec<Collected>, Error> {
        self.down_ports
            .collect_garbage(self, self.options.tidy)
            .await
    }
}

#[async_trait]
impl Images for FakeDriver {
    async fn upload(
        &self,
        order: &UploadOrder,
        progress: &Progress,
    ) -> Result<UploadedImage, Error> {
        self.upload_image(order, progress).await
    }

    async fn delete_image(&self, target: &ImageTarget) -> Result<(), Error> {
        self.delete_upload(target).await
    }

    async fn list_images(&self) -> Result<Vec<CloudImage>, Error> {
        self.client.list_images().await
    }

    async fn images_in_use(&self) -> Result<BTreeSet<ExternalId>, Error> {
        let servers = self.client.list_servers().await?;
        let images = servers.iter().filter_map(Server::image_id);
        Ok(images.map(Into::into).collect())
    }
}

/// Returns an id as text. All ids of this cloud are texts.
fn server_id(id: &ExternalId) -> Result<String, Error> {
    id.as_text()
        .ok_or_else(|| Error::permanent(format!("invalid id {id}: not a text")))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
