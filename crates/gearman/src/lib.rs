//! gearman
pub mod client;
pub mod codec;
mod net;
mod tls;
pub use self::net::{Backoff, ConnectError, DEFAULT_PORT, Endpoint, Keepalive};
pub use self::tls::{ClientTls, HostCheck, ServerTls, TlsError, TlsFiles};
pub mod server;
pub mod worker;
