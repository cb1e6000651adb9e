//! The same over TLS.

use std::path::Path;
use std::sync::Arc;

use nodeyard_config::ApiTls;
use nodeyard_http_api::HttpApi;
use nodeyard_testbeds::{Certificates, Identity};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::client::raw;
use crate::testbed::{Store, Testbed, configuration, until};

fn connector(ca: &Path, identity: Option<&Identity>) -> TlsConnector {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(ca).unwrap())
        .unwrap();
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = vec![CertificateDer::from_pem_file(&identity.cert).unwrap()];
            let key = PrivateKeyDer::from_pem_file(&identity.key).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    TlsConnector::from(Arc::new(config))
}

async fn get(testbed: &Testbed, connector: &TlsConnector) -> std::io::Result<String> {
    let stream = TcpStream::connect(testbed.address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = connector.connect(name, stream).await?;
    stream
        .write_all(b"GET /api/v1/info HTTP/1.0\r\n\r\n")
        .await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

async fn testbed(store: &Store, tls: ApiTls) -> Testbed {
    let mut config = configuration("");
    config.api.tls = Some(tls);
    Testbed::on(store.engine.session(), config, None).await
}

fn tls(identity: &Identity, client_ca: Option<&Path>) -> ApiTls {
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    ApiTls {
        cert: text(&identity.cert),
        key: text(&identity.key),
        client_ca: client_ca.map(text),
    }
}

#[tokio::test]
async fn tls_with_and_without_client_certificates() {
    let store = Store::new();
    let files = Certificates::create(store.directory.path()).unwrap();
    let open = testbed(&store, tls(&files.server, None)).await;
    let answer = get(&open, &connector(&files.ca, None)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    assert!(
        get(&open, &connector(&files.foreign_ca, None))
            .await
            .is_err()
    );
    // Without TLS there is no answer, and nobody else is disturbed.
    assert!(
        raw(open.address, b"GET /api/v1/info HTTP/1.0\r\n\r\n")
            .await
            .is_err()
    );

    let closed = testbed(&store, tls(&files.server, Some(&files.ca))).await;
    let known = connector(&files.ca, Some(&files.client));
    let answer = get(&closed, &known).await.unwrap();
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    for stranger in [None, Some(&files.foreign_client)] {
        let answer = get(&closed, &connector(&files.ca, stranger)).await;
        assert!(!answer.is_ok_and(|answer| answer.contains("200")));
    }
}

#[tokio::test]
async fn a_renewed_certificate_is_loaded_without_a_restart() {
    let store = Store::new();
    let old = Certificates::create(&store.directory.path().join("old")).unwrap();
    let new = Certificates::create(&store.directory.path().join("new")).unwrap();
    let testbed = testbed(&store, tls(&old.server, None)).await;
    get(&testbed, &connector(&old.ca, None)).await.unwrap();
    // As who renews them does: written aside, and moved one after the other.
    std::fs::rename(&new.server.cert, &old.server.cert).unwrap();
    std::fs::rename(&new.server.key, &old.server.key).unwrap();
    let client = connector(&new.ca, None);
    until("the new certificate is shown", async || {
        get(&testbed, &client).await.is_ok()
    })
    .await;
    assert!(get(&testbed, &connector(&old.ca, None)).await.is_err());
}

#[tokio::test]
async fn invalid_tls_files_are_named() {
    let store = Store::new();
    let files = Certificates::create(store.directory.path()).unwrap();
    let absent = Identity {
        cert: store.directory.path().join("absent"),
        ..files.server.clone()
    };
    let mixed = Identity {
        key: files.client.key.clone(),
        ..files.server.clone()
    };
    let text = Identity {
        cert: files.server.key.clone(),
        ..files.server.clone()
    };
    for (identity, named) in [(&absent, "absent"), (&mixed, ""), (&text, "server.key.pem")] {
        let error = attempt(&store, tls(identity, None)).await;
        assert!(error.contains(named), "{error}");
    }
}

/// Everything that is said about why there is no server.
async fn attempt(store: &Store, tls: ApiTls) -> String {
    let mut config = configuration("");
    config.api.tls = Some(tls);
    let sources = crate::testbed::sources(store.engine.session(), config, None);
    let error = HttpApi::bind(sources).await.unwrap_err();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
