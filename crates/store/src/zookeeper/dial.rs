//! Connects to one server: name resolution, TCP, TLS and the session handshake.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::stream::{FuturesUnordered, StreamExt};
use nodeyard_tls::TlsError;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::sleep;
use tokio_rustls::TlsConnector;

use super::options::Host;
use super::tls::ZooKeeperTlsFiles;
use super::wire::{ConnectRequest, ConnectResponse, WireError, take_frame};

/// The maximum size of a connect response.
const MAX_CONNECT_RESPONSE_LEN: usize = 4096;
/// The delay before the next address of a host is tried concurrently, as in RFC 8305.
const STAGGER: Duration = Duration::from_millis(250);

pub(super) trait AsyncStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> AsyncStream for T {}

pub(super) struct ServerConnection {
    pub(super) host: Host,
    pub(super) stream: Box<dyn AsyncStream>,
    pub(super) response: ConnectResponse,
    /// Bytes received after the response.
    pub(super) received: BytesMut,
}

/// An error connecting to a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    #[error("no servers are configured")]
    NoHosts,
    #[error("failed to resolve {host}")]
    Resolve {
        host: Host,
        #[source]
        source: io::Error,
    },
    #[error("failed to connect to {host}")]
    Connect {
        host: Host,
        #[source]
        source: io::Error,
    },
    #[error("failed to configure TLS")]
    Tls(#[from] TlsError),
    #[error("TLS handshake with {host} failed")]
    TlsHandshake {
        host: Host,
        #[source]
        source: io::Error,
    },
    #[error(
        "{host} closed the connection during the session handshake: it may have no quorum, lag behind, or reject the client certificate"
    )]
    Refused {
        host: Host,
        #[source]
        source: io::Error,
    },
    #[error("{host} does not speak ZooKeeper's protocol")]
    Protocol {
        host: Host,
        #[source]
        source: WireError,
    },
    #[error("timed out connecting to {host} after {after:?}")]
    TimedOut { host: Host, after: Duration },
}

pub(super) async fn connect_to(
    host: Host,
    tls: Option<ZooKeeperTlsFiles>,
    request: ConnectRequest,
    patience: Duration,
) -> Result<ServerConnection, DialError> {
    let attempt = async {
        let stream = open(&host, tls).await?;
        handshake(host.clone(), stream, &request).await
    };
    match tokio::time::timeout(patience, attempt).await {
        Ok(result) => result,
        Err(_) => Err(DialError::TimedOut {
            host,
            after: patience,
        }),
    }
}

async fn open(
    host: &Host,
    tls: Option<ZooKeeperTlsFiles>,
) -> Result<Box<dyn AsyncStream>, DialError> {
    let failed = |source| DialError::Connect {
        host: host.clone(),
        source,
    };
    match host {
        Host::Unix(path) => Ok(Box::new(UnixStream::connect(path).await.map_err(failed)?)),
        Host::Tcp { name, port } => {
            let addresses = lookup_host((name.as_str(), *port))
                .await
                .map_err(|source| DialError::Resolve {
                    host: host.clone(),
                    source,
                })?;
            let stream = connect_any(addresses).await.map_err(failed)?;
            stream.set_nodelay(true).map_err(failed)?;
            match tls {
                None => Ok(Box::new(stream)),
                Some(tls) => wrap(host, name, stream, tls).await,
            }
        }
    }
}

/// Connects to the first address that accepts. The next attempt starts when the previous one failed or did not respond
/// within [`STAGGER`].
async fn connect_any(addresses: impl IntoIterator<Item = SocketAddr>) -> io::Result<TcpStream> {
    let mut addresses = addresses.into_iter();
    let mut attempts = FuturesUnordered::new();
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        let next = addresses.next();
        let is_last = next.is_none();
        attempts.extend(next.map(TcpStream::connect));
        let next_is_due = async {
            if is_last {
                std::future::pending::<()>().await;
            } else {
                sleep(STAGGER).await;
            }
        };
        tokio::select! {
            ended = attempts.next() => match ended {
                Some(Ok(stream)) => return Ok(stream),
                Some(Err(error)) => failure = error,
                None => return Err(failure),
            },
            () = next_is_due => {}
        }
    }
}

async fn wrap(
    host: &Host,
    name: &str,
    stream: TcpStream,
    tls: ZooKeeperTlsFiles,
) -> Result<Box<dyn AsyncStream>, DialError> {
    let failed = |source| DialError::TlsHandshake {
        host: host.clone(),
        source,
    };
    let verify = tls.verify_hostname;
    let config = tokio::task::spawn_blocking(move || tls.load())
        .await
        .map_err(|error| failed(io::Error::other(error)))??;
    let server_name = match ServerName::try_from(name.to_owned()) {
        Ok(server_name) => server_name,
        // Where names are not checked, one that no certificate could carry does no harm.
        Err(_) if !verify => ServerName::from(stream.peer_addr().map_err(failed)?.ip()),
        Err(error) => return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, error))),
    };
    let stream = TlsConnector::from(Arc::new(config))
        .connect(server_name, stream)
        .await
        .map_err(failed)?;
    Ok(Box::new(stream))
}

async fn handshake(
    host: Host,
    mut stream: Box<dyn AsyncStream>,
    request: &ConnectRequest,
) -> Result<ServerConnection, DialError> {
    let mut buffer = BytesMut::new();
    request.encode(&mut buffer);
    let mut received = BytesMut::new();
    let frame = loop {
        let progress: io::Result<()> = async {
            if !buffer.is_empty() {
                stream.write_all_buf(&mut buffer).await?;
                stream.flush().await?;
            }
            match stream.read_buf(&mut received).await? {
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                _ => Ok(()),
            }
        }
        .await;
        if let Err(source) = progress {
            return Err(DialError::Refused { host, source });
        }
        match take_frame(&mut received, MAX_CONNECT_RESPONSE_LEN) {
            Ok(Some(frame)) => break frame,
            Ok(None) => {}
            Err(source) => return Err(DialError::Protocol { host, source }),
        }
    };
    match ConnectResponse::decode(frame) {
        Ok(response) => Ok(ServerConnection {
            host,
            stream,
            response,
            received,
        }),
        Err(source) => Err(DialError::Protocol { host, source }),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    async fn listening() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[tokio::test]
    async fn the_next_address_is_tried_if_one_does_not_respond() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let full = socket.listen(1).unwrap();
        let silent = full.local_addr().unwrap();
        // The kernel drops connections when the accept queue is full.
        let mut waiting = Vec::new();
        while let Ok(stream) =
            tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(silent)).await
        {
            waiting.push(stream.unwrap());
        }
        let (_listener, answering) = listening().await;
        let stream = connect_any([silent, answering]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), answering);
    }

    #[tokio::test]
    async fn the_next_address_is_tried_if_one_refuses() {
        let (listener, refusing) = listening().await;
        drop(listener);
        let (_listener, answering) = listening().await;
        let stream = connect_any([refusing, answering]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), answering);
        let error = connect_any([refusing]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let error = connect_any([]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
