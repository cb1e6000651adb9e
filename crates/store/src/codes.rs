//! Which errors of the store have which code.

use nodeyard_model::{Coded, ErrorCode};

use crate::Error;
use crate::zookeeper::DialError;

impl Coded for Error {
    fn code(&self) -> Option<ErrorCode> {
        Some(match self {
            Self::ConnectionLoss => ErrorCode::StoreUnreachable,
            Self::SessionExpired => ErrorCode::SessionExpired,
            Self::NoAuth { .. } => ErrorCode::StoreForbidden,
            Self::InUse { .. } => ErrorCode::StoreInUse,
            Self::Malformed { .. } => ErrorCode::RecordMalformed,
            Self::TooLarge { .. } => ErrorCode::RecordTooLarge,
            Self::BadSystemId { .. } => ErrorCode::SystemId,
            Self::LockTimeout(_) => ErrorCode::LockTimeout,
            Self::BadVersion { .. } | Self::NodeExists { .. } | Self::NotEmpty { .. } => {
                ErrorCode::RecordChanged
            }
            Self::Multi { source, .. } => return source.code(),
            Self::Backend { source, .. } => match source.downcast_ref::<DialError>() {
                Some(error) => return error.code(),
                None => ErrorCode::StoreFailed,
            },
            Self::NoNode { .. }
            | Self::NoChildrenForEphemerals { .. }
            | Self::InvalidPath(_)
            | Self::Closed => return None,
        })
    }
}

impl Coded for DialError {
    fn code(&self) -> Option<ErrorCode> {
        Some(match self {
            Self::Tls(_) => ErrorCode::StoreTls,
            _ => ErrorCode::StoreUnreachable,
        })
    }
}
