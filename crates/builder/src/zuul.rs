//! HTTP clients and artifact matching for images that are imported from Zuul.

use std::path::PathBuf;

use nodeyard_config::{
    ArtifactCompression, ArtifactConfig, Auth, AuthKind, DownloadAuth, ZuulImage,
};
use nodeyard_fetch::{HttpClient, HttpCredentials, Options, Origin, SecretSource, Url};
use nodeyard_image::{Digests, Packing};
use nodeyard_zuul_api as api;
use serde_json::{Map, Value};

/// An error while creating an HTTP client from the configuration of an image.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetupError {
    #[error("invalid `api-url`")]
    Url(#[from] nodeyard_fetch::UrlError),
    #[error("invalid HTTP settings of the image")]
    HttpClient(#[from] nodeyard_fetch::Error),
}

/// Creates the client for the Zuul API. Blocks.
pub(crate) fn api_client(image: &ZuulImage) -> Result<HttpClient, SetupError> {
    client(image, credentials(&image.auth))
}

/// Creates the client for downloads. Credentials are sent to the origin of the API only, because the publisher of an artifact
/// chooses its URL. Blocks.
pub(crate) fn download_client(image: &ZuulImage) -> Result<HttpClient, SetupError> {
    let credentials = match &image.download_auth {
        DownloadAuth::None => HttpCredentials::None,
        DownloadAuth::SameOrigin => credentials(&image.auth),
        DownloadAuth::Explicit(auth) => credentials(auth),
    };
    client(image, credentials)
}

fn client(image: &ZuulImage, credentials: HttpCredentials) -> Result<HttpClient, SetupError> {
    let api: Url = image.api_url.parse()?;
    let origin: Origin = api.origin().clone();
    Ok(HttpClient::new(Options {
        allow_insecure: image.allow_insecure,
        allow_private: image.allow_private,
        origins: vec![(origin, credentials)],
        ca_bundle: image.ca_bundle.as_ref().map(PathBuf::from),
        ..Options::default()
    })?)
}

fn credentials(auth: &Auth) -> HttpCredentials {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    match auth.kind {
        AuthKind::None => HttpCredentials::None,
        AuthKind::Bearer => HttpCredentials::Bearer(match (&auth.token, &auth.token_file) {
            (Some(token), _) => SecretSource::Inline(token.0.as_str().into()),
            (None, Some(file)) => SecretSource::File(file.into()),
            (None, None) => SecretSource::Env(text(&auth.token_env).into()),
        }),
        AuthKind::Basic => HttpCredentials::Basic {
            username: text(&auth.username).into(),
            password: SecretSource::File(text(&auth.password_file).into()),
        },
        AuthKind::Mtls => HttpCredentials::Mtls {
            cert: text(&auth.cert).into(),
            key: text(&auth.key).into(),
        },
    }
}

/// Finds the artifact of a build that matches an entry of the configuration.
pub(crate) fn matching<'b>(
    build: &'b api::FinishedBuild,
    wanted: &ArtifactConfig,
) -> Option<&'b api::BuildArtifact> {
    build.artifacts.iter().find(|artifact| {
        let same = |key: &str, value: &str| artifact.text(key).as_deref() == Some(value);
        let mut metadata = wanted.metadata.iter();
        same("type", &wanted.kind)
            && wanted
                .name
                .as_ref()
                .is_none_or(|name| *name == artifact.name)
            && metadata.all(|(key, value)| same(key, value))
    })
}

/// Removes the query from a URL, which may be a signature. Returns `None` for an invalid URL.
pub(crate) fn without_query(address: &str) -> Option<Box<str>> {
    let url: Url = address.parse().ok()?;
    Some(url.without_query().into())
}

/// Returns the compression of an artifact.
pub(crate) fn packing(compression: ArtifactCompression, url: &Url) -> Packing {
    match compression {
        ArtifactCompression::Auto => Packing::of(url),
        ArtifactCompression::None => Packing::None,
        ArtifactCompression::Gzip => Packing::Gzip,
        ArtifactCompression::Xz => Packing::Xz,
        ArtifactCompression::Zst => Packing::Zstd,
        ArtifactCompression::Bzip2 => Packing::Bzip2,
    }
}

/// Returns the digests in the metadata of an artifact, under the names that Zuul uses.
pub(crate) fn promised(metadata: &Map<String, Value>) -> Digests {
    let text = |key: &str| {
        let text = metadata.get(key)?.as_str()?.trim();
        Some(Box::from(text.to_ascii_lowercase()))
    };
    Digests {
        md5: text("md5sum").or_else(|| text("md5")),
        sha256: text("sha256"),
    }
}
