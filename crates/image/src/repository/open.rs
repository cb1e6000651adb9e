//! Taking a directory into use.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, RwLock};

use super::{Repository, Shared, recover};
use crate::budget::{Budget, Limits};
use crate::files::{self, FileError, Try as _};
use crate::layout::{BUILDER_ID, Layout};

/// A builder id has 36 characters; a file with more is not one.
const LONGEST_BUILDER_ID: u64 = 256;

/// How to open a repository.
#[derive(Debug, Clone)]
pub struct Options {
    /// images-dir; created if it is missing.
    pub dir: PathBuf,
    /// The name of this host, for the manifests.
    pub builder: Box<str>,
    pub limits: Limits,
}

/// Why a repository cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "{} is in use by another process: stop it, or give each builder an images-dir of its own",
        dir.display()
    )]
    InUse { dir: PathBuf },
    #[error("{} holds no builder id: write one into it, or remove it to get a new one", path.display())]
    BuilderId { path: PathBuf },
    #[error(transparent)]
    File(#[from] FileError),
}

impl Repository {
    /// Takes a directory into use: finishes what a killed process left half done, and finds the images. Blocks.
    pub fn open(options: Options) -> Result<Self, OpenError> {
        let Options {
            dir,
            builder,
            limits,
        } = options;
        let dir = std::path::absolute(&dir).attempt("find", &dir)?;
        let layout = Layout::new(dir);
        for own in [layout.drafts(), layout.deleting()] {
            files::create_dir(&own)?;
        }
        let lock = lock(&layout)?;
        let builder_id = builder_id(&layout)?;
        let index = recover::recover(&layout, &builder, &builder_id)?;
        let shared = Shared {
            layout,
            builder,
            builder_id,
            index: RwLock::new(index),
            changes: Mutex::new(()),
            conversions: Mutex::default(),
            budget: Arc::new(Budget::new(limits)),
            _lock: lock,
        };
        Ok(Self {
            shared: Arc::new(shared),
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

/// What the file says, to the letter; a new one without a line end, as Nodepool writes it.
fn builder_id(layout: &Layout) -> Result<Box<str>, OpenError> {
    let path = layout.dir().join(BUILDER_ID);
    let mut text = String::new();
    match File::open(&path) {
        Ok(file) => {
            let read = file.take(LONGEST_BUILDER_ID + 1).read_to_string(&mut text);
            let fits = match read {
                Ok(length) => (1..=LONGEST_BUILDER_ID).contains(&(length as u64)),
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
