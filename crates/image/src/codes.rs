//! Which errors have which code.

use nodeyard_model::{Coded, ErrorCode};

use crate::{
    BadHeader, CommitError, ConvertError, DownloadError, Error, FileError, NoRoom, OpenError,
    SignatureError,
};

impl Coded for FileError {
    fn code(&self) -> Option<ErrorCode> {
        Some(ErrorCode::ImageFile)
    }
}

impl Coded for NoRoom {
    fn code(&self) -> Option<ErrorCode> {
        Some(ErrorCode::NoRoom)
    }
}

impl Coded for OpenError {
    fn code(&self) -> Option<ErrorCode> {
        Some(match self {
            Self::InUse { .. } => ErrorCode::ImagesInUse,
            Self::BuilderId { .. } => ErrorCode::BuilderId,
            Self::File(error) => return error.code(),
        })
    }
}

impl Coded for Error {
    fn code(&self) -> Option<ErrorCode> {
        Some(match self {
            Self::Unknown { .. } | Self::NoFormat { .. } => ErrorCode::ImageUnknown,
            Self::Exists { .. } | Self::Taken { .. } | Self::BadBase(_) => ErrorCode::ImageConflict,
            Self::Building { .. } => ErrorCode::ImageBusy,
            Self::Mismatch { .. } => ErrorCode::ImageDamaged,
            Self::NoRoom(error) => return error.code(),
            Self::File(error) => return error.code(),
        })
    }
}

impl Coded for CommitError {
    fn code(&self) -> Option<ErrorCode> {
        Some(match self {
            Self::Nothing | Self::Missing { .. } | Self::Empty { .. } => ErrorCode::BuildFailed,
            Self::Mismatch { .. } => ErrorCode::DigestMismatch,
            Self::File(error) => return error.code(),
        })
    }
}

impl Coded for BadHeader {
    fn code(&self) -> Option<ErrorCode> {
        Some(match self {
            Self::Magic { .. } | Self::Unsafe { .. } => ErrorCode::BadImageHeader,
            Self::File(error) => return error.code(),
        })
    }
}

impl Coded for ConvertError {
    fn code(&self) -> Option<ErrorCode> {
        Some(match self {
            Self::NotADisk { .. } | Self::NoSource { .. } => ErrorCode::NotConvertible,
            Self::Start { .. } => ErrorCode::ConvertStart,
            Self::TimedOut { .. }
            | Self::Failed { .. }
            | Self::Lost { .. }
            | Self::Result { .. } => ErrorCode::ConvertFailed,
            Self::Header(error) => return error.code(),
            Self::Repository(error) => return error.code(),
            Self::Ending { .. } => return None,
        })
    }
}

impl Coded for DownloadError {
    fn code(&self) -> Option<ErrorCode> {
        Some(match self {
            Self::Gone { .. } => ErrorCode::ArtifactGone,
            Self::Refused { .. } => ErrorCode::ArtifactForbidden,
            Self::Status { .. } | Self::Short { .. } | Self::GaveUp { .. } => {
                ErrorCode::DownloadFailed
            }
            Self::Changing { .. } => ErrorCode::ArtifactChanged,
            Self::TooLarge { .. } | Self::Bomb { .. } => ErrorCode::ArtifactTooLarge,
            Self::NotPacked { .. } => ErrorCode::ArtifactPacking,
            Self::Digest { .. } => ErrorCode::DigestMismatch,
            Self::NoDigest { .. } | Self::BadDigest { .. } => ErrorCode::NoDigest,
            Self::Busy { .. } => ErrorCode::ImageBusy,
            Self::Fetch(error) => return error.code(),
            Self::File(error) => return error.code(),
            Self::Repository(error) => return error.code(),
            Self::Ending { .. } => return None,
        })
    }
}

impl Coded for SignatureError {
    fn code(&self) -> Option<ErrorCode> {
        Some(match self {
            Self::Key => ErrorCode::SignatureKey,
            Self::Envelope(_) | Self::Bare | Self::Statement => ErrorCode::SignatureForm,
            Self::Foreign => ErrorCode::SignatureForeign,
            Self::OtherFile | Self::OtherOrigin { .. } => ErrorCode::SignatureOther,
        })
    }
}
