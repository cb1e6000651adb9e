//! TLS with a private CA, and client certificates that are sent only to their origin.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nodeyard_fetch::{Error, HttpClient, HttpCredentials, HttpRequest, Options, Url};
use rcgen::{CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

struct FetchTestCa {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: tempfile::TempDir,
}

impl FetchTestCa {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, dir }
    }

    fn bundle(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    fn load_roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        roots
    }

    /// Creates files with a certificate and its key.
    fn identity(&self, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let path = |ending: &str| self.dir.path().join(format!("{name}.{ending}"));
        std::fs::write(path("crt"), cert.pem()).unwrap();
        std::fs::write(path("key"), key.serialize_pem()).unwrap();
        (path("crt"), path("key"))
    }

    /// Starts a server that counts connections with a client certificate and optionally requires one.
    async fn server(&self, require_client_cert: bool) -> (u16, Arc<AtomicUsize>) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(
            Arc::new(self.load_roots()),
            Arc::clone(&provider),
        );
        let clients = if require_client_cert {
            clients
        } else {
            clients.allow_unauthenticated()
        };
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients.build().unwrap())
            .with_single_cert(
                vec![cert.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let known = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&known);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else {
                    continue;
                };
                if stream.get_ref().1.peer_certificates().is_some() {
                    counted.fetch_add(1, Ordering::SeqCst);
                }
                let mut request = [0; 4096];
                let _got = stream.read(&mut request).await;
                let response =
                    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
                let _sent = stream.write_all(response).await;
                let _closed = stream.shutdown().await;
            }
        });
        (port, known)
    }
}

fn url(port: u16) -> Url {
    format!("https://localhost:{port}/").parse().unwrap()
}

fn client(bundle: Option<&Path>, origins: Vec<(&Url, HttpCredentials)>) -> HttpClient {
    HttpClient::new(Options {
        allow_private: true,
        ca_bundle: bundle.map(Path::to_owned),
        origins: origins
            .into_iter()
            .map(|(url, credentials)| (url.origin().clone(), credentials))
            .collect(),
        ..Options::default()
    })
    .unwrap()
}

async fn get(client: &HttpClient, url: &Url) -> Result<Vec<u8>, Error> {
    let response = client.send(&HttpRequest::get(url.clone())).await?;
    response.body.read_all(100).await
}

#[tokio::test]
async fn only_configured_cas_are_trusted() {
    let authority = FetchTestCa::new();
    let (port, _) = authority.server(false).await;
    let untrusted = get(&client(None, vec![]), &url(port)).await;
    assert!(matches!(untrusted, Err(Error::Tls { .. })), "{untrusted:?}");
    let known = get(&client(Some(&authority.bundle()), vec![]), &url(port)).await;
    assert_eq!(known.unwrap(), b"ok");
    // The certificate is for `localhost`, not for the address.
    let other: Url = format!("https://127.0.0.1:{port}/").parse().unwrap();
    let misnamed = get(&client(Some(&authority.bundle()), vec![]), &other).await;
    assert!(matches!(misnamed, Err(Error::Tls { .. })), "{misnamed:?}");
}

#[tokio::test]
async fn a_client_certificate_is_sent_to_its_origin_only() {
    let authority = FetchTestCa::new();
    let (cert, key) = authority.identity("builder");
    let ((ours, shown), (other, seen)) =
        (authority.server(true).await, authority.server(false).await);
    let (ours, other) = (url(ours), url(other));
    let client = client(
        Some(&authority.bundle()),
        vec![(&ours, HttpCredentials::Mtls { cert, key })],
    );
    assert_eq!(get(&client, &ours).await.unwrap(), b"ok");
    assert_eq!(get(&client, &other).await.unwrap(), b"ok");
    assert_eq!(shown.load(Ordering::SeqCst), 1);
    assert_eq!(seen.load(Ordering::SeqCst), 0);
}
