//! `driver: fake`: a simulated OpenStack cloud, and a driver for it.
//!
//! A [`Cloud`] is a pure state machine, and a [`World`] holds one for each provider. [`serve`] serves it over HTTP, so that
//! it outlives its clients; a [`Transport`] calls it there or in the same process. [`FakeDriver`] takes the keys of
//! `driver: openstack` and handles what real clouds do: servers of others, lost responses, half-made servers.

mod client;
mod cloud;
mod driver;
mod hostkeys;
mod http;
mod kind;
mod options;
mod simulate;
mod transport;
mod world;

pub use cloud::{Cloud, CloudError, Outcome, Reply};
pub use driver::FakeDriver;
pub use hostkeys::RemoteScan;
pub use http::serve;
pub use kind::{Connector, FakeKind, SimulatedClouds};
pub use nodeyard_driver_common::LabelImage;
pub use nodeyard_driver_common::openstack::{
    CloudImageOptions, CloudOptions, DiskImageOptions, ImageChoice, LabelOptions, PoolOptions,
    TidyOptions,
};
pub use options::Options;
pub use simulate::{FailureRates, FlavorOptions, Quota, Simulate, Span};
pub use transport::{CallError, Http, InProcess, InvalidUrl, Transport, connect};
pub use world::World;

/// The environment variable with the URL of the cloud, if it is not in this process.
pub const URL_VARIABLE: &str = "NODEPOOL_FAKE_CLOUD_URL";
