//! Which errors have which code.

use nodeyard_model::{Coded, ErrorCode};

use crate::{
    CommitError, ConvertError, DownloadError, Error, FileError, InsufficientSpace, InvalidHeader,
    OpenError, SignatureError,
};

impl Coded for FileError {
    fn code(&self) -> Option<ErrorCode> {
        Some(ErrorCode::ImageFile)
    }
}

impl Coded for InsufficientSpace {
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
            Self::Exists { .. } | Self::FilesExist { .. } | Self::InvalidBaseName(_) => {
                ErrorCode::ImageConflict
            }
            Self::Building { .. } => ErrorCode::ImageBusy,
            Self::DigestMismatch { .. } => ErrorCode::ImageDamaged,
            Self::InsufficientSpace(error) => return error.code(),
            Self::File(error) => return error.code(),
        })
    }
}

impl Coded for CommitError {
    fn code(&self) -> Option<ErrorCode> {
        Some(match self {
            Self::Nothing | Self::Missing { .. } | Self::Empty { .. } => ErrorCode::BuildFailed,
            Self::DigestMismatch { .. } => ErrorCode::DigestMismatch,
            Self::File(error) => return error.code(),
        })
    }
}

impl Coded for InvalidHeader {
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
            Self::NotConvertible { .. } | Self::NoSource { .. } => ErrorCode::NotConvertible,
            Self::Start { .. } => ErrorCode::ConvertStart,
            Self::TimedOut { .. }
            | Self::Failed { .. }
            | Self::WaitFailed { .. }
            | Self::Result { .. } => ErrorCode::ConvertFailed,
            Self::Header(error) => return error.code(),
            Self::Repository(error) => return error.code(),
            Self::ShuttingDown => return None,
        })
    }
}

impl Coded for DownloadError {
    fn code(&self) -> Option<ErrorCode> {
        Some(match self {
            Self::Gone { .. } => ErrorCode::ArtifactGone,
            Self::Refused { .. } => ErrorCode::ArtifactForbidden,
            Self::Status { .. } | Self::Truncated { .. } | Self::GaveUp { .. } => {
                ErrorCode::DownloadFailed
            }
            Self::Changing { .. } => ErrorCode::ArtifactChanged,
            Self::TooLarge { .. } | Self::UnpacksTooLarge { .. } => ErrorCode::ArtifactTooLarge,
            Self::InvalidCompressedData { .. } => ErrorCode::ArtifactPacking,
            Self::Digest { .. } => ErrorCode::DigestMismatch,
            Self::MissingDigest | Self::InvalidDigest { .. } => ErrorCode::NoDigest,
            Self::InProgress { .. } => ErrorCode::ImageBusy,
            Self::Fetch(error) => return error.code(),
            Self::File(error) => return error.code(),
            Self::Repository(error) => return error.code(),
            Self::ShuttingDown => return None,
        })
    }
}

impl Coded for SignatureError {
    fn code(&self) -> Option<ErrorCode> {
        Some(match self {
            Self::InvalidKey => ErrorCode::SignatureKey,
            Self::Envelope(_) | Self::UnsignedClaims | Self::Statement => ErrorCode::SignatureForm,
            Self::WrongKey => ErrorCode::SignatureForeign,
            Self::WrongDigest | Self::WrongOrigin { .. } => ErrorCode::SignatureOther,
        })
    }
}
