//! Allowed addresses and credentials of requests.

use nodeyard_fetch::{HttpClient, HttpCredentials, Options, SecretSource, Url};
use nodeyard_testbeds::WebServer;
use nodeyard_testbeds::web_server::Reply;

use super::*;

fn origin_client(server: &WebServer, options: Options) -> HttpClient {
    let url: Url = server.url("/").parse().unwrap();
    let token = SecretSource::Inline("geheim".into());
    HttpClient::new(Options {
        origins: vec![(url.origin().clone(), HttpCredentials::Bearer(token))],
        ..options
    })
    .unwrap()
}

#[tokio::test]
async fn credentials_stay_with_their_origin() {
    let plain = content(200_000);
    let sent = plain.clone();
    let store = WebServer::start(move |asked| Reply::file(asked, &sent, "\"1\"")).unwrap();
    let there = store.url("/image.raw");
    let zuul =
        WebServer::start(move |_| Reply::new(302, "").with("Location", there.clone())).unwrap();
    let mut fixture = DownloadFixture::new();
    fixture.client = origin_client(
        &zuul,
        Options {
            allow_insecure: true,
            allow_private: true,
            ..Default::default()
        },
    );
    fixture.fetch(&order(&zuul.url("/artifact"))).await.unwrap();
    assert_eq!(fixture.fetched(), plain);
    let with_token = |asked: &nodeyard_testbeds::web_server::Asked| {
        asked.header("authorization") == Some("Bearer geheim")
    };
    assert!(zuul.asked().iter().all(with_token));
    assert!(!store.asked().is_empty());
    assert!(!store.asked().iter().any(with_token));
}

#[tokio::test]
async fn redirects_to_private_or_unencrypted_urls_are_rejected() {
    let inside = WebServer::start(|asked| Reply::file(asked, b"secret", "\"1\"")).unwrap();
    let there = inside.url("/metadata");
    let zuul =
        WebServer::start(move |_| Reply::new(302, "").with("Location", there.clone())).unwrap();
    let mut fixture = DownloadFixture::new();
    // The configured origin may have a private address, its redirect targets may not.
    fixture.client = origin_client(
        &zuul,
        Options {
            allow_insecure: true,
            ..Default::default()
        },
    );
    let error = fixture
        .fetch(&order(&zuul.url("/artifact")))
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            DownloadError::Fetch(nodeyard_fetch::Error::PrivateAddress { .. })
        ),
        "{error:?}"
    );
    fixture.client = origin_client(&zuul, Options::default());
    let error = fixture
        .fetch(&order(&zuul.url("/artifact")))
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            DownloadError::Fetch(nodeyard_fetch::Error::Insecure { .. })
        ),
        "{error:?}"
    );
    assert!(inside.asked().is_empty());
}

#[tokio::test]
async fn renewed_tokens_are_reloaded() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "old\n").unwrap();
    let renew = file.clone();
    let server = WebServer::start(move |asked| {
        if asked.header("authorization") == Some("Bearer new") {
            return Reply::file(asked, b"image", "\"1\"");
        }
        std::fs::write(&renew, "new\n").unwrap();
        Reply::new(401, "")
    })
    .unwrap();
    let url: Url = server.url("/").parse().unwrap();
    let mut fixture = DownloadFixture::new();
    fixture.client = HttpClient::new(Options {
        allow_insecure: true,
        origins: vec![(
            url.origin().clone(),
            HttpCredentials::Bearer(SecretSource::File(file)),
        )],
        ..Default::default()
    })
    .unwrap();
    fixture
        .fetch(&order(&server.url("/image.raw")))
        .await
        .unwrap();
    assert_eq!(fixture.fetched(), b"image");
}

#[tokio::test]
async fn redirects_are_limited() {
    let server = WebServer::start(|_| Reply::new(302, "").with("Location", "/again")).unwrap();
    let error = DownloadFixture::new()
        .fetch(&order(&server.url("/a")))
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            DownloadError::Fetch(nodeyard_fetch::Error::TooManyRedirects { .. })
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn local_configuration_errors_are_not_permanent() {
    let server = WebServer::start(|asked| Reply::file(asked, b"image", "\"1\"")).unwrap();
    let url: Url = server.url("/").parse().unwrap();
    for secret in [
        SecretSource::Env("NODEYARD_TEST_NO_SUCH_VARIABLE".into()),
        SecretSource::Inline("two\nlines".into()),
        SecretSource::File("/nowhere/token".into()),
    ] {
        let mut fixture = DownloadFixture::new();
        fixture.client = HttpClient::new(Options {
            allow_insecure: true,
            origins: vec![(url.origin().clone(), HttpCredentials::Bearer(secret))],
            ..Default::default()
        })
        .unwrap();
        let mut order = order(&server.url("/image.raw"));
        order.retries = 0;
        let error = fixture.fetch(&order).await.unwrap_err();
        assert!(!error.is_permanent(), "{error:?}");
    }
    assert!(server.asked().is_empty());
}
