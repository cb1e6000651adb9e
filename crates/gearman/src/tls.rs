//! TLS with client certificates, the way gear and gearmand do it.
//!
//! Both sides present a certificate of one private CA. The client checks the server's chain to that CA but,
//! like gear, not the host name unless told to: gearman deployments name their servers by address, and the
//! CA signs nothing else. Who a client is, is the Common Name of its certificate.
//!
//! TLS 1.2 stays on offer because gear switches 1.3 off.

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

/// The three PEM texts that both sides of a TLS connection need.
#[derive(Clone)]
pub struct TlsFiles {
    pub ca: Vec<u8>,
    pub cert: Vec<u8>,
    pub key: Vec<u8>,
}

impl TlsFiles {
    /// Reads the three files.
    pub fn read(ca: &Path, cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|source| TlsError::Unreadable {
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

    /// Who the certificate says its holder is.
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

/// What a client verifies about the server beyond the chain to the CA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostCheck {
    /// Any certificate of the CA will do, as with gear.
    #[default]
    ChainOnly,
    /// The certificate must also be for the host name or address that was dialled.
    Name,
}

/// TLS for workers, clients and admin clients.
#[derive(Clone)]
pub struct ClientTls(pub(crate) Arc<ClientConfig>);

impl ClientTls {
    pub fn new(files: &TlsFiles, check: HostCheck) -> Result<Self, TlsError> {
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

/// TLS for the job server: every client must present a certificate of the CA.
#[derive(Clone)]
pub struct ServerTls(pub(crate) Arc<ServerConfig>);

impl ServerTls {
    pub fn new(files: &TlsFiles) -> Result<Self, TlsError> {
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

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {}", path.display())]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the {part} holds no usable PEM section")]
    BadPem {
        part: &'static str,
        source: rustls::pki_types::pem::Error,
    },
    #[error("the {part} cannot be used for TLS")]
    Unusable {
        part: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

fn unusable<E>(part: &'static str) -> impl FnOnce(E) -> TlsError
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    move |source| TlsError::Unusable {
        part,
        source: source.into(),
    }
}

/// The Common Name of a certificate's subject, if it has one.
pub(crate) fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let name = parsed.subject().iter_common_name().next()?.as_str().ok()?;
    Some(name.to_owned())
}

// Given explicitly everywhere, so that the process-wide default of another crate never matters.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn roots(pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem, "CA")? {
        roots.add(certificate).map_err(unusable("CA"))?;
    }
    Ok(roots)
}

fn certificates(pem: &[u8], part: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|source| TlsError::BadPem { part, source })?;
    if found.is_empty() {
        return Err(TlsError::BadPem {
            part,
            source: rustls::pki_types::pem::Error::NoItemsFound,
        });
    }
    Ok(found)
}

fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|source| TlsError::BadPem {
        part: "private key",
        source,
    })
}

/// Checks everything the ordinary verifier checks except the name. That verifier looks at the name last,
/// after chain, dates and purpose, so its complaint about the name alone means that all else is in order.
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
