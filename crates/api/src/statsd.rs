//! Metrics for statsd, by Nodepool's names.
//!
//! What happens is sent at once by [`Metrics`](crate::Metrics). What exists is the same for all launchers, so one
//! of them reports it: the [`Reporter`] that wins an election, in which Python launchers are candidates, too.
//! Datagrams are sent without waiting and without asking what became of them.

mod batch;
mod reporter;

pub(crate) mod names;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

pub use reporter::Reporter;

pub(crate) use batch::Batch;

const DEFAULT_HOST: &str = "localhost";
const DEFAULT_PORT: u16 = 8125;

/// Where statsd listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub host: String,
    pub port: u16,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("STATSD_PORT is {text:?}, which is not a port; it must be a number from 1 to 65535")]
    Port {
        text: String,
        #[source]
        source: std::num::ParseIntError,
    },
    #[error("cannot find the statsd host {host:?}; check STATSD_HOST")]
    Resolve {
        host: String,
        #[source]
        source: std::io::Error,
    },
    #[error("the statsd host {host:?} has no address; check STATSD_HOST")]
    NoAddress { host: String },
    #[error("cannot open a socket for statsd")]
    Socket(#[source] std::io::Error),
}

impl Options {
    /// From `STATSD_HOST` and `STATSD_PORT`. Without either of them there is no statsd; an empty one is none.
    pub fn from_variables(host: Option<&str>, port: Option<&str>) -> Result<Option<Self>, Error> {
        let host = host.filter(|host| !host.is_empty());
        let port = port.filter(|port| !port.is_empty());
        if host.is_none() && port.is_none() {
            return Ok(None);
        }
        let number = |text: &str| {
            text.parse().map_err(|source| Error::Port {
                text: text.to_owned(),
                source,
            })
        };
        Ok(Some(Self {
            host: host.unwrap_or(DEFAULT_HOST).to_owned(),
            port: port.map_or(Ok(DEFAULT_PORT), number)?,
        }))
    }
}

/// A way to statsd. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Statsd {
    socket: Arc<UdpSocket>,
    server: SocketAddr,
}

impl Statsd {
    /// Looks up the host, once. Prefers IPv4, as Nodepool's client does.
    pub async fn open(options: &Options) -> Result<Self, Error> {
        let Options { host, port } = options;
        let found = tokio::net::lookup_host((&**host, *port)).await;
        let found = found.map_err(|source| Error::Resolve {
            host: host.clone(),
            source,
        })?;
        let server = found.min_by_key(SocketAddr::is_ipv6);
        let server = server.ok_or_else(|| Error::NoAddress { host: host.clone() })?;
        Self::to(server).map_err(Error::Socket)
    }

    fn to(server: SocketAddr) -> std::io::Result<Self> {
        let any: SocketAddr = match server {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        // Not connected: a connected socket would report that nobody listened, and drop the next datagram.
        let socket = UdpSocket::bind(any)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: Arc::new(socket),
            server,
        })
    }

    /// Sends what is written to the batch, in as few datagrams as it takes.
    pub(crate) fn send(&self, write: impl FnOnce(&mut Batch<'_>)) {
        let deliver = |datagram: &str| {
            if let Err(error) = self.socket.send_to(datagram.as_bytes(), self.server) {
                tracing::trace!(error = &error as &dyn std::error::Error, "statsd not told");
            }
        };
        let mut batch = Batch::new(&deliver);
        write(&mut batch);
        batch.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_variable_is_enough() {
        let options = |host, port| Options::from_variables(host, port).unwrap();
        let some = |host: &str, port| {
            Some(Options {
                host: host.to_owned(),
                port,
            })
        };
        assert_eq!(options(None, None), None);
        assert_eq!(options(Some(""), Some("")), None);
        assert_eq!(options(Some("metrics"), None), some("metrics", 8125));
        assert_eq!(options(None, Some("9125")), some("localhost", 9125));
        let error = Options::from_variables(None, Some("statsd")).unwrap_err();
        assert!(error.to_string().starts_with("STATSD_PORT is \"statsd\""));
    }
}
