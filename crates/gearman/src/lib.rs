#![doc = include_str!("../README.md")]

pub mod client;
pub mod codec;
mod net;
pub mod server;
mod tls;
pub mod worker;

pub use self::net::{ConnectError, DEFAULT_PORT, GearmanEndpoint, Keepalive, ReconnectBackoff};
pub use self::tls::{ClientTls, GearmanTlsError, HostCheck, ServerTls, TlsFiles};
