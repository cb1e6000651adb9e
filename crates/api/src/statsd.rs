//! Metrics for statsd, under Nodepool's names.
//!
//! Events are sent at once by [`Metrics`](crate::Metrics). Gauges are the same for all launchers, so one of them sends
//! them: the [`StatsdReporter`] that wins an election, in which Python launchers take part. Datagrams are sent without
//! blocking, and errors are ignored.

mod batch;
mod reporter;

pub(crate) mod names;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

pub use reporter::StatsdReporter;

pub(crate) use batch::StatsdBatch;

const DEFAULT_HOST: &str = "localhost";
const DEFAULT_PORT: u16 = 8125;

/// The address of statsd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub host: String,
    pub port: u16,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("invalid STATSD_PORT {text:?}: it must be a number from 1 to 65535")]
    Port {
        text: String,
        #[source]
        source: std::num::ParseIntError,
    },
    #[error("failed to resolve the statsd host {host:?}; check STATSD_HOST")]
    Resolve {
        host: String,
        #[source]
        source: std::io::Error,
    },
    #[error("the statsd host {host:?} has no address; check STATSD_HOST")]
    NoAddress { host: String },
    #[error("failed to open a socket for statsd")]
    Socket(#[source] std::io::Error),
}

impl Options {
    /// Reads `STATSD_HOST` and `STATSD_PORT`. Returns None if both are unset or empty.
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

/// Sends metrics to statsd. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Statsd {
    socket: Arc<UdpSocket>,
    server: SocketAddr,
}

impl Statsd {
    /// Resolves the host, once. Prefers IPv4, as Nodepool's client does.
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
        // Not connected: a connected socket reports that nobody listens, and drops the next datagram.
        let socket = UdpSocket::bind(any)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: Arc::new(socket),
            server,
        })
    }

    /// Sends the metrics that `write` adds to the batch, in as few datagrams as possible.
    pub(crate) fn send(&self, write: impl FnOnce(&mut StatsdBatch<'_>)) {
        let deliver = |datagram: &str| {
            if let Err(error) = self.socket.send_to(datagram.as_bytes(), self.server) {
                tracing::trace!(
                    error = &error as &dyn std::error::Error,
                    "failed to send to statsd"
                );
            }
        };
        let mut batch = StatsdBatch::new(&deliver);
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
        assert!(
            error
                .to_string()
                .starts_with("invalid STATSD_PORT \"statsd\"")
        );
    }
}
