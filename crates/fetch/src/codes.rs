//! Which errors have which code.

use nodeyard_model::{Coded, ErrorCode};

use crate::Error;

impl Coded for Error {
    fn code(&self) -> Option<ErrorCode> {
        Some(match self {
            Self::Insecure { .. } | Self::Private { .. } => ErrorCode::UrlForbidden,
            Self::Resolve { .. }
            | Self::Connect { .. }
            | Self::TimedOut { .. }
            | Self::Broken { .. } => ErrorCode::ServerUnreachable,
            Self::Tls { .. } | Self::TlsSetup { .. } => ErrorCode::ServerTls,
            Self::BadUrl { .. }
            | Self::Redirects { .. }
            | Self::NoLocation { .. }
            | Self::TooLarge { .. } => ErrorCode::ServerAnswer,
            Self::UnreadableSecret { .. } | Self::NoVariable { .. } | Self::BadSecret { .. } => {
                ErrorCode::ServerSecret
            }
        })
    }
}
