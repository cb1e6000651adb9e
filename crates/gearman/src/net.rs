//! Connecting to job servers, with TCP keepalive and reconnect backoff.
//!
//! A gearman connection may be idle for hours and not every server answers an echo request, so dead peers are detected
//! by TCP keepalive and a limit on the time that sent bytes may stay unacknowledged.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::tls::ClientTls;

/// The default port of gearman servers.
pub const DEFAULT_PORT: u16 = 4730;

/// The address of a job server.
#[derive(Clone, Debug)]
pub enum GearmanEndpoint {
    Tcp {
        host: String,
        port: u16,
        tls: Option<ClientTls>,
    },
    /// A unix socket on this host.
    Unix(PathBuf),
}

impl GearmanEndpoint {
    /// Returns an endpoint that uses plain TCP.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self::Tcp {
            host: host.into(),
            port,
            tls: None,
        }
    }

    /// Returns the same endpoint with TLS enabled. A unix socket stays as it is.
    #[must_use]
    pub fn with_tls(self, tls: ClientTls) -> Self {
        match self {
            Self::Tcp { host, port, .. } => Self::Tcp {
                host,
                port,
                tls: Some(tls),
            },
            socket @ Self::Unix(_) => socket,
        }
    }

    /// Connects to the server and completes the TLS handshake if TLS is enabled.
    pub(crate) async fn connect(
        &self,
        limit: Duration,
        keepalive: Keepalive,
    ) -> Result<ServerStream, ConnectError> {
        let attempt = async {
            let (host, port, tls) = match self {
                Self::Unix(path) => {
                    return Ok(ServerStream::Unix(UnixStream::connect(path).await?));
                }
                Self::Tcp { host, port, tls } => (host, *port, tls),
            };
            let tcp = TcpStream::connect((host.as_str(), port)).await?;
            keepalive.apply(&tcp)?;
            let Some(ClientTls(config)) = tls else {
                return Ok(ServerStream::Plain(tcp));
            };
            let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
            let tls = TlsConnector::from(config.clone())
                .connect(name, tcp)
                .await?;
            Ok(ServerStream::Tls(Box::new(tls.into())))
        };
        match tokio::time::timeout(limit, attempt).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(source)) => Err(ConnectError::Io {
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

impl fmt::Display for GearmanEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// An error connecting to a job server.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("failed to connect to gearman server {server}")]
    Io { server: String, source: io::Error },
    #[error("timed out connecting to gearman server {server} after {limit:?}")]
    Timeout { server: String, limit: Duration },
}

/// TCP keepalive settings: when an unresponsive peer counts as dead.
#[derive(Clone, Copy, Debug)]
pub struct Keepalive {
    /// Idle time before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Unanswered probes before the connection is closed.
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
        let user_timeout = self.idle + self.interval * self.count;
        sockopt::set_tcp_user_timeout(
            socket,
            u32::try_from(user_timeout.as_millis()).unwrap_or(u32::MAX),
        )?;
        Ok(())
    }
}

/// A connection to a job server.
#[derive(Debug)]
pub(crate) enum ServerStream {
    Plain(TcpStream),
    Tls(Box<tokio_rustls::TlsStream<TcpStream>>),
    Unix(UnixStream),
}

impl AsyncRead for ServerStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, data),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, data),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, data),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// Exponential backoff between connection attempts. Each delay is drawn at random from its upper half, so that workers
/// that lost the same server do not reconnect at the same time.
#[derive(Clone, Copy, Debug)]
pub struct ReconnectBackoff {
    pub initial_delay: Duration,
    pub max_delay: Duration,
}

impl Default for ReconnectBackoff {
    fn default() -> Self {
        Self {
            initial_delay: Duration::from_millis(200),
            max_delay: Duration::from_secs(15),
        }
    }
}

impl ReconnectBackoff {
    pub(crate) fn delay(self, failures: u32) -> Duration {
        let doubled = self
            .initial_delay
            .saturating_mul(1u32.checked_shl(failures).unwrap_or(u32::MAX));
        doubled
            .min(self.max_delay)
            .mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_maximum() {
        let backoff = ReconnectBackoff {
            initial_delay: Duration::from_millis(100),
            max_delay: Duration::from_secs(2),
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
    async fn keepalive_is_applied_to_connections() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = GearmanEndpoint::new("127.0.0.1", listener.local_addr().unwrap().port());
        let keepalive = Keepalive {
            idle: Duration::from_secs(7),
            interval: Duration::from_secs(3),
            count: 4,
        };
        let ServerStream::Plain(socket) = endpoint
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
