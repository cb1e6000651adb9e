//! TLS with a client certificate.
//!
//! Like Python's ZooKeeper client, this verifies the server's certificate chain but by default not its host name,
//! because deployments rely on that. The crypto provider is always aws-lc-rs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// PEM files, reloaded for each connection so that certificates can be replaced at runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZooKeeperTlsFiles {
    /// The trusted CA certificates.
    pub ca: PathBuf,
    /// The client certificate, followed by intermediate certificates.
    pub cert: PathBuf,
    pub key: PathBuf,
    /// Whether to verify the host name in the server's certificate.
    pub verify_hostname: bool,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ZooKeeperTlsError {
    #[error("failed to read {what} from {}", path.display())]
    Unreadable {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: pem::Error,
    },
    #[error("{} contains no certificate", path.display())]
    NoCertificate { path: PathBuf },
    #[error("{} is not usable as a certificate authority", path.display())]
    BadAuthority {
        path: PathBuf,
        #[source]
        source: rustls::Error,
    },
    #[error("the certificate in {} and the key in {} do not match", cert.display(), key.display())]
    BadIdentity {
        cert: PathBuf,
        key: PathBuf,
        #[source]
        source: rustls::Error,
    },
    #[error("failed to initialize the TLS library")]
    Setup(#[source] rustls::Error),
}

impl ZooKeeperTlsFiles {
    /// Loads and validates the files. Connecting does this too; call it to report configuration errors early.
    pub fn load(&self) -> Result<ClientConfig, ZooKeeperTlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let roots = Arc::new(self.roots()?);
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(ZooKeeperTlsError::Setup)?;
        let builder = if self.verify_hostname {
            builder.with_root_certificates(roots)
        } else {
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(NoNameCheckVerifier { roots, provider }))
        };
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|source| {
            ZooKeeperTlsError::Unreadable {
                what: "the private key",
                path: self.key.clone(),
                source,
            }
        })?;
        builder
            .with_client_auth_cert(certificates(&self.cert, "the certificate")?, key)
            .map_err(|source| ZooKeeperTlsError::BadIdentity {
                cert: self.cert.clone(),
                key: self.key.clone(),
                source,
            })
    }

    fn roots(&self) -> Result<RootCertStore, ZooKeeperTlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.ca, "the certificate authority")? {
            roots
                .add(certificate)
                .map_err(|source| ZooKeeperTlsError::BadAuthority {
                    path: self.ca.clone(),
                    source,
                })?;
        }
        Ok(roots)
    }
}

fn certificates(
    path: &Path,
    what: &'static str,
) -> Result<Vec<CertificateDer<'static>>, ZooKeeperTlsError> {
    let unreadable = |source| ZooKeeperTlsError::Unreadable {
        what,
        path: path.to_owned(),
        source,
    };
    let certificates = CertificateDer::pem_file_iter(path)
        .map_err(unreadable)?
        .collect::<Result<Vec<_>, _>>()
        .map_err(unreadable)?;
    if certificates.is_empty() {
        return Err(ZooKeeperTlsError::NoCertificate {
            path: path.to_owned(),
        });
    }
    Ok(certificates)
}

/// Accepts certificates signed by a trusted CA, for any host name.
#[derive(Debug)]
struct NoNameCheckVerifier {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for NoNameCheckVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(end_entity)?,
            &self.roots,
            intermediates,
            now,
            self.provider.signature_verification_algorithms.all,
        )?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
