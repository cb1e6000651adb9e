//! TLS with a client certificate.
//!
//! Python's ZooKeeper client checks that the server's certificate comes from the configured authority,
//! but not the name in it, and deployments rely on that. So names are checked only on demand. The
//! cryptography is always aws-lc-rs, whatever a program has installed as its default.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// Files in PEM format. They are read anew for every connection, so that certificates can be replaced
/// while the program runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The authorities that may have signed the server's certificate.
    pub ca: PathBuf,
    /// Our certificate, followed by intermediate ones if there are any.
    pub cert: PathBuf,
    pub key: PathBuf,
    /// Also demand that the certificate is for the name that was connected to.
    pub verify_hostname: bool,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    #[error("cannot read {what} from {}", path.display())]
    Unreadable {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: pem::Error,
    },
    #[error("there is no certificate in {}", path.display())]
    NoCertificate { path: PathBuf },
    #[error("{} cannot be used as a certificate authority", path.display())]
    BadAuthority {
        path: PathBuf,
        #[source]
        source: rustls::Error,
    },
    #[error("the certificate in {} and the key in {} cannot be used together", cert.display(), key.display())]
    BadIdentity {
        cert: PathBuf,
        key: PathBuf,
        #[source]
        source: rustls::Error,
    },
    #[error("the TLS library cannot be set up")]
    Setup(#[source] rustls::Error),
}

impl Tls {
    /// Reads and checks the files. Connecting does this by itself; a program that wants to complain about
    /// its configuration right at the start calls it then.
    pub fn load(&self) -> Result<ClientConfig, TlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let roots = Arc::new(self.roots()?);
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Setup)?;
        let builder = if self.verify_hostname {
            builder.with_root_certificates(roots)
        } else {
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyName { roots, provider }))
        };
        let key =
            PrivateKeyDer::from_pem_file(&self.key).map_err(|source| TlsError::Unreadable {
                what: "the private key",
                path: self.key.clone(),
                source,
            })?;
        builder
            .with_client_auth_cert(certificates(&self.cert, "the certificate")?, key)
            .map_err(|source| TlsError::BadIdentity {
                cert: self.cert.clone(),
                key: self.key.clone(),
                source,
            })
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.ca, "the certificate authority")? {
            roots
                .add(certificate)
                .map_err(|source| TlsError::BadAuthority {
                    path: self.ca.clone(),
                    source,
                })?;
        }
        Ok(roots)
    }
}

fn certificates(path: &Path, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |source| TlsError::Unreadable {
        what,
        path: path.to_owned(),
        source,
    };
    let certificates = CertificateDer::pem_file_iter(path)
        .map_err(unreadable)?
        .collect::<Result<Vec<_>, _>>()
        .map_err(unreadable)?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate {
            path: path.to_owned(),
        });
    }
    Ok(certificates)
}

/// Accepts whatever one of our authorities has signed, for any name.
#[derive(Debug)]
struct AnyName {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyName {
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
