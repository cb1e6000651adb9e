//! From an origin to a connection.

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
use crate::client::NoBody;
use crate::credentials::Credentials;
use crate::error::Error;
use crate::url::Origin;

/// How long a connection may take, TLS included.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// The certificates of the system, and further ones from a file. Blocks.
pub(crate) fn roots(bundle: Option<&Path>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    // A system without any is one that talks to the origins of the bundle, or to nobody.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = bundle {
        for certificate in certificates(path)? {
            roots
                .add(certificate)
                .map_err(|source| unusable(path, source))?;
        }
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let pem = CertificateDer::pem_file_iter(path).map_err(|source| unusable(path, source))?;
    let certificates: Result<Vec<_>, _> = pem.collect();
    let certificates = certificates.map_err(|source| unusable(path, source))?;
    if certificates.is_empty() {
        return Err(unusable(path, "there is no certificate in it"));
    }
    Ok(certificates)
}

fn unusable(path: &Path, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::TlsSetup {
        what: path.display().to_string().into(),
        source: source.into(),
    }
}

/// TLS for one connection. The files of a client certificate are read each time, since they are renewed.
fn tls(roots: &Arc<RootCertStore>, credentials: &Credentials) -> Result<ClientConfig, Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|source| Error::TlsSetup {
            what: "the versions that it knows".into(),
            source: source.into(),
        })?
        .with_root_certificates(Arc::clone(roots));
    let Credentials::Mtls { cert, key } = credentials else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates(cert)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|source| unusable(key, source))?;
    builder
        .with_client_auth_cert(chain, private)
        .map_err(|source| unusable(cert, source))
}

/// Opens a connection. `any_address` lifts the ban on private ones.
pub(crate) async fn open(
    origin: &Origin,
    roots: &Arc<RootCertStore>,
    credentials: &Credentials,
    any_address: bool,
) -> Result<SendRequest<NoBody>, Error> {
    let connecting = async {
        let stream = dial(origin, any_address).await?;
        if !origin.secure {
            return handshake(origin, TokioIo::new(stream)).await;
        }
        let name = ServerName::try_from(origin.host.to_string()).map_err(|source| Error::Tls {
            origin: origin.clone(),
            source: io::Error::other(source),
        })?;
        let connector = TlsConnector::from(Arc::new(tls(roots, credentials)?));
        let stream = connector
            .connect(name, stream)
            .await
            .map_err(|source| Error::Tls {
                origin: origin.clone(),
                source,
            })?;
        handshake(origin, TokioIo::new(stream)).await
    };
    tokio::time::timeout(CONNECT_LIMIT, connecting)
        .await
        .unwrap_or_else(|_| {
            Err(Error::TimedOut {
                origin: origin.clone(),
                what: "take a connection",
                seconds: CONNECT_LIMIT.as_secs(),
            })
        })
}

/// Tries the addresses of the host in their order.
async fn dial(origin: &Origin, any_address: bool) -> Result<TcpStream, Error> {
    let resolved = tokio::net::lookup_host((&*origin.host, origin.port)).await;
    let addresses: Vec<SocketAddr> = resolved
        .map_err(|source| Error::Resolve {
            origin: origin.clone(),
            source,
        })?
        .collect();
    let mut trouble = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        if !any_address && !is_public(address.ip()) {
            return Err(Error::Private {
                origin: origin.clone(),
                address: address.ip(),
            });
        }
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // Requests are small and we wait for their answers.
                let _slower = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => trouble = error,
        }
    }
    Err(Error::Connect {
        origin: origin.clone(),
        source: trouble,
    })
}

async fn handshake<I>(origin: &Origin, io: I) -> Result<SendRequest<NoBody>, Error>
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let broken = |source| Error::Broken {
        origin: origin.clone(),
        source,
    };
    let (sender, connection) = http1::handshake(io).await.map_err(broken)?;
    // Ends with the last of sender and body; what goes wrong is what they are told.
    tokio::spawn(async move {
        let _told = connection.await;
    });
    Ok(sender)
}
