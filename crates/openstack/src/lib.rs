//! A thin client of OpenStack.
//!
//! [`Clouds`] finds out what clouds.yaml and the environment say of a cloud, as openstacksdk does. A [`Session`] is
//! somebody logged in to one: it has the token and renews it, knows where the services are, spaces the calls, tries
//! again what may be tried again, and makes an [`Error`] with a [kind](ErrorKind) of everything else. [`Compute`],
//! [`Network`], [`Volumes`] and [`Images`] are the calls of one service each, and nothing more: they keep no state and decide
//! nothing.
//!
//! A service is a file with a struct around a [`Session`]; `volumes.rs` is the shortest example. Below the calls is
//! [`Transport`], so that tests can strike at each of them.

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

pub use call::{Answer, Call};
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
pub use glance::{Change, Image, Images, NewImage, Place, STAGED_IMPORT};
pub use network::{FixedIp, FloatingIp, Net, Network, NewFloatingIp, Port, SecurityGroup};
pub use reqwest::{Method, StatusCode, Url, header};
pub use service::Service;
pub use session::{Options, Session};
pub use transport::{Body, Http, Request, Response, Transport, TransportError};
pub use volumes::{Volume, VolumeLimits, Volumes};
