//! A thin client of OpenStack.
//!
//! [`Clouds`] reads the settings of a cloud from clouds.yaml and the environment, as openstacksdk does. A [`Session`] is
//! a login to one cloud: it renews the token, finds the endpoints of the services, limits the rate of calls, retries them,
//! and returns an [`Error`] with a [kind](ErrorKind) for what failed. [`Compute`], [`Network`], [`Volumes`] and [`Images`]
//! have the calls of one service each, without state.
//!
//! A service is a file with a struct around a [`Session`]; `volumes.rs` is the shortest example. Calls are sent by a
//! [`Transport`], which tests replace.

mod auth;
mod call;
mod catalog;
mod clouds;
mod compute;
mod data;
mod error;
mod glance;
mod network;
mod service;
mod session;
mod transport;
mod volumes;

pub use call::{Call, CallResponse};
pub use clouds::{
    CloudSettings, Clouds, Credentials, Domain, NetworkSettings, ProcessEnvironment, Scope,
    ServiceSettings, SettingsError, Tls, User,
};
pub use compute::{
    Address, BootVolume, Compute, ComputeLimits, Fault, Flavor, FlavorRef, NewServer, Server,
    ServerVolume, Zone,
};
pub use data::Digests;
pub use error::{Error, ErrorKind};
pub use glance::{DataTarget, Image, ImageChange, Images, NewImage, STAGED_IMPORT};
pub use network::{FixedIp, FloatingIp, Net, Network, NewFloatingIp, Port, SecurityGroup};
pub use reqwest::{Method, StatusCode, Url, header};
pub use service::Service;
pub use session::{Options, Session};
pub use transport::{Body, Http, Request, Response, Transport, TransportError};
pub use volumes::{Volume, VolumeLimits, Volumes};
