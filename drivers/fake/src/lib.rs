//! `driver: fake`: a simulated OpenStack cloud, and a driver for it.
//!
//! The [`Cloud`] is a pure state machine. A [`World`] holds one for each provider; [`serve`] offers it to
//! every process on this host, so that it outlives its clients, and [`Transport`] reaches it there or
//! inside the process. The driver takes the keys of `driver: openstack` and does what a driver of a real
//! cloud has to do: other people's servers, lost answers and half-made things are all there to be met.

mod client;
mod cloud;
mod driver;
mod hostkeys;
mod http;
mod options;
mod simulate;
mod transport;
mod world;

pub use cloud::{Cloud, CloudError, Outcome, Reply};
pub use driver::FakeDriver;
pub use hostkeys::RemoteScan;
pub use http::serve;
pub use nodeyard_driver_common::LabelImage;
pub use nodeyard_driver_common::openstack::{
    CloudImageOptions, CloudOptions, DiskImageOptions, ImageChoice, LabelOptions, PoolOptions,
    TidyOptions,
};
pub use options::Options;
pub use simulate::{FailureRates, FlavorOptions, Quota, Simulate, Span};
pub use transport::{CallError, Http, InProcess, InvalidUrl, Transport, connect};
pub use world::World;

/// Where the cloud is, if it is not in this process.
pub const URL_VARIABLE: &str = "NODEPOOL_FAKE_CLOUD_URL";
