//! Code that several drivers share: how they read the configuration, and the rules of OpenStack clouds.
//!
//! Nothing here connects to a cloud.

mod images;
mod keyed_locks;
pub mod openstack;

pub use images::{LabelImage, image_filters, image_name};
pub use keyed_locks::KeyedLocks;
