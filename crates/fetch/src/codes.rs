//! Which errors have which code.

use nodeyard_model::{Coded, ErrorCode};

use crate::Error;

impl Coded for Error {
    fn code(&self) -> Option<ErrorCode> {
        Some(match self {
            Self::Insecure { .. } | Self::PrivateAddress { .. } => ErrorCode::UrlForbidden,
            Self::Resolve { .. }
            | Self::Connect { .. }
            | Self::TimedOut { .. }
            | Self::ConnectionFailed { .. } => ErrorCode::ServerUnreachable,
            Self::Tls { .. } | Self::TlsSetup(_) => ErrorCode::ServerTls,
            Self::UrlError(_)
            | Self::TooManyRedirects { .. }
            | Self::MissingLocation { .. }
            | Self::TooLarge { .. } => ErrorCode::ServerAnswer,
            Self::UnreadableSecret { .. }
            | Self::MissingVariable { .. }
            | Self::InvalidSecret { .. } => ErrorCode::ServerSecret,
        })
    }
}
