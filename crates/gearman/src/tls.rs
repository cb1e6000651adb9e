//! TLS with client certificates, the way gear and gearmand do it.
//!
//! Both sides present a certificate signed by one private CA. Like gear, the client verifies the server's chain but
//! by default not its host name, because deployments address servers by IP address and the CA signs nothing else. A
//! client is identified by the Common Name of its certificate. TLS 1.2 is offered because gear disables 1.3.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as RustlsError, RootCertStore,
    ServerConfig, SignatureScheme,
};
use x509_parser::prelude::{FromDer, X509Certificate};

/// A CA certificate, a certificate and its key, as PEM.
#[derive(Clone)]
pub struct TlsFiles {
    pub ca: Vec<u8>,
    pub cert: Vec<u8>,
    pub key: Vec<u8>,
}

impl TlsFiles {
    /// Reads the three files.
    pub fn read(ca: &Path, cert: &Path, key: &Path) -> Result<Self, GearmanTlsError> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|source| GearmanTlsError::Unreadable {
                path: path.to_owned(),
                source,
            })
        };
        Ok(Self {
            ca: read(ca)?,
            cert: read(cert)?,
            key: read(key)?,
        })
    }

    /// Returns the Common Name of the certificate.
    pub fn common_name(&self) -> Option<String> {
        let certificate = CertificateDer::pem_slice_iter(&self.cert).next()?.ok()?;
        common_name(&certificate)
    }
}

impl fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsFiles").finish_non_exhaustive()
    }
}

/// Whether a client verifies the server's host name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostCheck {
    /// Accepts any certificate signed by the CA, as gear does.
    #[default]
    ChainOnly,
    /// Requires that the certificate is valid for the host name or address connected to.
    Name,
}

/// TLS configuration of workers, clients and admin clients.
#[derive(Clone)]
pub struct ClientTls(pub(crate) Arc<ClientConfig>);

impl ClientTls {
    pub fn new(files: &TlsFiles, check: HostCheck) -> Result<Self, GearmanTlsError> {
        let provider = provider();
        let chain = WebPkiServerVerifier::builder_with_provider(
            Arc::new(roots(&files.ca)?),
            provider.clone(),
        )
        .build()
        .map_err(unusable("CA"))?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(unusable("protocol"))?;
        let builder = match check {
            HostCheck::Name => builder.with_webpki_verifier(chain),
            HostCheck::ChainOnly => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(ChainOnlyVerifier(chain))),
        };
        let config = builder
            .with_client_auth_cert(
                certificates(&files.cert, "certificate")?,
                private_key(&files.key)?,
            )
            .map_err(unusable("certificate or key"))?;
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
        let provider = provider();
        let clients = WebPkiClientVerifier::builder_with_provider(
            Arc::new(roots(&files.ca)?),
            provider.clone(),
        )
        .build()
        .map_err(unusable("CA"))?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(unusable("protocol"))?
            .with_client_cert_verifier(clients)
            .with_single_cert(
                certificates(&files.cert, "certificate")?,
                private_key(&files.key)?,
            )
            .map_err(unusable("certificate or key"))?;
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
pub enum GearmanTlsError {
    #[error("failed to read {}", path.display())]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("invalid {part}: no usable PEM section")]
    BadPem {
        part: &'static str,
        source: rustls::pki_types::pem::Error,
    },
    #[error("the {part} is not usable for TLS")]
    Unusable {
        part: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

fn unusable<E>(part: &'static str) -> impl FnOnce(E) -> GearmanTlsError
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    move |source| GearmanTlsError::Unusable {
        part,
        source: source.into(),
    }
}

/// Returns the Common Name of a certificate's subject.
pub(crate) fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let name = parsed.subject().iter_common_name().next()?.as_str().ok()?;
    Some(name.to_owned())
}

// Passed explicitly, so that a process-wide default set by another crate has no effect.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn roots(pem: &[u8]) -> Result<RootCertStore, GearmanTlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem, "CA")? {
        roots.add(certificate).map_err(unusable("CA"))?;
    }
    Ok(roots)
}

fn certificates(
    pem: &[u8],
    part: &'static str,
) -> Result<Vec<CertificateDer<'static>>, GearmanTlsError> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|source| GearmanTlsError::BadPem { part, source })?;
    if found.is_empty() {
        return Err(GearmanTlsError::BadPem {
            part,
            source: rustls::pki_types::pem::Error::NoItemsFound,
        });
    }
    Ok(found)
}

fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, GearmanTlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|source| GearmanTlsError::BadPem {
        part: "private key",
        source,
    })
}

/// Verifies a server certificate except for the host name. [`WebPkiServerVerifier`] checks the name last, after chain,
/// dates and purpose, so a name error from it means that everything else is valid.
#[derive(Debug)]
struct ChainOnlyVerifier(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for ChainOnlyVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, RustlsError> {
        match self
            .0
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
        {
            Err(RustlsError::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
