//! The repository of images in images-dir.
//!
//! An image exists if its manifest, `<image>-<id>.d/nodeyard.json`, has the state `ready`. Files without a manifest
//! count only if they are named like those of Python Nodepool. Builds and deletions are crash-safe: a record in
//! `.nodeyard/drafts` or `.nodeyard/deleting` is written first, and [`Repository::open`] finishes what the records of a
//! killed process describe (an unfinished build becomes a failed image without files).
//!
//! A directory is locked by one process. [`get`](Repository::get), [`images`](Repository::images) and
//! [`path`](Repository::path) read memory; all other methods access the disk and block: call them by `spawn_blocking`.

mod change;
#[cfg(test)]
mod crash_tests;
mod draft;
mod open;
mod recover;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use nodeyard_model::{ImageName, now};

pub(crate) use draft::hash_file;
pub use draft::{CommitError, Draft, DraftRequest};
pub use open::{OpenError, Options};

use crate::budget::{Budget, BudgetError, DiskLimits, InsufficientSpace, Reservation};
use crate::files::{self, FileError};
use crate::layout::{BaseName, InvalidBaseName, Layout};
use crate::manifest::{Manifest, ManifestState};
use crate::{Format, ImageId};

/// The images of this host. Clones share their state.
#[derive(Debug, Clone)]
pub struct Repository {
    inner: Arc<RepositoryInner>,
}

#[derive(Debug)]
pub(crate) struct RepositoryInner {
    pub(crate) layout: Layout,
    builder: Box<str>,
    builder_id: Box<str>,
    /// The manifests. Not locked during disk access.
    index: RwLock<BTreeMap<ImageId, Arc<Manifest>>>,
    /// Locked while changing file names or manifests.
    change_lock: Mutex<()>,
    pub(crate) budget: Arc<Budget>,
    /// Serializes conversions of an image.
    conversions: Mutex<BTreeMap<ImageId, Arc<tokio::sync::Mutex<()>>>>,
    /// Released by the kernel when the process ends.
    _lock: File,
}

/// An error of a [`Repository`] operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("image {id} does not exist on this host")]
    Unknown { id: ImageId },
    #[error("image {id} already exists and is {state}")]
    Exists { id: ImageId, state: ManifestState },
    #[error("image {id} is being built: wait for the end of the build or stop it first")]
    Building { id: ImageId },
    #[error(
        "files named {base} already exist and do not belong to this image: use another id, or remove them"
    )]
    FilesExist { base: String },
    #[error("image {id} has no {format} file on this host")]
    NoFormat { id: ImageId, format: Format },
    #[error(transparent)]
    InvalidBaseName(#[from] InvalidBaseName),
    #[error(transparent)]
    InsufficientSpace(#[from] InsufficientSpace),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} does not match its digests: delete the build", path.display())]
    DigestMismatch {
        path: PathBuf,
        #[source]
        source: crate::DigestMismatch,
    },
}

impl From<BudgetError> for Error {
    fn from(error: BudgetError) -> Self {
        match error {
            BudgetError::InsufficientSpace(error) => Self::InsufficientSpace(error),
            BudgetError::File(error) => Self::File(error),
        }
    }
}

impl Repository {
    pub fn dir(&self) -> &Path {
        self.inner.layout.dir()
    }

    /// Returns the content of `builder_id.txt`.
    pub fn builder_id(&self) -> &str {
        &self.inner.builder_id
    }

    /// Returns the name of this host, from [`Options`].
    pub fn builder(&self) -> &str {
        &self.inner.builder
    }

    /// Returns all images, including those being built and failed ones, ordered by id.
    pub fn images(&self) -> Vec<Arc<Manifest>> {
        self.inner
            .read_index(|index| index.values().cloned().collect())
    }

    pub fn get(&self, id: &ImageId) -> Option<Arc<Manifest>> {
        self.inner.read_index(|index| index.get(id).cloned())
    }

    /// Returns the path of a file of an image that is ready.
    pub fn path(&self, id: &ImageId, format: &Format) -> Result<PathBuf, Error> {
        let manifest = self.inner.get_ready(id)?;
        if !manifest.files.contains_key(format) {
            let (id, format) = (id.clone(), format.clone());
            return Err(Error::NoFormat { id, format });
        }
        let base = BaseName::new(&manifest.image, id)?;
        Ok(self.inner.layout.file(&base, format))
    }

    /// Reads a file that [`Draft::attach`] stored with the image. Blocks.
    pub fn attachment(&self, id: &ImageId, name: &str) -> Option<Vec<u8>> {
        let manifest = self.get(id)?;
        let base = BaseName::new(&manifest.image, id).ok()?;
        std::fs::read(self.inner.layout.manifest_dir(&base).join(name)).ok()
    }

    /// Returns the estimated size of the next build of an image.
    pub fn estimate_build(&self, image: &ImageName) -> u64 {
        let inner = &self.inner;
        inner.budget.estimate_build(inner.largest_build(image))
    }

    /// Returns how many more bytes fit within the limits, in addition to reservations. Blocks.
    pub fn available_space(&self) -> Result<u64, Error> {
        let inner = &self.inner;
        Ok(inner.budget.available(&inner.layout)?)
    }

    /// Checks whether `needed` more bytes fit within the limits, in addition to reservations. Blocks.
    pub(crate) fn check_space(&self, needed: u64) -> Result<(), Error> {
        let inner = &self.inner;
        Ok(inner.budget.check(&inner.layout, needed)?)
    }

    /// Reserves space for a file that grows to this size. Blocks.
    pub(crate) fn reserve_file(&self, path: &Path, size: u64) -> Result<Reservation, Error> {
        let inner = &self.inner;
        Ok(inner.budget.reserve_file(&inner.layout, path, size)?)
    }

    /// Removes incomplete downloads that were not modified for this long. Blocks.
    pub fn remove_stale_downloads(&self, older_than: Duration) -> Result<(), Error> {
        let root = self.inner.layout.downloads();
        if !root.exists() {
            return Ok(());
        }
        for (image, _) in files::list(&root)? {
            let dir = root.join(image);
            for (name, _) in files::list(&dir)? {
                let path = dir.join(name);
                let meta = path.symlink_metadata();
                let modified = meta.and_then(|meta| meta.modified());
                if modified.is_ok_and(|modified| now().since(modified.into()) >= older_than) {
                    files::remove_file(&path)?;
                }
            }
            // Fails if the directory is not empty.
            let _ignored = std::fs::remove_dir(&dir);
        }
        Ok(())
    }

    /// Sets the limits for work that starts later.
    pub fn set_limits(&self, limits: DiskLimits) {
        self.inner.budget.set_limits(limits);
    }

    pub(crate) fn inner(&self) -> &Arc<RepositoryInner> {
        &self.inner
    }
}

impl RepositoryInner {
    fn read_index<T>(&self, read: impl FnOnce(&BTreeMap<ImageId, Arc<Manifest>>) -> T) -> T {
        read(&self.index.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write_index<T>(&self, write: impl FnOnce(&mut BTreeMap<ImageId, Arc<Manifest>>) -> T) -> T {
        write(&mut self.index.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks changes. A poisoned lock is fine because the disk is authoritative.
    fn lock_changes(&self) -> MutexGuard<'_, ()> {
        self.change_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn get_known(&self, id: &ImageId) -> Result<Arc<Manifest>, Error> {
        self.read_index(|index| index.get(id).cloned())
            .ok_or_else(|| Error::Unknown { id: id.clone() })
    }

    /// Returns an image. Fails if it is being built.
    fn get_not_building(&self, id: &ImageId) -> Result<Arc<Manifest>, Error> {
        let manifest = self.get_known(id)?;
        match manifest.state {
            ManifestState::Building => Err(Error::Building { id: id.clone() }),
            ManifestState::Ready | ManifestState::Failed => Ok(manifest),
        }
    }

    pub(crate) fn get_ready(&self, id: &ImageId) -> Result<Arc<Manifest>, Error> {
        let manifest = self.get_not_building(id)?;
        match manifest.state {
            ManifestState::Ready => Ok(manifest),
            ManifestState::Building | ManifestState::Failed => {
                Err(Error::Unknown { id: id.clone() })
            }
        }
    }

    /// Writes a manifest to disk, then to the index. The caller holds `change_lock`.
    fn store_manifest(
        &self,
        base: &BaseName,
        manifest: Manifest,
    ) -> Result<Arc<Manifest>, FileError> {
        files::create_dir(&self.layout.manifest_dir(base))?;
        files::write_atomic(&self.layout.manifest(base), &manifest.to_json())?;
        files::sync_dir(self.layout.dir())?;
        let manifest = Arc::new(manifest);
        self.write_index(|index| index.insert(manifest.id.clone(), Arc::clone(&manifest)));
        Ok(manifest)
    }

    /// Returns the lock that serializes conversions of an image, so that requests for the same format share one.
    pub(crate) fn conversion_lock(&self, id: &ImageId) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self
            .conversions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Drops unused locks.
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(id.clone()).or_default())
    }

    fn largest_build(&self, image: &ImageName) -> Option<u64> {
        self.read_index(|index| {
            index
                .values()
                .filter(|manifest| manifest.image == *image)
                .map(|manifest| manifest.allocated())
                .max()
        })
    }
}
