//! Where the store lies: a file in a directory, or something that misbehaves on purpose in tests.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::backends::FileBackend;
use redb::{Builder, Database, DatabaseError};

use super::fault::{Fault, contained};
use super::rehearsal::Rehearsal;
use super::resync::Ledger;

/// Enough for the inner pages of any tree of records we expect and the leaves in use; the operating
/// system caches the rest of the file.
const CACHE: usize = 48 * 1024 * 1024;

const FILE: &str = "store.redb";

pub(super) trait Medium: Send + std::fmt::Debug {
    fn open(&self) -> Result<Database, DatabaseError>;

    /// Free bytes, where that can be known.
    fn free(&self) -> Option<u64>;

    /// How errors call it.
    fn name(&self) -> Arc<Path>;
}

pub(super) fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE);
    builder
}

#[derive(Debug)]
pub(super) struct FileMedium {
    directory: PathBuf,
    file: Arc<Path>,
    ledger: Ledger,
}

impl FileMedium {
    pub(super) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            file: directory.join(FILE).into(),
            ledger: Ledger::default(),
        }
    }

    /// Makes the directory and the file. What is in them is for their owner alone.
    pub(super) fn prepare(&self) -> Result<(), Fault> {
        let existed = fs::metadata(&self.directory).is_ok();
        if !existed {
            if let Some(above) = self.directory.parent() {
                fs::create_dir_all(above)?;
            }
            DirBuilder::new().mode(0o700).create(&self.directory)?;
        }
        if fs::metadata(&self.file).is_err() {
            self.handle()?.sync_all()?;
            // The name of the file must survive a crash, too.
            File::open(&self.directory)?.sync_all()?;
        }
        Ok(())
    }

    /// Whether the file can be opened without losing anything; it is not written to.
    pub(super) fn rehearse(&self) -> Result<(), Fault> {
        let file = self.handle()?;
        // Nothing was ever in it.
        if file.metadata()?.len() == 0 {
            return Ok(());
        }
        contained(|| {
            let storage = Rehearsal::over(FileBackend::new(file)?)?;
            let mut database = builder().create_with_backend(storage)?;
            if database.check_integrity()? {
                Ok(())
            } else {
                Err(Fault::Repairable)
            }
        })
    }

    fn handle(&self) -> std::io::Result<File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&self.file)
    }
}

impl Medium for FileMedium {
    fn open(&self) -> Result<Database, DatabaseError> {
        let file = FileBackend::new(self.handle()?)?;
        builder().create_with_backend(self.ledger.over(file))
    }

    fn free(&self) -> Option<u64> {
        let stat = rustix::fs::statvfs(&*self.directory).ok()?;
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn name(&self) -> Arc<Path> {
        self.file.clone()
    }
}
