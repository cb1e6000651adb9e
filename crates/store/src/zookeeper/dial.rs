//! Opens a connection to one server: name, TCP, TLS, and the exchange that begins or resumes a session.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::stream::{FuturesUnordered, StreamExt};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::sleep;
use tokio_rustls::TlsConnector;

use super::options::Host;
use super::tls::{Tls, TlsError};
use super::wire::{ConnectRequest, ConnectResponse, WireError, take_frame};

/// A reply to the first packet is far smaller than this.
const MAX_GREETING: usize = 4096;
/// How long one address of a name is tried before the next is tried beside it, as in RFC 8305.
const STAGGER: Duration = Duration::from_millis(250);

pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

pub(super) struct Connection {
    pub(super) host: Host,
    pub(super) stream: Box<dyn Stream>,
    pub(super) response: ConnectResponse,
    /// What came after the response already.
    pub(super) received: BytesMut,
}

/// Why a server could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    #[error("there is no server to connect to")]
    NoHosts,
    #[error("the name of {host} cannot be resolved")]
    Resolve {
        host: Host,
        #[source]
        source: io::Error,
    },
    #[error("cannot connect to {host}")]
    Connect {
        host: Host,
        #[source]
        source: io::Error,
    },
    #[error("cannot use TLS")]
    Tls(#[from] TlsError),
    #[error("the TLS handshake with {host} failed")]
    TlsHandshake {
        host: Host,
        #[source]
        source: io::Error,
    },
    #[error(
        "{host} did not take us for a client; a server that has no quorum yet, that lags behind, or that does not accept our certificate does this"
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
    #[error("{host} did not answer within {after:?}")]
    TimedOut { host: Host, after: Duration },
}

pub(super) async fn dial(
    host: Host,
    tls: Option<Tls>,
    request: ConnectRequest,
    patience: Duration,
) -> Result<Connection, DialError> {
    let attempt = async {
        let stream = open(&host, tls).await?;
        greet(host.clone(), stream, &request).await
    };
    match tokio::time::timeout(patience, attempt).await {
        Ok(result) => result,
        Err(_) => Err(DialError::TimedOut {
            host,
            after: patience,
        }),
    }
}

async fn open(host: &Host, tls: Option<Tls>) -> Result<Box<dyn Stream>, DialError> {
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

/// Connects to whichever address of a name answers first. Attempts start one after the other, the next as soon as the
/// one before has failed or has been silent for [`STAGGER`].
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
    tls: Tls,
) -> Result<Box<dyn Stream>, DialError> {
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

async fn greet(
    host: Host,
    mut stream: Box<dyn Stream>,
    request: &ConnectRequest,
) -> Result<Connection, DialError> {
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
        match take_frame(&mut received, MAX_GREETING) {
            Ok(Some(frame)) => break frame,
            Ok(None) => {}
            Err(source) => return Err(DialError::Protocol { host, source }),
        }
    };
    match ConnectResponse::decode(frame) {
        Ok(response) => Ok(Connection {
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
    async fn an_address_that_drops_packets_does_not_hide_the_next() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let full = socket.listen(1).unwrap();
        let silent = full.local_addr().unwrap();
        // The kernel drops what comes when nobody accepts and the queue is full.
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
    async fn an_address_that_refuses_does_not_hide_the_next() {
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
