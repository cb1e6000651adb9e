//! What the storage below can do wrong, in words an operator can act on.
//!
//! The storage checks its checksums when the file is opened, but trusts what it reads later and panics
//! where that makes no sense. [`contained`] turns such a panic into a fault like any other.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use crate::error::Error;

use super::format::{FORMAT, ShortRecord};

/// A failure of the file, shared by all requests that it hits.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum Fault {
    #[error(transparent)]
    Storage(Arc<redb::Error>),
    #[error(transparent)]
    Damaged(Arc<ShortRecord>),
    #[error(transparent)]
    Io(Arc<io::Error>),
    #[error("the file has format {found}, this program knows up to {FORMAT}")]
    Newer { found: i64 },
    #[error(
        "its checksums do not match, and repairing it would lose changes that were acknowledged"
    )]
    Repairable,
    #[error("the storage met something that cannot be")]
    Panicked,
    #[error("a reader could not read the file")]
    Reader,
    #[error("only {free} bytes are free on the disk, {needed} are needed")]
    Full { free: u64, needed: u64 },
}

impl From<ShortRecord> for Fault {
    fn from(cause: ShortRecord) -> Self {
        Self::Damaged(Arc::new(cause))
    }
}

impl From<io::Error> for Fault {
    fn from(cause: io::Error) -> Self {
        Self::Io(Arc::new(cause))
    }
}

macro_rules! from_redb {
    ($($kind:ident),*) => {$(
        impl From<redb::$kind> for Fault {
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

impl Fault {
    /// The error for whoever asked. `doing` is what was tried: "open", "read", "write".
    pub(super) fn while_doing(&self, doing: Doing, file: &Path) -> Error {
        if let Fault::Storage(error) = self
            && matches!(**error, redb::Error::DatabaseAlreadyOpen)
        {
            return Error::InUse {
                file: file.to_owned(),
            };
        }
        Error::Backend {
            context: format!("cannot {doing} {}{}", file.display(), self.remedy()),
            source: Box::new(self.clone()),
        }
    }

    fn remedy(&self) -> &'static str {
        use redb::Error as E;
        match self {
            Fault::Storage(error) => match &**error {
                E::Corrupted(_) | E::UpgradeRequired(_) | E::TableTypeMismatch { .. } => DAMAGED,
                E::Io(error) => io_remedy(error),
                _ => "",
            },
            Fault::Io(error) => io_remedy(error),
            Fault::Damaged(_) | Fault::Repairable | Fault::Panicked => DAMAGED,
            Fault::Newer { .. } => ": start the newer program that wrote it",
            Fault::Full { .. } => FULL,
            Fault::Reader => "",
        }
    }
}

const DAMAGED: &str = ": the file is damaged; move it away and import the last export";
const FULL: &str = ": the disk is full; free some space, writes go on by themselves then";

fn io_remedy(error: &io::Error) -> &'static str {
    use io::ErrorKind as K;
    match error.kind() {
        K::StorageFull | K::QuotaExceeded => FULL,
        K::PermissionDenied => ": give this user the right to read and write it",
        K::ReadOnlyFilesystem => ": the file system is mounted read-only",
        K::NotADirectory => ": a part of the path is not a directory",
        K::InvalidData | K::UnexpectedEof => DAMAGED,
        _ => "",
    }
}

/// Runs work on the storage, whatever state the file is in. After a panic the storage is not used any more,
/// so it does not matter what state it is left in.
pub(super) fn contained<T>(work: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Fault::Panicked))
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Doing {
    Open,
    Read,
    Write,
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Doing::Open => "open",
            Doing::Read => "read",
            Doing::Write => "write",
        })
    }
}
