//! TLS with client certificates, the way gear and gearmand do it.
//!
//! Both sides present a certificate signed by one private CA. Like gear, the client verifies the server's chain but
//! by default not its host name, because deployments address servers by IP address and the CA signs nothing else. A
//! client is identified by the Common Name of its certificate. TLS 1.2 is offered because gear disables 1.3.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use nodeyard_tls::{IdentityFiles, TlsError};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ServerConfig};
use x509_parser::prelude::{FromDer, X509Certificate};

pub use nodeyard_tls::HostCheck;

/// A CA certificate, a certificate and its key, as PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    pub ca: PathBuf,
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl TlsFiles {
    /// Returns the Common Name of the certificate.
    pub fn common_name(&self) -> Option<String> {
        let certificates = nodeyard_tls::read_certificates(&self.cert).ok()?;
        common_name(certificates.first()?)
    }

    fn identity(&self) -> IdentityFiles<'_> {
        IdentityFiles {
            cert: &self.cert,
            key: &self.key,
        }
    }
}

/// TLS configuration of workers, clients and admin clients.
#[derive(Clone)]
pub struct ClientTls(pub(crate) Arc<ClientConfig>);

impl ClientTls {
    pub fn new(files: &TlsFiles, check: HostCheck) -> Result<Self, GearmanTlsError> {
        let roots = nodeyard_tls::read_roots(&files.ca)?;
        let config = nodeyard_tls::client_config(roots, check, Some(files.identity()))?;
        Ok(Self(Arc::new(config)))
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientTls")
    }
}

/// TLS configuration of the job server, which requires a client certificate signed by the CA.
#[derive(Clone)]
pub struct ServerTls(pub(crate) Arc<ServerConfig>);

impl ServerTls {
    pub fn new(files: &TlsFiles) -> Result<Self, GearmanTlsError> {
        let config = nodeyard_tls::server_config(files.identity(), Some(&files.ca))?;
        Ok(Self(Arc::new(config)))
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerTls")
    }
}

/// An error loading TLS certificates or keys.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct GearmanTlsError(#[from] TlsError);

/// Returns the Common Name of a certificate's subject.
pub(crate) fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let name = parsed.subject().iter_common_name().next()?.as_str().ok()?;
    Some(name.to_owned())
}
