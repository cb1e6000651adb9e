//! The objects that are sent, as JSON.

pub(crate) mod metadata;
pub(crate) mod objects;
pub(crate) mod pod;
pub(crate) mod rights;
pub(crate) mod ssh;

/// The account whose token Zuul gets, as Nodepool calls it.
pub(crate) const ACCOUNT: &str = "zuul-worker";
