//! Connections: where a server is, how it is dialled, and how a dead peer is noticed.
//!
//! A gearman connection may rightly be silent for hours, and not every server answers an echo, so a vanished
//! peer is found by TCP keepalive, and by a limit on how long sent bytes may stay unacknowledged.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::tls::ClientTls;

/// The port that gearman servers listen on unless told otherwise.
pub const DEFAULT_PORT: u16 = 4730;

/// One job server, as a worker or a client reaches it.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub host: String,
    pub port: u16,
    pub tls: Option<ClientTls>,
}

impl Endpoint {
    /// A server on plain TCP.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
            tls: None,
        }
    }

    /// The same server over TLS.
    #[must_use]
    pub fn with_tls(mut self, tls: ClientTls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Dials the server. TLS, where used, is complete when this returns.
    pub(crate) async fn connect(
        &self,
        limit: Duration,
        keepalive: Keepalive,
    ) -> Result<Stream, ConnectError> {
        let attempt = async {
            let tcp = TcpStream::connect((self.host.as_str(), self.port)).await?;
            keepalive.apply(&tcp)?;
            let Some(ClientTls(config)) = &self.tls else {
                return Ok(Stream::Plain(tcp));
            };
            let name = ServerName::try_from(self.host.clone()).map_err(io::Error::other)?;
            let tls = TlsConnector::from(config.clone())
                .connect(name, tcp)
                .await?;
            Ok(Stream::Tls(Box::new(tls.into())))
        };
        match tokio::time::timeout(limit, attempt).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(source)) => Err(ConnectError::Refused {
                server: self.to_string(),
                source,
            }),
            Err(_) => Err(ConnectError::Timeout {
                server: self.to_string(),
                limit,
            }),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Why a server could not be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot connect to gearman server {server}")]
    Refused { server: String, source: io::Error },
    #[error("gearman server {server} did not accept a connection within {limit:?}")]
    Timeout { server: String, limit: Duration },
}

/// When a silent peer is taken for dead.
#[derive(Clone, Copy, Debug)]
pub struct Keepalive {
    /// Silence before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Probes without an answer.
    pub count: u32,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(60),
            interval: Duration::from_secs(10),
            count: 6,
        }
    }
}

impl Keepalive {
    pub(crate) fn apply(self, socket: &TcpStream) -> io::Result<()> {
        use rustix::net::sockopt;
        socket.set_nodelay(true)?;
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, self.idle)?;
        sockopt::set_tcp_keepintvl(socket, self.interval)?;
        sockopt::set_tcp_keepcnt(socket, self.count)?;
        let patience = self.idle + self.interval * self.count;
        sockopt::set_tcp_user_timeout(
            socket,
            u32::try_from(patience.as_millis()).unwrap_or(u32::MAX),
        )?;
        Ok(())
    }
}

/// A connection with or without TLS.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<tokio_rustls::TlsStream<TcpStream>>),
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, data),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, data),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// Waiting times between attempts: doubling up to a ceiling, each drawn from its upper half so that workers
/// that lost the same server do not return in step.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    pub first: Duration,
    pub ceiling: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(200),
            ceiling: Duration::from_secs(15),
        }
    }
}

impl Backoff {
    pub(crate) fn delay(self, failures: u32) -> Duration {
        let doubled = self
            .first
            .saturating_mul(1u32.checked_shl(failures).unwrap_or(u32::MAX));
        doubled
            .min(self.ceiling)
            .mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_to_its_ceiling_and_stays_there() {
        let backoff = Backoff {
            first: Duration::from_millis(100),
            ceiling: Duration::from_secs(2),
        };
        for (failures, full) in [
            (0, 100),
            (1, 200),
            (3, 800),
            (5, 2000),
            (31, 2000),
            (400, 2000),
        ] {
            let delay = backoff.delay(failures).as_millis();
            assert!(
                (full / 2..=full).contains(&delay),
                "{failures} failures: {delay} ms"
            );
        }
    }

    #[tokio::test]
    async fn connections_probe_a_silent_peer() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Endpoint::new("127.0.0.1", listener.local_addr().unwrap().port());
        let keepalive = Keepalive {
            idle: Duration::from_secs(7),
            interval: Duration::from_secs(3),
            count: 4,
        };
        let Stream::Plain(socket) = endpoint
            .connect(Duration::from_secs(10), keepalive)
            .await
            .unwrap()
        else {
            panic!("plain connection expected");
        };
        use rustix::net::sockopt;
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        assert_eq!(
            sockopt::tcp_keepidle(&socket).unwrap(),
            Duration::from_secs(7)
        );
        assert_eq!(
            sockopt::tcp_keepintvl(&socket).unwrap(),
            Duration::from_secs(3)
        );
        assert_eq!(sockopt::tcp_keepcnt(&socket).unwrap(), 4);
        assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 19_000);
    }
}
