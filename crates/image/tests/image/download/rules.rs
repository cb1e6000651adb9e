//! Where requests may go, and what they may carry.

use nodeyard_fetch::{Client, Credentials, Options, Secret, Url};
use nodeyard_testbeds::WebServer;
use nodeyard_testbeds::web_server::Reply;

use super::*;

fn origin_client(server: &WebServer, options: Options) -> Client {
    let url: Url = server.url("/").parse().unwrap();
    let token = Secret::Inline("geheim".into());
    Client::new(Options {
        origins: vec![(url.origin().clone(), Credentials::Bearer(token))],
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
    let mut bed = Bed::new();
    bed.client = origin_client(
        &zuul,
        Options {
            allow_insecure: true,
            allow_private: true,
            ..Default::default()
        },
    );
    bed.fetch(&order(&zuul.url("/artifact"))).await.unwrap();
    assert_eq!(bed.fetched(), plain);
    let with_token = |asked: &nodeyard_testbeds::web_server::Asked| {
        asked.header("authorization") == Some("Bearer geheim")
    };
    assert!(zuul.asked().iter().all(with_token));
    assert!(!store.asked().is_empty());
    assert!(!store.asked().iter().any(with_token));
}

#[tokio::test]
async fn a_redirect_leads_to_no_private_address_and_out_of_no_encryption() {
    let inside = WebServer::start(|asked| Reply::file(asked, b"secret", "\"1\"")).unwrap();
    let there = inside.url("/metadata");
    let zuul =
        WebServer::start(move |_| Reply::new(302, "").with("Location", there.clone())).unwrap();
    let mut bed = Bed::new();
    // The origin that is configured may be on this host; where it points to may not.
    bed.client = origin_client(
        &zuul,
        Options {
            allow_insecure: true,
            ..Default::default()
        },
    );
    let error = bed.fetch(&order(&zuul.url("/artifact"))).await.unwrap_err();
    assert!(
        matches!(
            error,
            DownloadError::Fetch(nodeyard_fetch::Error::Private { .. })
        ),
        "{error:?}"
    );
    bed.client = origin_client(&zuul, Options::default());
    let error = bed.fetch(&order(&zuul.url("/artifact"))).await.unwrap_err();
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
async fn a_token_that_was_renewed_is_read_again() {
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
    let mut bed = Bed::new();
    bed.client = Client::new(Options {
        allow_insecure: true,
        origins: vec![(
            url.origin().clone(),
            Credentials::Bearer(Secret::File(file)),
        )],
        ..Default::default()
    })
    .unwrap();
    bed.fetch(&order(&server.url("/image.raw"))).await.unwrap();
    assert_eq!(bed.fetched(), b"image");
}

#[tokio::test]
async fn redirects_end() {
    let server = WebServer::start(|_| Reply::new(302, "").with("Location", "/again")).unwrap();
    let error = Bed::new()
        .fetch(&order(&server.url("/a")))
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            DownloadError::Fetch(nodeyard_fetch::Error::Redirects { .. })
        ),
        "{error:?}"
    );
}

#[tokio::test]
async fn what_is_wrong_with_our_own_settings_says_nothing_about_the_file() {
    let server = WebServer::start(|asked| Reply::file(asked, b"image", "\"1\"")).unwrap();
    let url: Url = server.url("/").parse().unwrap();
    for secret in [
        Secret::Env("NODEYARD_TEST_NO_SUCH_VARIABLE".into()),
        Secret::Inline("two\nlines".into()),
        Secret::File("/nowhere/token".into()),
    ] {
        let mut bed = Bed::new();
        bed.client = Client::new(Options {
            allow_insecure: true,
            origins: vec![(url.origin().clone(), Credentials::Bearer(secret))],
            ..Default::default()
        })
        .unwrap();
        let mut order = order(&server.url("/image.raw"));
        order.retries = 0;
        let error = bed.fetch(&order).await.unwrap_err();
        assert!(!error.is_permanent(), "{error:?}");
    }
    assert!(server.asked().is_empty());
}
