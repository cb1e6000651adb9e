//! When images are built, uploaded and deleted.

mod import;
mod properties;
mod rules;
mod trials;
mod yard;
