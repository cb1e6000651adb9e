//! The error codes of this crate.

use nodeyard_model::{Coded, ErrorCode};

use crate::source::SourceError;
use crate::worker;
use crate::zuul::SetupError;

impl Coded for SourceError {
    fn code(&self) -> Option<ErrorCode> {
        Some(match self {
            Self::NotACommand | Self::Start { .. } => ErrorCode::BuildStart,
            Self::Exit { .. } | Self::Signal { .. } | Self::StillRuns { .. } | Self::Other(_) => {
                ErrorCode::BuildFailed
            }
            Self::Stopped => return None,
        })
    }
}

impl Coded for worker::Error {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::NoImagesDir => Some(ErrorCode::NoImagesDir),
            Self::Repository(error) => error.code(),
            Self::Task(_) => None,
        }
    }
}

impl Coded for SetupError {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Url(_) => Some(ErrorCode::ServerAnswer),
            Self::HttpClient(error) => error.code(),
        }
    }
}
