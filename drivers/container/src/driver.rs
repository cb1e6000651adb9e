//! The driver: [`Machines`] and [`Images`] on top of the calls of the runtime.

mod create;
mod delete;
mod image_lookup;
mod images;
mod login;
mod spec;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use nodeyard_driver::{
    CloudImage, CreateOrder, Driver, Error, ExternalId, ImageTarget, Images, Instance, Machines,
    Progress, Readiness, Resource, ResourceKind, Target, UploadOrder, UploadedImage,
};
use nodeyard_driver_common::KeyedLocks;
use nodeyard_model::{Label, Limits, PoolName, Quantity, Resources};
use nodeyard_nodescan::Scanner;
use tokio::sync::OnceCell;

use self::image_lookup::ImageCache;
use crate::client::{ContainerSummary, ImageSummary, RuntimeClient};
use crate::options::{ContainerLabelOptions, ContainerPoolOptions, Options};
use crate::runtime_info::RuntimeInfo;
use crate::transport::RuntimeTransport;

/// Labels of a container with its limits, which a list of containers does not contain.
const CORES_LABEL: &str = "nodeyard_cores";
const RAM_LABEL: &str = "nodeyard_ram";

/// How many lines of its output are evidence.
const EVIDENCE_LINES: u32 = 200;

/// A driver for one provider on this host.
pub struct ContainerDriver {
    options: Options,
    client: RuntimeClient,
    scanner: Arc<dyn Scanner>,
    /// Does not change while the runtime runs.
    info: OnceCell<RuntimeInfo>,
    image_cache: Mutex<ImageCache>,
    /// One pull at a time: nodes of one label need the same image at the same moment.
    pulls: KeyedLocks,
}

impl fmt::Debug for ContainerDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ContainerDriver")
            .field(&self.options.owner.provider)
            .finish()
    }
}

impl ContainerDriver {
    pub fn new(
        options: Options,
        transport: Arc<dyn RuntimeTransport>,
        scanner: Arc<dyn Scanner>,
    ) -> Self {
        Self {
            client: RuntimeClient {
                transport,
                limit: options.call_timeout,
            },
            options,
            scanner,
            info: OnceCell::new(),
            image_cache: Mutex::default(),
            pulls: KeyedLocks::default(),
        }
    }

    async fn info(&self) -> Result<&RuntimeInfo, Error> {
        self.info.get_or_try_init(|| self.client.info()).await
    }

    fn label(&self, pool: &PoolName, name: &Label) -> Result<&ContainerLabelOptions, Error> {
        let of_pool = |of: &&ContainerPoolOptions| of.name == *pool;
        let pool = self.options.pools.iter().find(of_pool).ok_or_else(|| {
            let provider = &self.options.owner.provider;
            Error::permanent(format!("provider {provider} has no pool {pool}"))
        })?;
        let mut labels = pool.labels.iter();
        labels
            .find(|label| label.name == *name)
            .ok_or_else(|| Error::permanent(format!("pool {} has no label {name}", pool.name)))
    }

    fn image_cache(&self) -> MutexGuard<'_, ImageCache> {
        self.image_cache
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns how much a container of a label uses. What has no limit is not counted.
fn cost(label: &ContainerLabelOptions) -> Resources {
    let memory = label.memory.unwrap_or(0);
    Resources::new(
        cores(label.cpus.unwrap_or(0.0)),
        1,
        i64::try_from(memory).unwrap_or(i64::MAX),
    )
}

fn cores(number: f64) -> Quantity {
    let whole = number.fract() == 0.0 && number.abs() < f64::from(u32::MAX);
    if whole {
        (number as i64).into()
    } else {
        Quantity::from_f64(number).unwrap_or(Quantity::ZERO)
    }
}

/// Returns how much a container uses, by its labels. One that somebody else created counts as a machine of unknown size.
fn usage(container: &ContainerSummary) -> Resources {
    let number = |key| container.label(key).and_then(|text| text.parse().ok());
    let ram = container
        .label(RAM_LABEL)
        .and_then(|text| text.parse().ok());
    Resources::new(
        cores(number(CORES_LABEL).unwrap_or(0.0)),
        1,
        ram.unwrap_or(0_i64),
    )
}

impl Driver for ContainerDriver {
    fn machines(&self) -> Option<&dyn Machines> {
        Some(self)
    }

    fn images(&self) -> Option<&dyn Images> {
        Some(self)
    }
}

#[async_trait]
impl Machines for ContainerDriver {
    async fn create(&self, order: &CreateOrder, progress: &Progress) -> Result<Instance, Error> {
        self.create_container(order, progress).await
    }

    async fn delete(&self, target: &Target) -> Result<(), Error> {
        match target {
            Target::Resource { kind, id } if *kind == ResourceKind::IMAGES => {
                self.remove_images(&[text_id(id)?]).await
            }
            target => self.delete_containers(target).await,
        }
    }

    async fn list(&self) -> Result<Vec<Resource>, Error> {
        let containers = self.client.containers().await?;
        let images = self.client.images().await?;
        let containers = containers.iter().map(|container| Resource {
            kind: ResourceKind::INSTANCES,
            id: container.id.as_str().into(),
            name: container.name().map(Into::into),
            tags: container.tags(),
            takes: usage(container),
        });
        let images = images.iter().map(|image| Resource {
            kind: ResourceKind::IMAGES,
            id: image.id.as_str().into(),
            name: image.references().next().map(Into::into),
            tags: image.tags(),
            takes: Resources::default(),
        });
        Ok(containers.chain(images).collect())
    }

    async fn limits(&self) -> Result<Limits, Error> {
        Ok(self.info().await?.limits())
    }

    async fn cost(&self, pool: &PoolName, label: &Label) -> Result<Resources, Error> {
        Ok(cost(self.label(pool, label)?))
    }

    async fn readiness(&self, pool: &PoolName, label: &Label) -> Result<Readiness, Error> {
        let label = self.label(pool, label)?;
        self.info().await?.check(label)?;
        self.image_readiness(label).await
    }

    async fn evidence(
        &self,
        _pool: &PoolName,
        _label: &Label,
        id: &ExternalId,
    ) -> Result<Option<String>, Error> {
        let id = text_id(id)?;
        let Some(container) = self.client.inspect(&id).await? else {
            return Ok(None);
        };
        let log = self.client.logs(&id, EVIDENCE_LINES).await?;
        Ok(Some(format!("{}\n{log}", container.describe())))
    }
}

#[async_trait]
impl Images for ContainerDriver {
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
        let images = self.client.images().await?;
        Ok(images.iter().map(ImageSummary::to_cloud_image).collect())
    }

    async fn images_in_use(&self) -> Result<BTreeSet<ExternalId>, Error> {
        let containers = self.client.containers().await?;
        let images = self.client.images().await?.into_iter();
        let used = images.filter(|image| containers.iter().any(|one| one.uses(&image.id)));
        Ok(used.map(|image| image.id.as_str().into()).collect())
    }
}

/// Returns the id as text, which it is in container runtimes.
fn text_id(id: &ExternalId) -> Result<String, Error> {
    id.as_text().ok_or_else(|| {
        Error::permanent(format!(
            "invalid id {id}: a container runtime has no such ids"
        ))
    })
}
