//! `driver: openstack`: servers and images in an OpenStack cloud.
//!
//! Operations look things up in lists that they share, so that the number of calls does not grow with the number of
//! servers being created. What we create carries our tags: servers and volumes in their metadata, floating IPs in their
//! description. Ports are created by Nova and cannot carry tags; unused ones are deleted as Nodepool does.

mod addresses;
mod cache;
mod catalog;
mod description;
mod driver;
mod failure;
mod images;
mod kind;
mod networks;
mod options;

pub use driver::OpenStackDriver;
pub use kind::OpenStackKind;
pub use nodeyard_driver_common::LabelImage;
pub use nodeyard_driver_common::openstack::{
    CloudImageOptions, CloudOptions, DiskImageOptions, ImageChoice, LabelOptions, PoolOptions,
    TidyOptions,
};
pub use nodeyard_openstack::ProcessEnvironment;
pub use options::Options;
