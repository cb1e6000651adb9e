//! The certificates of a gateway.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::certificates::{Certificates, Identity};

#[derive(Debug, Clone)]
pub struct GatewayTls {
    /// What it shows its clients.
    pub identity: Identity,
    /// Who has signed that.
    pub ca: PathBuf,
    /// Clients have to show a certificate that this authority has signed.
    pub client_ca: Option<PathBuf>,
}

impl GatewayTls {
    /// As a cloud has it: any client, and a certificate for 127.0.0.1.
    pub fn of(certificates: &Certificates) -> Self {
        Self {
            identity: certificates.server.clone(),
            ca: certificates.ca.clone(),
            client_ca: None,
        }
    }

    pub(super) fn server(&self) -> Result<Arc<ServerConfig>> {
        // Given explicitly, so that the process-wide default of another crate never matters.
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(ca) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(ca)? {
                    roots.add(authority)?;
                }
                let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
                builder.with_client_cert_verifier(clients.build()?)
            }
        };
        let key = PrivateKeyDer::from_pem_file(&self.identity.key)?;
        let config = builder.with_single_cert(certificates(&self.identity.cert)?, key)?;
        Ok(Arc::new(config))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(path)?;
    Ok(found.collect::<Result<_, _>>()?)
}
