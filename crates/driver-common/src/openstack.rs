//! The configuration keys of `driver: openstack`, which `driver: fake` accepts too, and the rules that hold in real and
//! simulated OpenStack clouds alike.

mod garbage;
mod options;
mod settings;
mod takes;

pub use garbage::{DownPorts, TidyOptions, Untagged};
pub use options::{
    CloudImageOptions, CloudOptions, DiskImageOptions, ImageChoice, LabelOptions, PoolOptions,
};
pub use settings::{image_upload_settings, provider_settings};
pub use takes::takes;
