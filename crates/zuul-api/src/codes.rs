//! Which errors have which code.

use nodeyard_model::{Coded, ErrorCode};

use crate::Error;

impl Coded for Error {
    fn code(&self) -> Option<ErrorCode> {
        Some(match self {
            Self::Fetch(error) => return error.code(),
            Self::TenantRequired { .. } => ErrorCode::ZuulTenant,
            Self::Status { .. } | Self::NotJson { .. } | Self::UnexpectedJson { .. } => {
                ErrorCode::ServerAnswer
            }
        })
    }
}
