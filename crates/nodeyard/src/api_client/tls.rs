//! TLS connections to the API.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use nodeyard_tls::HostCheck;
use rustls::RootCertStore;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Opens TLS connections.
#[derive(Clone)]
pub(super) struct Connector(TlsConnector);

impl Connector {
    pub(super) fn new(ca: Option<&Path>) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        let without = match ca {
            None => {
                nodeyard_tls::add_system_roots(&mut roots);
                "no CA certificates found on this system; name a file with --api-ca".to_owned()
            }
            Some(path) => {
                let unusable = || format!("failed to load CA certificates from {}", path.display());
                let certificates = nodeyard_tls::read_certificates(path).with_context(unusable)?;
                // Ignores certificates in unsupported formats, which old systems have.
                roots.add_parsable_certificates(certificates);
                unusable()
            }
        };
        ensure!(!roots.is_empty(), without);
        let config = nodeyard_tls::client_config(roots, HostCheck::Name, None)?;
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
