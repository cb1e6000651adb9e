//! `driver: container`: machines as containers on this host, through the Docker API of Podman or Docker.
//!
//! A node is one container; its labels carry the tags. Nothing is remembered here: what an earlier process
//! began is found by these labels.
//!
//! The client is our own (docs/decisions/docker-client.md says why): [`Transport`] carries one call, `engine` knows the calls.

mod archive;
mod driver;
mod engine;
mod failure;
mod host;
mod image_file;
mod login;
mod options;
mod socket;
mod transport;

pub use driver::ContainerDriver;
pub use engine::{Runtime, greet};
pub use options::{
    CloudImageOptions, DiskImageOptions, ImageChoice, LabelImage, LabelOptions, Options,
    PoolOptions, Reach,
};
pub use socket::Socket;
pub use transport::{Answer, Call, CallBody, CallError, Transport};
