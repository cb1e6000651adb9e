//! The driver: what is to happen, in which order.

mod create;
mod delete;
mod images;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use nodeyard_driver::{
    Capabilities, CloudImage, CreateOrder, Driver, Error, EventKey, ExternalId, ImageTarget,
    Instance, Readiness, Resource, ResourceKind, State, Step, Target, Tidied, UploadOrder,
    UploadedImage,
};
use nodeyard_driver_common::LabelImage;
use nodeyard_model::{Label, Limits, NodeId, PoolName, ResourceName, Resources, Timestamp};

use crate::host::{Host, LocalId, Machine};
use crate::local::LocalHost;
use crate::options::Options;

/// A driver for one provider.
pub struct QemuDriver {
    options: Arc<Options>,
    host: Arc<dyn Host>,
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

    /// On a host that is not simply this one.
    pub fn on(options: Arc<Options>, host: Arc<dyn Host>) -> Self {
        Self { options, host }
    }

    async fn machines_of_node(&self, node: NodeId) -> Result<Vec<Machine>, Error> {
        let mut machines = self.host.machines().await?;
        machines.retain(|machine| self.options.owner.owns_node(&machine.tags, node));
        Ok(machines)
    }
}

#[async_trait]
impl Driver for QemuDriver {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            launches: true,
            manages_images: true,
        }
    }

    async fn list(&self) -> Result<Vec<Resource>, Error> {
        let machines = self.host.machines().await?;
        let machines = machines.iter().map(|machine| Resource {
            kind: ResourceKind::INSTANCES,
            id: machine.id.as_str().into(),
            name: Some(machine.name.clone()),
            tags: machine.tags.clone(),
            takes: machine.takes(),
        });
        let images = self.list_images().await?;
        let images = images.into_iter().map(|image| Resource {
            kind: ResourceKind::IMAGES,
            tags: image.tags(),
            id: image.id,
            name: Some(image.name),
            takes: Resources::default(),
        });
        Ok(machines.chain(images).collect())
    }

    async fn create(
        &self,
        order: &CreateOrder,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<Instance>, Error> {
        self.step_create(order, state, now).await
    }

    async fn delete(
        &self,
        target: &Target,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<()>, Error> {
        self.step_delete(target, state, now).await
    }

    /// Memory is what the host has. Processors can be shared: a pool's `max-cores` may ask for more than there are.
    async fn limits(&self) -> Result<Limits, Error> {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
        let asked = self.options.pools.iter().filter_map(|pool| pool.max_cores);
        let cores = asked.chain([cores]).max().unwrap_or(cores);
        let mut limits = Limits::unlimited();
        limits.set(ResourceName::CORES, whole(cores));
        if let Some(memory) = host_memory() {
            limits.set(ResourceName::RAM, whole(memory));
        }
        Ok(limits)
    }

    async fn cost(&self, pool: &PoolName, label: &Label) -> Result<Resources, Error> {
        let label = self.options.label(pool, label)?;
        Ok(Resources::new(whole(label.cpus), 1, whole(label.memory)))
    }

    async fn zones(&self, _: &PoolName) -> Result<Vec<Box<str>>, Error> {
        Ok(Vec::new())
    }

    async fn readiness(
        &self,
        pool: &PoolName,
        label: &Label,
        _: Timestamp,
    ) -> Result<Readiness, Error> {
        match &self.options.label(pool, label)?.image {
            LabelImage::Disk(_) => Ok(Readiness::Ready),
            LabelImage::Cloud(name) => match self.cloud_image_file(name).await {
                Ok(_) => Ok(Readiness::Ready),
                Err(error) => Ok(Readiness::NotReady(error.to_string())),
            },
        }
    }

    async fn upload(
        &self,
        order: &UploadOrder,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<UploadedImage>, Error> {
        self.step_upload(order, state, now).await
    }

    async fn list_images(&self) -> Result<Vec<CloudImage>, Error> {
        self.images().await
    }

    async fn choosable_images(&self) -> Result<Vec<CloudImage>, Error> {
        self.files_as_images().await
    }

    async fn delete_image(
        &self,
        target: &ImageTarget,
        _: &mut State,
        _: Timestamp,
    ) -> Result<Step<()>, Error> {
        let key = &target.upload;
        let owner = &self.options.owner;
        let mut uploads = self.host.uploads().await?;
        uploads.retain(|upload| owner.owns_upload(&upload.tags, key.build.build, key.upload));
        self.step_delete_images(uploads).await
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

    async fn tidy(&self, now: Timestamp) -> Result<Vec<Tidied>, Error> {
        let count = self.host.tidy(now).await?;
        let files = Tidied {
            kind: ResourceKind::new("files"),
            count,
        };
        Ok((count > 0).then_some(files).into_iter().collect())
    }

    async fn event(&self, event: &EventKey) {
        let (booting, id) = match event.as_str().strip_prefix(BOOTING) {
            Some(id) => (true, id),
            None => (false, event.as_str()),
        };
        match LocalId::parse(id) {
            Some(id) if booting => self.host.halted(&id).await,
            Some(id) => self.host.stopped(&id).await,
            None => std::future::pending().await,
        }
    }
}

/// Marks the event of a machine that fails to boot; no id contains a colon.
const BOOTING: &str = "booting:";

/// The event of a machine that stops, or whose guest QEMU pauses, before it has booted.
fn boot_failing(machine: &LocalId) -> EventKey {
    EventKey::new(format!("{BOOTING}{machine}"))
}

/// The event of a machine that stops.
fn stopping(machine: &LocalId) -> EventKey {
    EventKey::new(machine.as_str())
}

fn local_id(id: &ExternalId) -> Result<LocalId, Error> {
    let text = id.as_text().unwrap_or_default();
    LocalId::parse(&text)
        .ok_or_else(|| Error::permanent(format!("{id} is not the id of a machine on this host")))
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// In MiB. None where the kernel does not say.
fn host_memory() -> Option<u64> {
    let table = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = table
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes / 1024)
}
