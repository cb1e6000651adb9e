//! Opens connections: name resolution, address checks, TCP, TLS and the HTTP handshake.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use nodeyard_tls::{HostCheck, IdentityFiles, TlsError};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::address::is_public;
use crate::client::EmptyBody;
use crate::credentials::HttpCredentials;
use crate::error::Error;
use crate::url::Origin;

/// Timeout for opening a connection, including TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Loads the system's CA certificates, of which there may be none, and those of an optional bundle. Blocks.
pub(crate) fn load_roots(bundle: Option<&Path>) -> Result<RootCertStore, TlsError> {
    let mut roots = match bundle {
        Some(path) => nodeyard_tls::read_roots(path)?,
        None => RootCertStore::empty(),
    };
    nodeyard_tls::add_system_roots(&mut roots);
    Ok(roots)
}

/// Builds the TLS configuration of one connection. Client certificates are reloaded each time, as they may be renewed.
fn tls_config(
    roots: &Arc<RootCertStore>,
    credentials: &HttpCredentials,
) -> Result<ClientConfig, TlsError> {
    let identity = match credentials {
        HttpCredentials::Mtls { cert, key } => Some(IdentityFiles { cert, key }),
        _ => None,
    };
    nodeyard_tls::client_config(Arc::clone(roots), HostCheck::Name, identity)
}

/// Opens a connection. Private addresses are rejected unless `allow_private` is set.
pub(crate) async fn open(
    origin: &Origin,
    roots: &Arc<RootCertStore>,
    credentials: &HttpCredentials,
    allow_private: bool,
) -> Result<SendRequest<EmptyBody>, Error> {
    let connecting = async {
        let stream = connect_tcp(origin, allow_private).await?;
        if !origin.secure {
            return handshake(origin, TokioIo::new(stream)).await;
        }
        let name = ServerName::try_from(origin.host.to_string()).map_err(|source| Error::Tls {
            origin: origin.clone(),
            source: io::Error::other(source),
        })?;
        let connector = TlsConnector::from(Arc::new(tls_config(roots, credentials)?));
        let stream = connector
            .connect(name, stream)
            .await
            .map_err(|source| Error::Tls {
                origin: origin.clone(),
                source,
            })?;
        handshake(origin, TokioIo::new(stream)).await
    };
    tokio::time::timeout(CONNECT_TIMEOUT, connecting)
        .await
        .unwrap_or_else(|_| {
            Err(Error::TimedOut {
                origin: origin.clone(),
                what: "accept a connection",
                seconds: CONNECT_TIMEOUT.as_secs(),
            })
        })
}

/// Connects to the first reachable address of the host.
async fn connect_tcp(origin: &Origin, allow_private: bool) -> Result<TcpStream, Error> {
    let resolved = tokio::net::lookup_host((&*origin.host, origin.port)).await;
    let addresses: Vec<SocketAddr> = resolved
        .map_err(|source| Error::Resolve {
            origin: origin.clone(),
            source,
        })?
        .collect();
    let mut last_error = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        if !allow_private && !is_public(address.ip()) {
            return Err(Error::PrivateAddress {
                origin: origin.clone(),
                address: address.ip(),
            });
        }
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // Requests are small and latency matters.
                let _ignored = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => last_error = error,
        }
    }
    Err(Error::Connect {
        origin: origin.clone(),
        source: last_error,
    })
}

async fn handshake<I>(origin: &Origin, io: I) -> Result<SendRequest<EmptyBody>, Error>
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let failed = |source| Error::ConnectionFailed {
        origin: origin.clone(),
        source,
    };
    let (sender, connection) = http1::handshake(io).await.map_err(failed)?;
    // Ends when sender and body are dropped; both receive its errors.
    tokio::spawn(async move {
        let _ignored = connection.await;
    });
    Ok(sender)
}
