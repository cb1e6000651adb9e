//! Opening a repository: locking, builder id, recovery.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, RwLock};

use super::{Repository, RepositoryInner, recover};
use crate::budget::{Budget, DiskLimits};
use crate::files::{self, AttemptExt as _, FileError};
use crate::layout::{BUILDER_ID, Layout};

/// The maximum length of a builder id; those made here have 36 characters.
const MAX_BUILDER_ID_LEN: u64 = 256;

/// Options of [`Repository::open`].
#[derive(Debug, Clone)]
pub struct Options {
    /// images-dir; created if it is missing.
    pub dir: PathBuf,
    /// The name of this host, written to manifests.
    pub builder: Box<str>,
    pub limits: DiskLimits,
}

/// An error opening a repository.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "{} is in use by another process: stop it, or give each builder its own images-dir",
        dir.display()
    )]
    InUse { dir: PathBuf },
    #[error("{} contains no valid builder id: write one to it, or remove it to generate a new one", path.display())]
    BuilderId { path: PathBuf },
    #[error(transparent)]
    File(#[from] FileError),
}

impl Repository {
    /// Locks the directory, finishes the work of a killed process and loads the images. Blocks.
    pub fn open(options: Options) -> Result<Self, OpenError> {
        let Options {
            dir,
            builder,
            limits,
        } = options;
        let dir = std::path::absolute(&dir).attempt("resolve", &dir)?;
        let layout = Layout::new(dir);
        for own in [layout.drafts(), layout.deleting()] {
            files::create_dir(&own)?;
        }
        let lock = lock(&layout)?;
        let builder_id = builder_id(&layout)?;
        let index = recover::recover(&layout, &builder, &builder_id)?;
        let inner = RepositoryInner {
            layout,
            builder,
            builder_id,
            index: RwLock::new(index),
            change_lock: Mutex::new(()),
            conversions: Mutex::default(),
            budget: Arc::new(Budget::new(limits)),
            _lock: lock,
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }
}

fn lock(layout: &Layout) -> Result<File, OpenError> {
    let path = layout.lock();
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .attempt("open", &path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let dir = layout.dir().to_owned();
            Err(OpenError::InUse { dir })
        }
        Err(TryLockError::Error(error)) => Err(FileError::new("lock", &path, error).into()),
    }
}

/// Reads the builder id verbatim, or generates one, written without a line end as by Nodepool.
fn builder_id(layout: &Layout) -> Result<Box<str>, OpenError> {
    let path = layout.dir().join(BUILDER_ID);
    let mut text = String::new();
    match File::open(&path) {
        Ok(file) => {
            let read = file.take(MAX_BUILDER_ID_LEN + 1).read_to_string(&mut text);
            let fits = match read {
                Ok(length) => (1..=MAX_BUILDER_ID_LEN).contains(&(length as u64)),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => false,
                Err(error) => return Err(FileError::new("read", &path, error).into()),
            };
            if fits {
                Ok(text.into())
            } else {
                Err(OpenError::BuilderId { path })
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let id = uuid::Uuid::new_v4().to_string();
            files::write_atomic(&path, id.as_bytes())?;
            Ok(id.into())
        }
        Err(error) => Err(FileError::new("read", &path, error).into()),
    }
}
