//! What several drivers share besides their contract: how they read the configuration, and what follows from it.
//!
//! Nothing here talks to a cloud. What a driver alone needs is in its own crate.

mod images;
pub mod openstack;

pub use images::{LabelImage, image_filters, image_name};
