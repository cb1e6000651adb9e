//! `driver: container`: machines as containers on this host, through the Docker API of Podman or Docker.
//!
//! A node is one container, whose labels carry the tags. The driver stores nothing: it finds the containers of earlier
//! processes by these labels. [`RuntimeTransport`] carries one call of the client, which is our own
//! (see docs/decisions/docker-client.md).

mod archive;
mod client;
mod driver;
mod failure;
mod image_body;
mod kind;
mod login_files;
mod options;
mod runtime_info;
mod socket;
mod transport;

pub use client::{Runtime, greet};
pub use driver::ContainerDriver;
pub use kind::ContainerKind;
pub use options::{
    ContainerAccess, ContainerCloudImageOptions, ContainerDiskImageOptions, ContainerImage,
    ContainerImageChoice, ContainerLabelOptions, ContainerPoolOptions, Options,
};
pub use socket::Socket;
pub use transport::{
    RuntimeCall, RuntimeCallBody, RuntimeCallError, RuntimeResponse, RuntimeTransport,
};
