//! [`OpenStackDriver`]: what it is made of, and which operation is in which module.

mod create;
mod delete;
mod floating;
mod garbage;
mod listing;
mod servers;
mod volumes;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use nodeyard_driver::{
    CloudImage, Collected, CreateOrder, Driver, Error, ExternalId, ImageTarget, Images, Instance,
    Machines, Progress, Readiness, Resource, Target, UploadOrder, UploadedImage,
};
use nodeyard_driver_common::openstack::{DownPorts, PoolOptions};
use nodeyard_model::{Label, Limits, PoolName, ResourceName, Resources};
use nodeyard_openstack::{
    Clouds, Compute, FloatingIp, Network, Port, ProcessEnvironment, Server, Session, Volume,
    VolumeLimits, Volumes,
};

use self::servers::ServerSnapshot;
use crate::addresses;
use crate::cache::ResponseCache;
use crate::catalog::CatalogCache;
use crate::failure::driver_error;
use crate::images;
use crate::options::Options;

/// A driver for one provider in a cloud.
pub struct OpenStackDriver {
    pub(crate) options: Options,
    pub(crate) session: Session,
    pub(crate) compute: Compute,
    pub(crate) network: Network,
    pub(crate) volumes: Volumes,
    pub(crate) catalog: CatalogCache,
    servers: ResponseCache<Vec<Server>>,
    complete_servers: ResponseCache<Vec<Server>>,
    server_snapshot: Mutex<ServerSnapshot>,
    ports: ResponseCache<Vec<Port>>,
    floating_ips: ResponseCache<Vec<FloatingIp>>,
    volume_list: ResponseCache<Vec<Volume>>,
    last_volume_limits: Mutex<Option<VolumeLimits>>,
    down_ports: DownPorts,
    /// Whether this host can reach IPv6 addresses.
    local_ipv6: bool,
}

impl fmt::Debug for OpenStackDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OpenStackDriver")
            .field(&self.options.owner.provider)
            .finish()
    }
}

impl OpenStackDriver {
    pub fn new(options: Options, session: Session) -> Self {
        Self {
            options,
            compute: Compute::new(session.clone()),
            network: Network::new(session.clone()),
            volumes: Volumes::new(session.clone()),
            session,
            catalog: CatalogCache::default(),
            servers: ResponseCache::default(),
            complete_servers: ResponseCache::default(),
            server_snapshot: Mutex::default(),
            ports: ResponseCache::default(),
            floating_ips: ResponseCache::default(),
            volume_list: ResponseCache::default(),
            last_volume_limits: Mutex::default(),
            down_ports: DownPorts::default(),
            local_ipv6: addresses::host_has_ipv6(),
        }
    }

    /// Reads what clouds.yaml and the environment say of the cloud. Logs in with the first call.
    pub fn connect(options: Options, around: &ProcessEnvironment) -> Result<Self, Error> {
        let settings = Clouds::find(around).and_then(|clouds| {
            clouds.cloud(Some(&options.cloud.name), options.cloud.region.as_deref())
        });
        let session = settings.and_then(|settings| {
            let session = nodeyard_openstack::Options {
                interval: options.rate,
                ..nodeyard_openstack::Options::default()
            };
            Session::connect(settings, session)
        });
        let provider = &options.owner.provider;
        let session = session.map_err(|cause| {
            Error::permanent(format!("provider {provider}: failed to use its cloud")).because(cause)
        })?;
        Ok(Self::new(options, session))
    }

    fn pool(&self, name: &PoolName) -> Result<&PoolOptions, Error> {
        let mut pools = self.options.cloud.pools.iter();
        pools.find(|pool| pool.name == *name).ok_or_else(|| {
            let provider = &self.options.owner.provider;
            Error::permanent(format!("provider {provider} has no pool {name}"))
        })
    }
}

impl Driver for OpenStackDriver {
    fn machines(&self) -> Option<&dyn Machines> {
        Some(self)
    }

    fn images(&self) -> Option<&dyn Images> {
        Some(self)
    }
}

#[async_trait]
impl Machines for OpenStackDriver {
    async fn create(&self, order: &CreateOrder, progress: &Progress) -> Result<Instance, Error> {
        self.create_instance(order, progress).await
    }

    async fn delete(&self, target: &Target) -> Result<(), Error> {
        self.delete_target(target).await
    }

    async fn list(&self) -> Result<Vec<Resource>, Error> {
        self.list_resources().await
    }

    async fn limits(&self) -> Result<Limits, Error> {
        let compute = self.compute.limits().await.map_err(driver_error)?;
        let mut limits = vec![
            (ResourceName::CORES, compute.cores),
            (ResourceName::INSTANCES, compute.instances),
            (ResourceName::RAM, compute.ram),
        ];
        if let Some(volumes) = self.volume_limits().await {
            limits.extend([
                ("volumes".into(), volumes.volumes),
                ("volume-gb".into(), volumes.gigabytes),
            ]);
        }
        let limited = limits.into_iter().filter(|(_, limit)| *limit >= 0);
        Ok(limited.collect())
    }

    async fn cost(&self, pool: &PoolName, label: &Label) -> Result<Resources, Error> {
        let pool = self.pool(pool)?;
        let label = pool.label(label)?;
        let flavor = self.flavor_of(label).await?;
        self.check(pool, label).await?;
        Ok(label.takes(flavor.vcpus, flavor.ram))
    }

    async fn readiness(&self, pool: &PoolName, label: &Label) -> Result<Readiness, Error> {
        let label = self.pool(pool)?.label(label)?;
        self.image_readiness(label).await
    }

    async fn zones(&self, pool: &PoolName) -> Result<Vec<Box<str>>, Error> {
        self.zones_of(self.pool(pool)?).await
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
        let console = self.compute.console(&text_id(id)?).await;
        console.map_err(driver_error)
    }

    async fn collect_garbage(&self) -> Result<Vec<Collected>, Error> {
        self.down_ports
            .collect_garbage(self, self.options.tidy)
            .await
    }
}

#[async_trait]
impl Images for OpenStackDriver {
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
        images::list(&self.session).await.map_err(driver_error)
    }

    async fn images_in_use(&self) -> Result<BTreeSet<ExternalId>, Error> {
        let servers = self.all_servers().await?;
        let images = servers.iter().filter_map(|server| server.image_id());
        Ok(images.map(Into::into).collect())
    }
}

/// In this kind of cloud every id is a text.
pub(crate) fn text_id(id: &ExternalId) -> Result<String, Error> {
    id.as_text()
        .ok_or_else(|| Error::permanent(format!("{id} is not an id of this cloud")))
}

type List<T> = Result<Arc<Vec<T>>, Error>;
