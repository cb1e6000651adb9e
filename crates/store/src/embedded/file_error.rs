//! [`StoreFileError`]: errors of the database file, with remedies for operators.
//!
//! redb verifies checksums only when the file is opened, and may panic on corrupt data that it reads later.
//! [`catch_panics`] converts such panics to errors.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use crate::error::Error;

use super::format::{FORMAT, TruncatedRecord};

/// An error of the database file, shared by all affected requests.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum StoreFileError {
    #[error(transparent)]
    Storage(Arc<redb::Error>),
    #[error(transparent)]
    Damaged(Arc<TruncatedRecord>),
    #[error(transparent)]
    Io(Arc<io::Error>),
    #[error("unsupported file format {found}; this program supports up to {FORMAT}")]
    Newer { found: i64 },
    #[error("checksum mismatch; a repair would lose acknowledged changes")]
    Repairable,
    #[error("internal error in the database")]
    Panicked,
    #[error("failed to read the file")]
    Reader,
    #[error("not enough disk space: {free} bytes free, {needed} needed")]
    Full { free: u64, needed: u64 },
}

impl From<TruncatedRecord> for StoreFileError {
    fn from(cause: TruncatedRecord) -> Self {
        Self::Damaged(Arc::new(cause))
    }
}

impl From<io::Error> for StoreFileError {
    fn from(cause: io::Error) -> Self {
        Self::Io(Arc::new(cause))
    }
}

macro_rules! from_redb {
    ($($kind:ident),*) => {$(
        impl From<redb::$kind> for StoreFileError {
            fn from(cause: redb::$kind) -> Self {
                Self::Storage(Arc::new(cause.into()))
            }
        }
    )*};
}

from_redb!(
    CommitError,
    DatabaseError,
    SetDurabilityError,
    StorageError,
    TableError,
    TransactionError
);

impl StoreFileError {
    /// Converts to a store error with the failed operation and a remedy.
    pub(super) fn to_error(&self, operation: StorageOperation, file: &Path) -> Error {
        if let StoreFileError::Storage(error) = self
            && matches!(**error, redb::Error::DatabaseAlreadyOpen)
        {
            return Error::InUse {
                file: file.to_owned(),
            };
        }
        Error::Backend {
            context: format!("failed to {operation} {}{}", file.display(), self.remedy()),
            source: Box::new(self.clone()),
        }
    }

    fn remedy(&self) -> &'static str {
        use redb::Error as E;
        match self {
            StoreFileError::Storage(error) => match &**error {
                E::Corrupted(_) | E::UpgradeRequired(_) | E::TableTypeMismatch { .. } => DAMAGED,
                E::Io(error) => io_remedy(error),
                _ => "",
            },
            StoreFileError::Io(error) => io_remedy(error),
            StoreFileError::Damaged(_) | StoreFileError::Repairable | StoreFileError::Panicked => {
                DAMAGED
            }
            StoreFileError::Newer { .. } => ": start the newer program that wrote it",
            StoreFileError::Full { .. } => DISK_FULL,
            StoreFileError::Reader => "",
        }
    }
}

const DAMAGED: &str = ": the file is damaged; move it away and import the last export";
const DISK_FULL: &str = ": the disk is full; free some space, writes then resume automatically";

fn io_remedy(error: &io::Error) -> &'static str {
    use io::ErrorKind as K;
    match error.kind() {
        K::StorageFull | K::QuotaExceeded => DISK_FULL,
        K::PermissionDenied => ": give this user the right to read and write it",
        K::ReadOnlyFilesystem => ": the file system is mounted read-only",
        K::NotADirectory => ": a part of the path is not a directory",
        K::InvalidData | K::UnexpectedEof => DAMAGED,
        _ => "",
    }
}

/// Runs `work` and converts panics to errors. The database is not used after a panic, so its state does not matter.
pub(super) fn catch_panics<T>(
    work: impl FnOnce() -> Result<T, StoreFileError>,
) -> Result<T, StoreFileError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(StoreFileError::Panicked))
}

#[derive(Debug, Clone, Copy)]
pub(super) enum StorageOperation {
    Open,
    Read,
    Write,
}

impl fmt::Display for StorageOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StorageOperation::Open => "open",
            StorageOperation::Read => "read",
            StorageOperation::Write => "write",
        })
    }
}
