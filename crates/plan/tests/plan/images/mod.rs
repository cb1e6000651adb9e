//! When images are built, uploaded and deleted.

mod availability;
mod import;
mod properties;
mod rules;
mod trials;
mod yard;
