//! What operators do to nodes, images and pools: hold, delete, pause, drain, request a build.
//!
//! Shared by the command line and the HTTP API. Everything here changes records only; launchers and builders see the
//! change and act on it.

pub mod drain;
pub mod images;
pub mod nodes;

use std::time::Duration;

use nodeyard_model::{Coded, ErrorCode};
use nodeyard_store::registry::Patience;

/// How long to wait for a lock, because daemons hold locks for short moments.
pub(crate) const LOCK_TIMEOUT: Patience = Patience::For(Duration::from_secs(5));

/// Why an operation was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no such record")]
    Gone,
    #[error("the record is locked by its current user")]
    Busy,
    #[error("the build or upload is still in progress")]
    InProgress,
    #[error("the image is not in the configuration, so no builder would build it")]
    NotConfigured,
    #[error("the image is paused in the configuration, so no builder would build it")]
    PausedByConfiguration,
    #[error("no builder has registered the image yet")]
    UnknownImage,
    #[error(transparent)]
    Store(#[from] nodeyard_store::Error),
}

impl Coded for Error {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Store(error) => error.code(),
            _ => None,
        }
    }
}
