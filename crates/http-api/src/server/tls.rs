//! Loads the TLS configuration of the API: the server's certificate, and the CAs of client certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nodeyard_config::ApiTls;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

#[derive(Debug, thiserror::Error)]
pub enum ApiTlsError {
    #[error("failed to load {what} from {}", path.display())]
    File {
        path: PathBuf,
        what: &'static str,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the certificate and the key do not match or are not usable")]
    Unusable(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the process is shutting down")]
    Stopped,
}

pub(super) fn acceptor(files: &ApiTls) -> Result<TlsAcceptor, ApiTlsError> {
    // Explicit, so that a process-wide default set by another crate does not matter.
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let chain = certificates(Path::new(&files.cert), "a certificate")?;
    let key = PrivateKeyDer::from_pem_file(&files.key);
    let key = key.map_err(of_file(Path::new(&files.key), "a private key"))?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let path = Path::new(path);
            let mut roots = RootCertStore::empty();
            for authority in certificates(path, "certificates of authorities")? {
                let added = roots.add(authority);
                added.map_err(of_file(path, "certificates of authorities"))?;
            }
            let clients =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(clients.map_err(unusable)?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(unusable)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(
    path: &Path,
    what: &'static str,
) -> Result<Vec<CertificateDer<'static>>, ApiTlsError> {
    let all = CertificateDer::pem_file_iter(path).map_err(of_file(path, what))?;
    let all: Vec<_> = all.collect::<Result<_, _>>().map_err(of_file(path, what))?;
    if all.is_empty() {
        return Err(of_file(path, what)("no PEM section in the file"));
    }
    Ok(all)
}

fn of_file<E>(path: &Path, what: &'static str) -> impl FnOnce(E) -> ApiTlsError
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let path = path.to_owned();
    move |source| ApiTlsError::File {
        path,
        what,
        source: source.into(),
    }
}

fn unusable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ApiTlsError {
    ApiTlsError::Unusable(error.into())
}
