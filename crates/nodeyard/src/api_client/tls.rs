//! TLS connections to the API.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Where systems keep their trusted CA certificates.
const BUNDLES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// Opens TLS connections.
#[derive(Clone)]
pub(super) struct Connector(TlsConnector);

impl Connector {
    pub(super) fn new(ca: Option<&Path>) -> anyhow::Result<Self> {
        let bundle = || {
            BUNDLES
                .map(PathBuf::from)
                .into_iter()
                .find(|path| path.exists())
        };
        let path = ca
            .map(Path::to_owned)
            .or_else(bundle)
            .context("no CA certificates found on this system; name a file with --api-ca")?;
        let unusable = || format!("failed to load CA certificates from {}", path.display());
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(&path).with_context(unusable)? {
            // Ignores certificates in unsupported formats, which old systems have.
            let _ = roots.add(certificate.with_context(unusable)?);
        }
        ensure!(!roots.is_empty(), unusable());
        // Explicit, so that a process-wide default set by another crate does not matter.
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    pub(super) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> anyhow::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned())?;
        Ok(self.0.connect(name, stream).await?)
    }
}
