//! [`StorageFile`]: the storage of the database, a file or a faulty disk in tests.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::backends::FileBackend;
use redb::{Builder, Database, DatabaseError};

use super::dry_run::DryRunStorage;
use super::file_error::{StoreFileError, catch_panics};
use super::resync_storage::UnsyncedRanges;

/// The cache size, sufficient for inner pages and frequently used leaves. The operating system caches the rest.
const CACHE: usize = 48 * 1024 * 1024;

const FILE: &str = "store.redb";

pub(super) trait StorageFile: Send + std::fmt::Debug {
    fn open(&self) -> Result<Database, DatabaseError>;

    /// Returns the free disk space, if known.
    fn free(&self) -> Option<u64>;

    /// Returns the name for error messages.
    fn name(&self) -> Arc<Path>;
}

pub(super) fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE);
    builder
}

#[derive(Debug)]
pub(super) struct DiskFile {
    directory: PathBuf,
    file: Arc<Path>,
    ledger: UnsyncedRanges,
}

impl DiskFile {
    pub(super) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            file: directory.join(FILE).into(),
            ledger: UnsyncedRanges::default(),
        }
    }

    /// Creates the directory and the file, accessible only by the owner.
    pub(super) fn prepare(&self) -> Result<(), StoreFileError> {
        let existed = fs::metadata(&self.directory).is_ok();
        if !existed {
            if let Some(above) = self.directory.parent() {
                fs::create_dir_all(above)?;
            }
            DirBuilder::new().mode(0o700).create(&self.directory)?;
        }
        if fs::metadata(&self.file).is_err() {
            self.handle()?.sync_all()?;
            // Makes the creation of the file durable.
            File::open(&self.directory)?.sync_all()?;
        }
        Ok(())
    }

    /// Checks that the file can be opened without data loss, without writing to it.
    pub(super) fn dry_run(&self) -> Result<(), StoreFileError> {
        let file = self.handle()?;
        // A new file.
        if file.metadata()?.len() == 0 {
            return Ok(());
        }
        catch_panics(|| {
            let storage = DryRunStorage::over(FileBackend::new(file)?)?;
            let mut database = builder().create_with_backend(storage)?;
            if database.check_integrity()? {
                Ok(())
            } else {
                Err(StoreFileError::Repairable)
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

impl StorageFile for DiskFile {
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
