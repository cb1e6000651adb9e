//! The driver.

mod catalog;
mod create;
mod delete;
mod images;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use nodeyard_driver::{
    Capabilities, CloudImage, CreateOrder, Driver, Error, ExternalId, ImageTarget, Instance,
    Readiness, Resource, ResourceKind, State, Step, Target, UploadOrder, UploadedImage,
};
use nodeyard_model::{Label, Limits, PoolName, Quantity, Resources, Timestamp};
use nodeyard_nodescan::Scanner;
use tokio::sync::OnceCell;

use self::catalog::Catalog;
use crate::engine::{Container, Engine};
use crate::host::Info;
use crate::options::{LabelOptions, Options, PoolOptions};
use crate::transport::Transport;

/// What a container takes, as labels of its own: a list of containers does not tell their limits.
const CORES_LABEL: &str = "nodeyard_cores";
const RAM_LABEL: &str = "nodeyard_ram";

/// How much of a container's output is evidence.
const EVIDENCE_LINES: u32 = 200;

/// A driver for one provider on this host.
pub struct ContainerDriver {
    options: Options,
    engine: Engine,
    scanner: Arc<dyn Scanner>,
    /// What the runtime can do does not change while it runs.
    info: OnceCell<Info>,
    catalog: Mutex<Catalog>,
    /// One pull at a time: nodes of one label want the same image at the same moment.
    pulling: tokio::sync::Mutex<()>,
}

impl fmt::Debug for ContainerDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ContainerDriver")
            .field(&self.options.owner.provider)
            .finish()
    }
}

impl ContainerDriver {
    pub fn new(options: Options, transport: Arc<dyn Transport>, scanner: Arc<dyn Scanner>) -> Self {
        Self {
            engine: Engine {
                transport,
                limit: options.call_timeout,
            },
            options,
            scanner,
            info: OnceCell::new(),
            catalog: Mutex::default(),
            pulling: tokio::sync::Mutex::default(),
        }
    }

    async fn info(&self) -> Result<&Info, Error> {
        self.info.get_or_try_init(|| self.engine.info()).await
    }

    fn label(&self, pool: &PoolName, name: &Label) -> Result<&LabelOptions, Error> {
        let of_pool = |of: &&PoolOptions| of.name == *pool;
        let pool = self.options.pools.iter().find(of_pool).ok_or_else(|| {
            let provider = &self.options.owner.provider;
            Error::permanent(format!("provider {provider} has no pool {pool}"))
        })?;
        let mut labels = pool.labels.iter();
        labels
            .find(|label| label.name == *name)
            .ok_or_else(|| Error::permanent(format!("pool {} has no label {name}", pool.name)))
    }

    fn catalog(&self) -> MutexGuard<'_, Catalog> {
        self.catalog.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What containers without limits take cannot be known, and is not counted.
fn takes(label: &LabelOptions) -> Resources {
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

/// By its labels; what somebody else made is one machine of unknown size.
fn taken(container: &Container) -> Resources {
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

#[async_trait]
impl Driver for ContainerDriver {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            launches: true,
            manages_images: true,
        }
    }

    async fn list(&self) -> Result<Vec<Resource>, Error> {
        let containers = self.engine.containers().await?;
        let images = self.engine.images().await?;
        let containers = containers.iter().map(|container| Resource {
            kind: ResourceKind::INSTANCES,
            id: container.id.as_str().into(),
            name: container.name().map(Into::into),
            tags: container.tags(),
            takes: taken(container),
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

    async fn limits(&self) -> Result<Limits, Error> {
        Ok(self.info().await?.limits())
    }

    async fn cost(&self, pool: &PoolName, label: &Label) -> Result<Resources, Error> {
        Ok(takes(self.label(pool, label)?))
    }

    async fn zones(&self, _pool: &PoolName) -> Result<Vec<Box<str>>, Error> {
        Ok(Vec::new())
    }

    async fn readiness(
        &self,
        pool: &PoolName,
        label: &Label,
        now: Timestamp,
    ) -> Result<Readiness, Error> {
        let label = self.label(pool, label)?;
        self.info().await?.check(label)?;
        self.image_readiness(label, now).await
    }

    async fn upload(
        &self,
        order: &UploadOrder,
        state: &mut State,
        _now: Timestamp,
    ) -> Result<Step<UploadedImage>, Error> {
        self.step_upload(order, state).await
    }

    async fn list_images(&self) -> Result<Vec<CloudImage>, Error> {
        let images = self.engine.images().await?;
        Ok(images
            .iter()
            .map(crate::engine::Image::to_cloud_image)
            .collect())
    }

    async fn images_in_use(&self) -> Result<BTreeSet<ExternalId>, Error> {
        let containers = self.engine.containers().await?;
        let images = self.engine.images().await?.into_iter();
        let used = images.filter(|image| containers.iter().any(|one| one.uses(&image.id)));
        Ok(used.map(|image| image.id.as_str().into()).collect())
    }

    async fn delete_image(
        &self,
        target: &ImageTarget,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<()>, Error> {
        self.step_delete_image(target, state, now).await
    }

    async fn evidence(
        &self,
        _pool: &PoolName,
        _label: &Label,
        id: &ExternalId,
    ) -> Result<Option<String>, Error> {
        let id = text_id(id)?;
        let Some(container) = self.engine.inspect(&id).await? else {
            return Ok(None);
        };
        let log = self.engine.logs(&id, EVIDENCE_LINES).await?;
        Ok(Some(format!("{}\n{log}", container.describe())))
    }
}

/// Runtimes have texts as ids.
fn text_id(id: &ExternalId) -> Result<String, Error> {
    id.as_text()
        .ok_or_else(|| Error::permanent(format!("{id} is not an id of a container runtime")))
}
