//! [`DownloadError`].

use std::io;
use std::path::PathBuf;

use nodeyard_fetch::{StatusCode, Url};

use super::Packing;
use crate::budget::ByteSize;
use crate::digest::DigestMismatch;
use crate::files::FileError;

#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    #[error("{url} does not exist (status {status}): has Zuul removed the artifact already?")]
    Gone { url: Url, status: StatusCode },
    #[error("access to {url} denied (status {status}): check auth and download-auth")]
    Refused { url: Url, status: StatusCode },
    #[error("failed to fetch {url} (status {status}): check the log of that server")]
    Status { url: Url, status: StatusCode },
    #[error("response of {url} was truncated: check the limits of that server and its proxy")]
    Truncated { url: Url },
    #[error("failed to fetch file")]
    Fetch(#[from] nodeyard_fetch::Error),
    #[error(
        "gave up after {failures} failures without progress (received data is kept for the next attempt; download-retries sets the limit)"
    )]
    GaveUp {
        failures: u32,
        #[source]
        source: Box<DownloadError>,
    },
    #[error("{url} changed repeatedly during the download: use a separate URL for each build")]
    Changing { url: Url },
    #[error("the file exceeds max-size: it has at least {}, the limit is {}", ByteSize(*size), ByteSize(*limit))]
    TooLarge { size: u64, limit: u64 },
    #[error("the decompressed file exceeds max-size of {}", ByteSize(*limit))]
    UnpacksTooLarge { limit: u64 },
    #[error("the file is not complete {packing} data (check `compression` and the artifact)")]
    InvalidCompressedData {
        packing: Packing,
        #[source]
        source: io::Error,
    },
    #[error(
        "the file does not match the promised digest (let the job publish the digest of the stored file)"
    )]
    Digest {
        #[source]
        source: DigestMismatch,
    },
    #[error(
        "no digest was promised, and checksum is required: let the job publish sha256 with the artifact"
    )]
    MissingDigest,
    #[error(
        "invalid promised {kind} digest: it must be hexadecimal, as printed by sha256sum and md5sum"
    )]
    InvalidDigest { kind: &'static str },
    #[error("{} is already being downloaded; retrying later", path.display())]
    InProgress { path: PathBuf },
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Repository(#[from] crate::Error),
    #[error("the download was stopped because this program is shutting down")]
    ShuttingDown,
}

impl DownloadError {
    /// Returns whether the same file would fail again.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Gone { .. }
            | Self::TooLarge { .. }
            | Self::UnpacksTooLarge { .. }
            | Self::InvalidCompressedData { .. }
            | Self::Digest { .. }
            | Self::MissingDigest
            | Self::InvalidDigest { .. } => true,
            Self::Fetch(error) => !error.is_transient() && !error.is_local_configuration(),
            Self::GaveUp { .. }
            | Self::Refused { .. }
            | Self::Status { .. }
            | Self::Truncated { .. }
            | Self::Changing { .. }
            | Self::InProgress { .. }
            | Self::File(_)
            | Self::Repository(_)
            | Self::ShuttingDown => false,
        }
    }

    /// Returns whether a lack of disk space is the cause.
    pub(super) fn is_out_of_space(&self) -> bool {
        match self {
            Self::File(error) => matches!(
                error.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            ),
            Self::Repository(error) => matches!(error, crate::Error::InsufficientSpace(_)),
            _ => false,
        }
    }
}
