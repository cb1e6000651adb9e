//! Why a file was not fetched.

use std::io;
use std::path::PathBuf;

use nodeyard_fetch::{StatusCode, Url};

use super::Packing;
use crate::budget::Bytes;
use crate::digest::Mismatch;
use crate::files::FileError;

#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    #[error("{url} is not there (status {status}): has Zuul removed the artifact already?")]
    Gone { url: Url, status: StatusCode },
    #[error("{url} is not for us (status {status}): check auth and download-auth")]
    Refused { url: Url, status: StatusCode },
    #[error("{url} cannot be had (status {status}): the log of that server says why")]
    Status { url: Url, status: StatusCode },
    #[error("{url} was cut off: check the limits of that server, and of a proxy before it")]
    Short { url: Url },
    #[error("a file cannot be fetched")]
    Fetch(#[from] nodeyard_fetch::Error),
    #[error(
        "given up after {failures} failures without progress (what has come is kept for the next try; download-retries allows more)"
    )]
    GaveUp {
        failures: u32,
        #[source]
        source: Box<DownloadError>,
    },
    #[error(
        "{url} became another file again and again while it was fetched: let each build have an address of its own"
    )]
    Changing { url: Url },
    #[error("the file has {} or more, and max-size allows {}", Bytes(*size), Bytes(*limit))]
    TooLarge { size: u64, limit: u64 },
    #[error("the file unpacks to more than {}, which max-size allows", Bytes(*limit))]
    Bomb { limit: u64 },
    #[error(
        "the file is not complete {packing} data (check `compression`, and what the job has stored)"
    )]
    NotPacked {
        packing: Packing,
        #[source]
        source: io::Error,
    },
    #[error(
        "the file is not what was promised (let the job publish the digest of the file that it has stored)"
    )]
    Digest {
        #[source]
        source: Mismatch,
    },
    #[error(
        "no digest was promised, and checksum is required: let the job publish sha256 with the artifact"
    )]
    NoDigest,
    #[error(
        "what was promised as {kind} digest is none: it has to be hexadecimal digits, as sha256sum and md5sum print them"
    )]
    BadDigest { kind: &'static str },
    #[error("{} is being fetched already: it is tried again later", path.display())]
    Busy { path: PathBuf },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Repository(#[from] crate::Error),
    #[error("the download was stopped, since this program is ending")]
    Ending,
}

impl DownloadError {
    /// Whether the same file would fail again: the cause is what it is, not how it came.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Gone { .. }
            | Self::TooLarge { .. }
            | Self::Bomb { .. }
            | Self::NotPacked { .. }
            | Self::Digest { .. }
            | Self::NoDigest
            | Self::BadDigest { .. } => true,
            Self::Fetch(error) => !error.is_transient() && !error.is_of_setup(),
            Self::GaveUp { .. }
            | Self::Refused { .. }
            | Self::Status { .. }
            | Self::Short { .. }
            | Self::Changing { .. }
            | Self::Busy { .. }
            | Self::File(_)
            | Self::Repository(_)
            | Self::Ending => false,
        }
    }

    /// Whether the disk is the cause.
    pub(super) fn is_want_of_room(&self) -> bool {
        match self {
            Self::File(error) => matches!(
                error.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            ),
            Self::Repository(error) => matches!(error, crate::Error::NoRoom(_)),
            _ => false,
        }
    }
}
