//! TLS configurations of clients and servers from PEM files, for the whole program.
//!
//! Connecting and accepting are elsewhere. The crypto provider is always aws-lc-rs and passed explicitly, so that a
//! process-wide default set by another crate has no effect.

mod chain_only;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use chain_only::ChainOnlyVerifier;

/// Whether a client verifies the server's host name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostCheck {
    /// Accepts any certificate signed by a trusted CA.
    #[default]
    ChainOnly,
    /// Requires that the certificate is valid for the host name or address connected to.
    Name,
}

/// The files of a certificate, followed by intermediate certificates, and of its key.
#[derive(Clone, Copy, Debug)]
pub struct IdentityFiles<'a> {
    pub cert: &'a Path,
    pub key: &'a Path,
}

/// An error loading certificates or keys.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
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
    #[error("failed to configure the verification of certificates")]
    Verifier(#[from] VerifierBuilderError),
    #[error("failed to initialize the TLS library")]
    Setup(#[source] rustls::Error),
}

/// Returns the configuration of a client that trusts the roots, with a client certificate if `identity` is given.
pub fn client_config(
    roots: impl Into<Arc<RootCertStore>>,
    check: HostCheck,
    identity: Option<IdentityFiles<'_>>,
) -> Result<ClientConfig, TlsError> {
    let (roots, provider) = (roots.into(), provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?;
    let builder = match check {
        HostCheck::Name => builder.with_root_certificates(roots),
        HostCheck::ChainOnly => {
            let chain = WebPkiServerVerifier::builder_with_provider(roots, provider).build()?;
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(ChainOnlyVerifier(chain)))
        }
    };
    let Some(files) = identity else {
        return Ok(builder.with_no_client_auth());
    };
    let (chain, key) = files.read()?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|source| files.unusable(source))
}

/// Returns the configuration of a server, which requires client certificates if `client_ca` is given.
pub fn server_config(
    identity: IdentityFiles<'_>,
    client_ca: Option<&Path>,
) -> Result<ServerConfig, TlsError> {
    let provider = provider();
    let (chain, key) = identity.read()?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let roots = Arc::new(read_roots(path)?);
            let clients = WebPkiClientVerifier::builder_with_provider(roots, provider).build()?;
            builder.with_client_cert_verifier(clients)
        }
    };
    builder
        .with_single_cert(chain, key)
        .map_err(|source| identity.unusable(source))
}

/// Reads the certificates of a file, of which there must be one at least.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    certificates(path, "the certificate")
}

/// Reads the trusted CA certificates of a file. Fails if one of them is not usable.
pub fn read_roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, "the certificate authority")? {
        roots
            .add(certificate)
            .map_err(|source| TlsError::BadAuthority {
                path: path.to_owned(),
                source,
            })?;
    }
    Ok(roots)
}

/// Adds the CA certificates of the system, of which there may be none. Ignores those in unsupported formats, which old
/// systems have.
pub fn add_system_roots(roots: &mut RootCertStore) {
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
}

impl IdentityFiles<'_> {
    fn read(self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
        let key = PrivateKeyDer::from_pem_file(self.key)
            .map_err(unreadable("the private key", self.key))?;
        Ok((read_certificates(self.cert)?, key))
    }

    fn unusable(self, source: rustls::Error) -> TlsError {
        TlsError::BadIdentity {
            cert: self.cert.to_owned(),
            key: self.key.to_owned(),
            source,
        }
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn certificates(path: &Path, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found = CertificateDer::pem_file_iter(path).map_err(unreadable(what, path))?;
    let found: Vec<_> = found
        .collect::<Result<_, _>>()
        .map_err(unreadable(what, path))?;
    if found.is_empty() {
        return Err(TlsError::NoCertificate {
            path: path.to_owned(),
        });
    }
    Ok(found)
}

fn unreadable(what: &'static str, path: &Path) -> impl Fn(pem::Error) -> TlsError {
    move |source| TlsError::Unreadable {
        what,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    /// Writes `NAME.pem`, a certificate, and `NAME.key.pem`.
    fn write_identity(directory: &Path, name: &str) -> (PathBuf, PathBuf) {
        let pair = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.self_signed(&pair).unwrap();
        let (cert, key) = (format!("{name}.pem"), format!("{name}.key.pem"));
        let (cert, key) = (directory.join(cert), directory.join(key));
        fs::write(&cert, certificate.pem()).unwrap();
        fs::write(&key, pair.serialize_pem()).unwrap();
        (cert, key)
    }

    #[test]
    fn errors_name_the_files() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let (own, own_key) = write_identity(directory, "own");
        let (_, other_key) = write_identity(directory, "other");
        let (missing, empty) = (directory.join("missing.pem"), directory.join("empty.pem"));
        fs::write(&empty, "").unwrap();
        let server = |cert: &Path, key: &Path, client_ca: Option<&Path>| {
            server_config(IdentityFiles { cert, key }, client_ca).map(|_| ())
        };
        let client = |cert: &Path, key: &Path, ca: &Path| {
            let identity = Some(IdentityFiles { cert, key });
            client_config(read_roots(ca)?, HostCheck::ChainOnly, identity).map(|_| ())
        };
        server(&own, &own_key, Some(&own)).unwrap();
        client(&own, &own_key, &own).unwrap();
        for bad in [&missing, &empty, &other_key] {
            for result in [
                server(bad, &own_key, None),
                server(&own, &own_key, Some(bad)),
                client(bad, &own_key, &own),
                client(&own, &own_key, bad),
                server(&own, bad, None),
                client(&own, bad, &own),
            ] {
                let text = result.unwrap_err().to_string();
                assert!(text.contains(bad.to_str().unwrap()), "{text}");
            }
        }
    }
}
