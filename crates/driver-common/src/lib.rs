//! What each driver brings besides its traits ([`DriverKind`]), and code that several drivers share: how they read the
//! configuration, and the rules of OpenStack clouds.
//!
//! Nothing here connects to a cloud.

mod images;
mod keyed_locks;
mod kind;
pub mod openstack;
mod settings;

pub use images::{LabelImage, image_filters, image_name};
pub use keyed_locks::KeyedLocks;
pub use kind::{
    BackingSource, DriverContext, DriverKind, DriverKinds, MissingDriver, ProviderKind,
};
pub use settings::{
    AccessSettings, ImageSettings, ImageUploadSettings, LabelSettings, PoolSettings,
    ProviderSettings, quantity,
};
