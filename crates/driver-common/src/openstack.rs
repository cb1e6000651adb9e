//! The keys of `driver: openstack`, which `driver: fake` takes too: what they say, and the rules that hold in a real and
//! in a simulated cloud alike.

mod options;
mod takes;
mod tidy;

pub use options::{
    CloudImageOptions, CloudOptions, DiskImageOptions, ImageChoice, LabelOptions, PoolOptions,
};
pub use takes::takes;
pub use tidy::{DownPorts, TidyOptions, Untagged};
