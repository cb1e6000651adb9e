//! Why a steward cannot go on.

/// Everything else is handled where it happens: a steward outlasts its job servers, its workers, and its store's
/// absences.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("the store has been closed while the steward was running")]
    StoreClosed,
    #[error("the steward cannot prepare the store")]
    Store(#[from] nodeyard_store::Error),
}
