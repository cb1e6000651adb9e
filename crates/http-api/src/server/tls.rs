//! Loads the TLS configuration of the API: the server's certificate, and the CAs of client certificates.

use std::path::Path;
use std::sync::Arc;

use nodeyard_config::ApiTls;
use nodeyard_tls::{IdentityFiles, TlsError};
use tokio_rustls::TlsAcceptor;

#[derive(Debug, thiserror::Error)]
pub enum ApiTlsError {
    #[error(transparent)]
    Files(#[from] TlsError),
    #[error("the process is shutting down")]
    Stopped,
}

pub(super) fn acceptor(files: &ApiTls) -> Result<TlsAcceptor, TlsError> {
    let identity = IdentityFiles {
        cert: Path::new(&files.cert),
        key: Path::new(&files.key),
    };
    let client_ca = files.client_ca.as_deref().map(Path::new);
    let mut config = nodeyard_tls::server_config(identity, client_ca)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
