#![doc = include_str!("../README.md")]

pub mod client;
pub mod codec;
mod net;
pub mod server;
mod tls;
pub mod worker;

pub use self::net::{Backoff, ConnectError, DEFAULT_PORT, Endpoint, Keepalive};
pub use self::tls::{ClientTls, HostCheck, ServerTls, TlsError, TlsFiles};
