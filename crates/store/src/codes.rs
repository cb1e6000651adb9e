//! Which errors of the store have which code.

use std::error::Error as StdError;

use nodeyard_model::{Coded, ErrorCode};

use crate::Error;
use crate::zookeeper::{DialError, ZooKeeperTlsError};

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
            Self::Backend { source, .. } => of_backend(&**source),
            Self::NoNode { .. }
            | Self::NoChildrenForEphemerals { .. }
            | Self::InvalidPath(_)
            | Self::Closed => return None,
        })
    }
}

fn of_backend(cause: &(dyn StdError + 'static)) -> ErrorCode {
    match cause.downcast_ref::<DialError>() {
        Some(DialError::Tls(_)) => ErrorCode::StoreTls,
        Some(_) => ErrorCode::StoreUnreachable,
        None => ErrorCode::StoreFailed,
    }
}

impl Coded for ZooKeeperTlsError {
    fn code(&self) -> Option<ErrorCode> {
        Some(ErrorCode::StoreTls)
    }
}
