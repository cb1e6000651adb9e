//! The images of this host, in images-dir.
//!
//! An image exists when its manifest, `<image>-<id>.d/nodeyard.json`, says `ready`; files without a word from a
//! manifest count only if they are named as Python Nodepool names its own. While an image is made, its record is kept
//! in `.nodeyard/drafts`, out of reach of the program that makes it, and whatever is in its place belongs to that
//! draft: a start that finds a draft removes the files and calls the image failed. Removal works the same way, with a
//! record in `.nodeyard/deleting` first. So at every point of time a killed process leaves either the state before, or
//! the state after, or a record that says what is left to do.
//!
//! One process uses a directory. Methods that only look ([`get`](Repository::get), [`images`](Repository::images),
//! [`path`](Repository::path)) read memory and return at once; all others touch the disk and block: call them by
//! `spawn_blocking`.

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

pub(crate) use draft::measure;
pub use draft::{Begin, CommitError, Draft};
pub use open::{OpenError, Options};

use crate::budget::{Budget, BudgetError, Limits, NoRoom, Reservation};
use crate::files::{self, FileError};
use crate::layout::{BadBase, Base, Layout};
use crate::manifest::{Manifest, State};
use crate::{Format, ImageId};

/// The images of this host. Clones are the same repository.
#[derive(Debug, Clone)]
pub struct Repository {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) layout: Layout,
    builder: Box<str>,
    builder_id: Box<str>,
    /// What is known of each image. Never held while the disk is touched.
    index: RwLock<BTreeMap<ImageId, Arc<Manifest>>>,
    /// Held by whoever changes names or manifests.
    changes: Mutex<()>,
    pub(crate) budget: Arc<Budget>,
    /// Whose turn it is to convert files of an image.
    conversions: Mutex<BTreeMap<ImageId, Arc<tokio::sync::Mutex<()>>>>,
    /// Released by the kernel when the process ends.
    _lock: File,
}

/// Why something could not be done to an image.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("image {id} is not here")]
    Unknown { id: ImageId },
    #[error("image {id} is here already, and is {state}")]
    Exists { id: ImageId, state: State },
    #[error("image {id} is being built: wait for the end of the build or stop it first")]
    Building { id: ImageId },
    #[error(
        "files called {base} are here already, and are not of this image: use another id, or remove them"
    )]
    Taken { base: String },
    #[error("image {id} has no {format} file here")]
    NoFormat { id: ImageId, format: Format },
    #[error(transparent)]
    BadBase(#[from] BadBase),
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} is not what its digests say; delete the build", path.display())]
    Mismatch {
        path: PathBuf,
        #[source]
        source: crate::Mismatch,
    },
}

impl From<BudgetError> for Error {
    fn from(error: BudgetError) -> Self {
        match error {
            BudgetError::NoRoom(error) => Self::NoRoom(error),
            BudgetError::File(error) => Self::File(error),
        }
    }
}

impl Repository {
    pub fn dir(&self) -> &Path {
        self.shared.layout.dir()
    }

    /// What `builder_id.txt` says.
    pub fn builder_id(&self) -> &str {
        &self.shared.builder_id
    }

    /// The name of this host, as [`Options`] gave it.
    pub fn builder(&self) -> &str {
        &self.shared.builder
    }

    /// Every image, also those that are being built or have failed, in the order of their ids.
    pub fn images(&self) -> Vec<Arc<Manifest>> {
        self.shared
            .read_index(|index| index.values().cloned().collect())
    }

    pub fn get(&self, id: &ImageId) -> Option<Arc<Manifest>> {
        self.shared.read_index(|index| index.get(id).cloned())
    }

    /// Where the file of an image is that is ready.
    pub fn path(&self, id: &ImageId, format: &Format) -> Result<PathBuf, Error> {
        let manifest = self.shared.ready(id)?;
        if !manifest.files.contains_key(format) {
            let (id, format) = (id.clone(), format.clone());
            return Err(Error::NoFormat { id, format });
        }
        let base = Base::new(&manifest.image, id)?;
        Ok(self.shared.layout.file(&base, format))
    }

    /// What [`Draft::keep`] has kept of an image. Blocks.
    pub fn kept(&self, id: &ImageId, name: &str) -> Option<Vec<u8>> {
        let manifest = self.get(id)?;
        let base = Base::new(&manifest.image, id).ok()?;
        std::fs::read(self.shared.layout.manifest_dir(&base).join(name)).ok()
    }

    /// Whether so many bytes more may be written, beside what running work has reserved. Blocks.
    pub fn check_room(&self, needed: u64) -> Result<(), Error> {
        let shared = &self.shared;
        Ok(shared.budget.check(&shared.layout, needed)?)
    }

    /// Keeps room for a file that grows to this size, or has grown already, until what is returned is dropped. Blocks.
    pub(crate) fn keep_room(&self, path: &Path, size: u64) -> Result<Reservation, Error> {
        let shared = &self.shared;
        Ok(shared.budget.reserve_file(&shared.layout, path, size)?)
    }

    /// Removes what is left of downloads that nobody has gone on with for so long. Blocks.
    pub fn forget_downloads(&self, older_than: Duration) -> Result<(), Error> {
        let root = self.shared.layout.downloads();
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
            // One that is not empty stays.
            let _used = std::fs::remove_dir(&dir);
        }
        Ok(())
    }

    /// Takes effect for work that starts later.
    pub fn set_limits(&self, limits: Limits) {
        self.shared.budget.set_limits(limits);
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Shared {
    fn read_index<T>(&self, read: impl FnOnce(&BTreeMap<ImageId, Arc<Manifest>>) -> T) -> T {
        read(&self.index.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write_index<T>(&self, write: impl FnOnce(&mut BTreeMap<ImageId, Arc<Manifest>>) -> T) -> T {
        write(&mut self.index.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Nothing a panicking thread could leave half done matters: the disk has the truth.
    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, id: &ImageId) -> Result<Arc<Manifest>, Error> {
        self.read_index(|index| index.get(id).cloned())
            .ok_or_else(|| Error::Unknown { id: id.clone() })
    }

    /// An image that is not being built.
    fn at_rest(&self, id: &ImageId) -> Result<Arc<Manifest>, Error> {
        let manifest = self.known(id)?;
        match manifest.state {
            State::Building => Err(Error::Building { id: id.clone() }),
            State::Ready | State::Failed => Ok(manifest),
        }
    }

    pub(crate) fn ready(&self, id: &ImageId) -> Result<Arc<Manifest>, Error> {
        let manifest = self.at_rest(id)?;
        match manifest.state {
            State::Ready => Ok(manifest),
            State::Building | State::Failed => Err(Error::Unknown { id: id.clone() }),
        }
    }

    /// Replaces the manifest of an image, on disk first. The caller holds `changes`.
    fn store(&self, base: &Base, manifest: Manifest) -> Result<Arc<Manifest>, FileError> {
        files::create_dir(&self.layout.manifest_dir(base))?;
        files::write_atomic(&self.layout.manifest(base), &manifest.to_json())?;
        files::sync_dir(self.layout.dir())?;
        let manifest = Arc::new(manifest);
        self.write_index(|index| index.insert(manifest.id.clone(), Arc::clone(&manifest)));
        Ok(manifest)
    }

    /// One conversion of an image at a time, so that two that want the same format share one.
    pub(crate) fn conversions(&self, id: &ImageId) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self
            .conversions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Those that nobody holds are free again.
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(id.clone()).or_default())
    }

    fn largest(&self, image: &ImageName) -> Option<u64> {
        self.read_index(|index| {
            index
                .values()
                .filter(|manifest| manifest.image == *image)
                .map(|manifest| manifest.allocated())
                .max()
        })
    }
}
