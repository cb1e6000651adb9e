//! What the tests of a driver bring along.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_model::{ImageName, Label, PoolName, Resources};

use super::faults::Faults;
use crate::driver::Driver;
use crate::order::BootImage;
use crate::tags::Owner;

/// A cloud that outlives its clients. The kit makes a new one for each run.
///
/// Put things of others into it, best with the very names that ours will have: the kit sees to it that
/// they are still there at the end.
#[async_trait]
pub trait Bed: Send + Sync {
    /// A driver as a process that was just started would make it. Each of its calls to the cloud passes
    /// through [`Faults::call`].
    async fn driver(&self, faults: &Faults) -> Box<dyn Driver>;

    fn setup(&self) -> Setup;

    /// Everything that exists, one line each, seen without the driver.
    async fn exists(&self) -> BTreeSet<String>;

    /// What the cloud itself counts as used.
    async fn used(&self) -> Resources;

    /// Waits until lists show what there is, in a cloud whose lists come late.
    async fn lists_catch_up(&self) {}

    /// Lets time pass.
    async fn wait(&self, time: Duration);
}

/// What to make in a bed.
#[derive(Debug, Clone)]
pub struct Setup {
    pub owner: Owner,
    pub pool: PoolName,
    pub label: Label,
    pub image: BootImage,
    /// For drivers that take uploads: an image, its file and its format.
    pub upload: Option<(ImageName, PathBuf, Box<str>)>,
}
