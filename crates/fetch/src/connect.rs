//! Opens connections: name resolution, address checks, TCP, TLS and the HTTP handshake.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
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

/// Loads the system's CA certificates and those of an optional bundle. Blocks.
pub(crate) fn load_roots(bundle: Option<&Path>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    // Errors are ignored: a system without CA certificates may use only those of the bundle.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = bundle {
        for certificate in load_certificates(path)? {
            roots
                .add(certificate)
                .map_err(|source| tls_setup_error(path, source))?;
        }
    }
    Ok(roots)
}

fn load_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let pem =
        CertificateDer::pem_file_iter(path).map_err(|source| tls_setup_error(path, source))?;
    let certificates: Result<Vec<_>, _> = pem.collect();
    let certificates = certificates.map_err(|source| tls_setup_error(path, source))?;
    if certificates.is_empty() {
        return Err(tls_setup_error(path, "the file contains no certificate"));
    }
    Ok(certificates)
}

fn tls_setup_error(
    path: &Path,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    Error::TlsSetup {
        what: path.display().to_string().into(),
        source: source.into(),
    }
}

/// Builds the TLS configuration of one connection. Client certificates are reloaded each time, as they may be renewed.
fn tls_config(
    roots: &Arc<RootCertStore>,
    credentials: &HttpCredentials,
) -> Result<ClientConfig, Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|source| Error::TlsSetup {
            what: "the supported protocol versions".into(),
            source: source.into(),
        })?
        .with_root_certificates(Arc::clone(roots));
    let HttpCredentials::Mtls { cert, key } = credentials else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = load_certificates(cert)?;
    let private =
        PrivateKeyDer::from_pem_file(key).map_err(|source| tls_setup_error(key, source))?;
    builder
        .with_client_auth_cert(chain, private)
        .map_err(|source| tls_setup_error(cert, source))
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
