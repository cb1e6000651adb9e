//! Errors that end a steward.

/// An error that ends a steward. Failures of job servers and workers and lost store connections are handled where they occur.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("the store was closed while the steward was running")]
    StoreClosed,
    #[error("failed to prepare the store for the steward")]
    Store(#[from] nodeyard_store::Error),
}
