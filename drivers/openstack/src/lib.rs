//! `driver: openstack`: servers in a cloud.
//!
//! What the cloud has is looked up in lists that all steps share, so that the number of calls does not grow with the
//! number of machines under way. What we make carries our tags: servers and volumes in their metadata, floating IPs
//! in their description. Ports are made by Nova and cannot carry any; they are tidied up as Nodepool does.

mod addresses;
mod catalog;
mod driver;
mod failure;
mod images;
mod mark;
mod networks;
mod options;
mod shared;

pub use driver::OpenStackDriver;
pub use nodeyard_driver_common::LabelImage;
pub use nodeyard_driver_common::openstack::{
    CloudImageOptions, CloudOptions, DiskImageOptions, ImageChoice, LabelOptions, PoolOptions,
    TidyOptions,
};
pub use nodeyard_openstack::ProcessEnvironment;
pub use options::Options;
