//! Why a launcher cannot go on.

use nodeyard_model::{Coded, ErrorCode};

/// Everything else is handled where it happens: a launcher outlasts its clouds, its store's absences and the
/// mistakes in its configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("the store has been closed while the launcher was running")]
    StoreClosed,
    #[error("the launcher cannot prepare the store")]
    Store(#[from] nodeyard_store::Error),
}

/// Why a provider does not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("the name of the provider cannot be used")]
    Name(#[from] nodeyard_model::InvalidName),
    #[error("the `{driver}` driver is not part of this version yet")]
    NoSettings { driver: &'static str },
    #[error("its cloud does not answer as it should")]
    Driver(#[from] nodeyard_driver::Error),
    #[error("its driver has panicked, as the log says; this is a fault of the program")]
    Panicked,
}

impl Coded for StartError {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Driver(error) => error.code(),
            Self::Name(_) | Self::NoSettings { .. } | Self::Panicked => {
                Some(ErrorCode::DriverStart)
            }
        }
    }
}
