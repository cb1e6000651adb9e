//! Errors that end a launcher, and errors that keep a provider from starting.

use nodeyard_driver_common::MissingDriver;
use nodeyard_model::{Coded, ErrorCode};

/// What ends a launcher. Errors of clouds, of the configuration and of the store's connection do not.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("the store was closed while the launcher was running")]
    StoreClosed,
    #[error("failed to prepare the store")]
    Store(#[from] nodeyard_store::Error),
}

/// Why a provider failed to start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("invalid provider name")]
    Name(#[from] nodeyard_model::InvalidName),
    #[error(transparent)]
    MissingDriver(#[from] MissingDriver),
    #[error("failed to read its section of the configuration")]
    Settings(#[source] nodeyard_driver::Error),
    #[error("failed to query its cloud")]
    Driver(#[from] nodeyard_driver::Error),
    #[error("its driver panicked (see the log); this is a bug in this program")]
    Panicked,
}

impl Coded for StartError {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Driver(error) => error.code(),
            Self::Name(_) | Self::MissingDriver(_) | Self::Settings(_) | Self::Panicked => {
                Some(ErrorCode::DriverStart)
            }
        }
    }
}
