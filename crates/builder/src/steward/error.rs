//! Why a steward cannot go on.

/// Everything else is handled where it happens: a steward outlasts its job servers, its workers, and its store's
/// absences.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("the store was closed while the steward was running")]
    StoreClosed,
    #[error("failed to prepare the store for the steward")]
    Store(#[from] nodeyard_store::Error),
}
