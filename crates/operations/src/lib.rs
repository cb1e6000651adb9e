//! What operators do to nodes and images, by way of the records.
//!
//! The command line and the HTTP API do it here, so that both do the same. Whoever runs the launchers and
//! builders sees the record change and acts; nothing here talks to a cloud.

pub mod images;
pub mod nodes;

use std::time::Duration;

use nodeyard_store::registry::Patience;

/// How long to wait for a lock that a daemon holds for a moment.
pub const PATIENCE: Patience = Patience::For(Duration::from_secs(5));

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("it is not there")]
    Gone,
    #[error("it is locked by whoever uses it or works on it")]
    Busy,
    #[error("it is still being made")]
    InProgress,
    #[error("it is not in the configuration, so nobody would build it")]
    NotConfigured,
    #[error("it is paused in the configuration, so nobody would build it")]
    PausedByConfiguration,
    #[error("nothing is known of it yet")]
    Unheard,
    #[error(transparent)]
    Store(#[from] nodeyard_store::Error),
}
