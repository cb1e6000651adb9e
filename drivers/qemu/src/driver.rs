//! The driver: what is done on the host, in which order.

mod create;
mod delete;
mod images;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use nodeyard_driver::{
    Clock, CloudImage, Collected, CreateOrder, Driver, Error, ExternalId, ImageTarget, Images,
    Instance, Machines, Progress, Readiness, Resource, ResourceKind, Target, UploadOrder,
    UploadedImage,
};
use nodeyard_driver_common::LabelImage;
use nodeyard_model::{Label, Limits, NodeId, PoolName, ResourceName, Resources};

use crate::host::{LocalId, QemuHost, QemuMachine};
use crate::local::LocalHost;
use crate::options::Options;

/// A driver for one provider.
pub struct QemuDriver {
    options: Arc<Options>,
    host: Arc<dyn QemuHost>,
}

impl fmt::Debug for QemuDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QemuDriver")
            .field(&self.options.owner.provider)
            .finish()
    }
}

impl QemuDriver {
    pub fn new(options: Options) -> Self {
        let options = Arc::new(options);
        let host = Arc::new(LocalHost::new(Arc::clone(&options)));
        Self { options, host }
    }

    /// Returns a driver that uses another implementation of [`QemuHost`].
    pub fn with_host(options: Arc<Options>, host: Arc<dyn QemuHost>) -> Self {
        Self { options, host }
    }

    async fn machines_of_node(&self, node: NodeId) -> Result<Vec<QemuMachine>, Error> {
        let mut machines = self.host.machines().await?;
        machines.retain(|machine| self.options.owner.owns_node(&machine.tags, node));
        Ok(machines)
    }
}

impl Driver for QemuDriver {
    fn machines(&self) -> Option<&dyn Machines> {
        Some(self)
    }

    fn images(&self) -> Option<&dyn Images> {
        Some(self)
    }
}

#[async_trait]
impl Machines for QemuDriver {
    async fn create(&self, order: &CreateOrder, progress: &Progress) -> Result<Instance, Error> {
        self.create_machine(order, progress).await
    }

    async fn delete(&self, target: &Target) -> Result<(), Error> {
        self.delete_target(target).await
    }

    async fn list(&self) -> Result<Vec<Resource>, Error> {
        let machines = self.host.machines().await?;
        let machines = machines.iter().map(|machine| Resource {
            kind: ResourceKind::INSTANCES,
            id: machine.id.as_str().into(),
            name: Some(machine.name.clone()),
            tags: machine.tags.clone(),
            takes: machine.cost(),
        });
        let images = self.all_images().await?;
        let images = images.into_iter().map(|image| Resource {
            kind: ResourceKind::IMAGES,
            tags: image.tags(),
            id: image.id,
            name: Some(image.name),
            takes: Resources::default(),
        });
        Ok(machines.chain(images).collect())
    }

    /// Returns the memory of the host. Cores can be overcommitted: `max-cores` of a pool may exceed those of the host.
    async fn limits(&self) -> Result<Limits, Error> {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
        let configured = self.options.pools.iter().filter_map(|pool| pool.max_cores);
        let cores = configured.chain([cores]).max().unwrap_or(cores);
        let mut limits = Limits::unlimited();
        limits.set(ResourceName::CORES, to_i64(cores));
        if let Some(memory) = host_memory() {
            limits.set(ResourceName::RAM, to_i64(memory));
        }
        Ok(limits)
    }

    async fn cost(&self, pool: &PoolName, label: &Label) -> Result<Resources, Error> {
        let label = self.options.label(pool, label)?;
        Ok(Resources::new(to_i64(label.cpus), 1, to_i64(label.memory)))
    }

    async fn readiness(&self, pool: &PoolName, label: &Label) -> Result<Readiness, Error> {
        match &self.options.label(pool, label)?.image {
            LabelImage::Disk(_) => Ok(Readiness::Ready),
            LabelImage::Cloud(name) => match self.cloud_image_file(name).await {
                Ok(_) => Ok(Readiness::Ready),
                Err(error) => Ok(Readiness::NotReady(error.to_string())),
            },
        }
    }

    async fn evidence(
        &self,
        pool: &PoolName,
        label: &Label,
        id: &ExternalId,
    ) -> Result<Option<String>, Error> {
        if !self.options.label(pool, label)?.console_log {
            return Ok(None);
        }
        let text = self.host.evidence(&local_id(id)?).await?;
        Ok(Some(text).filter(|text| !text.is_empty()))
    }

    async fn collect_garbage(&self) -> Result<Vec<Collected>, Error> {
        let count = self.host.collect_garbage(Clock::system().now()).await?;
        let files = Collected {
            kind: ResourceKind::new("files"),
            count,
        };
        Ok((count > 0).then_some(files).into_iter().collect())
    }
}

#[async_trait]
impl Images for QemuDriver {
    async fn upload(
        &self,
        order: &UploadOrder,
        progress: &Progress,
    ) -> Result<UploadedImage, Error> {
        self.upload_image(order, progress).await
    }

    async fn delete_image(&self, target: &ImageTarget) -> Result<(), Error> {
        let key = &target.upload;
        let owner = &self.options.owner;
        let mut uploads = self.host.uploads().await?;
        uploads.retain(|upload| owner.owns_upload(&upload.tags, key.build.build, key.upload));
        self.delete_uploads(uploads).await
    }

    async fn list_images(&self) -> Result<Vec<CloudImage>, Error> {
        self.all_images().await
    }

    async fn candidates(&self) -> Result<Vec<CloudImage>, Error> {
        self.operator_images().await
    }
}

fn local_id(id: &ExternalId) -> Result<LocalId, Error> {
    let text = id.as_text().unwrap_or_default();
    LocalId::parse(&text)
        .ok_or_else(|| Error::permanent(format!("invalid id {id} of a machine or image")))
}

fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns the memory of this host in MiB, or None if the kernel does not report it.
fn host_memory() -> Option<u64> {
    let table = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = table
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes / 1024)
}
