//! What the tests of a driver provide.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_model::{ImageName, Label, PoolName, Resources};

use super::faults::Faults;
use crate::driver::Driver;
use crate::order::BootImage;
use crate::tags::Owner;

/// A cloud that outlives its clients. The kit uses a new one for each run.
///
/// It should contain resources of others, if possible with the names that ours will have. The kit checks that they still
/// exist at the end.
#[async_trait]
pub trait Bed: Send + Sync {
    /// Returns a driver of a new process. Each of its calls to the cloud passes through [`Faults::call`].
    async fn driver(&self, faults: &Faults) -> Box<dyn Driver>;

    fn setup(&self) -> Setup;

    /// Lists everything that exists, one line each, without the driver.
    async fn exists(&self) -> BTreeSet<String>;

    /// Returns the usage by the cloud's own account.
    async fn used(&self) -> Resources;

    /// Waits until lists are complete, in a cloud whose lists lag behind.
    async fn lists_catch_up(&self) {}

    /// Lets time pass.
    async fn wait(&self, time: Duration);
}

/// What to create in a bed.
#[derive(Debug, Clone)]
pub struct Setup {
    pub owner: Owner,
    pub pool: PoolName,
    pub label: Label,
    pub image: BootImage,
    /// For drivers that take uploads: an image, its file and its format.
    pub upload: Option<(ImageName, PathBuf, Box<str>)>,
}
