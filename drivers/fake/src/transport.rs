//! Transports from a driver to its cloud: in the same process, or over HTTP.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Method, Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::cloud::{CloudError, Outcome};
use crate::world::World;

/// Enough for a list of a hundred thousand servers.
const MAX_RESPONSE: usize = 256 << 20;

/// A call without result.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("the call was refused")]
    Refused(#[source] CloudError),
    /// The call may have taken effect.
    #[error("no response")]
    NoResponse(#[source] Option<Box<dyn std::error::Error + Send + Sync>>),
    #[error("malformed response")]
    Malformed(#[source] serde_json::Error),
}

impl CallError {
    fn no_response(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::NoResponse(Some(cause.into()))
    }
}

/// Calls methods of one provider's cloud.
#[async_trait]
pub trait Transport: fmt::Debug + Send + Sync {
    /// `arguments` is the text of a JSON object. A call without result may still have taken effect.
    async fn call(&self, method: &str, arguments: Vec<u8>) -> Result<Box<RawValue>, CallError>;
}

/// A cloud in this process.
#[derive(Debug)]
pub struct InProcess {
    world: Arc<World>,
    provider: String,
}

impl InProcess {
    pub fn new(world: Arc<World>, provider: &str) -> Self {
        Self {
            world,
            provider: provider.to_owned(),
        }
    }
}

#[async_trait]
impl Transport for InProcess {
    async fn call(&self, method: &str, arguments: Vec<u8>) -> Result<Box<RawValue>, CallError> {
        match self.world.call(&self.provider, method, &arguments) {
            Outcome::Answer(Ok(reply)) => {
                if let Some(time) = reply.not_before {
                    tokio::time::sleep(time.since(self.world.clock().now())).await;
                }
                Ok(reply.result)
            }
            Outcome::Answer(Err(error)) => Err(CallError::Refused(error)),
            Outcome::Lost => Err(CallError::NoResponse(None)),
            Outcome::Hang => std::future::pending().await,
        }
    }
}

/// Connects to the cloud of `provider`: at `url` if that is set, otherwise in `world`.
pub fn connect(
    url: Option<&str>,
    world: &Arc<World>,
    provider: &str,
) -> Result<Arc<dyn Transport>, InvalidUrl> {
    Ok(match url {
        Some(url) => Arc::new(Http::new(url, provider)?),
        None => Arc::new(InProcess::new(Arc::clone(world), provider)),
    })
}

#[derive(Debug, thiserror::Error)]
pub enum InvalidUrl {
    #[error("invalid URL {url:?} of the simulated cloud: expected one like http://127.0.0.1:8080")]
    NotHttp { url: String },
    #[error("invalid URL {url:?} of the simulated cloud")]
    Malformed {
        url: String,
        #[source]
        source: hyper::http::uri::InvalidUri,
    },
}

/// A cloud behind a URL. Connections are reused.
#[derive(Debug, Clone)]
pub struct Http {
    client: Client<HttpConnector, Full<Bytes>>,
    base: String,
}

impl Http {
    /// Connects to the cloud of `provider` at `url`.
    pub fn new(url: &str, provider: &str) -> Result<Self, InvalidUrl> {
        let mut http = Self::at(url)?;
        http.base.push('/');
        http.base.push_str(&percent_encode(provider));
        Ok(http)
    }

    /// Connects to `url` itself, for calls that belong to no provider.
    pub(crate) fn at(url: &str) -> Result<Self, InvalidUrl> {
        let shown = || url.chars().take(200).collect::<String>();
        let base = url.trim_end_matches('/');
        let parsed: Uri = base.parse().map_err(|source| InvalidUrl::Malformed {
            url: shown(),
            source,
        })?;
        let plain = parsed.scheme_str() == Some("http") && parsed.query().is_none();
        if !plain || parsed.host().is_none_or(str::is_empty) {
            return Err(InvalidUrl::NotHttp { url: shown() });
        }
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(Duration::from_secs(10)));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(connector);
        Ok(Self {
            client,
            base: base.to_owned(),
        })
    }
}

#[async_trait]
impl Transport for Http {
    async fn call(&self, method: &str, arguments: Vec<u8>) -> Result<Box<RawValue>, CallError> {
        #[derive(Deserialize)]
        struct Success {
            result: Box<RawValue>,
        }
        #[derive(Deserialize)]
        struct Refusal {
            error: CloudError,
        }
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}/{}", self.base, percent_encode(method)))
            .header(hyper::header::CONTENT_TYPE, "application/json")
            .body(Full::from(arguments))
            .map_err(CallError::no_response)?;
        let response = self
            .client
            .request(request)
            .await
            .map_err(CallError::no_response)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE)
            .collect()
            .await
            .map_err(|cause| CallError::NoResponse(Some(cause)))?
            .to_bytes();
        if status.is_success() {
            let success: Success = serde_json::from_slice(&body).map_err(CallError::Malformed)?;
            return Ok(success.result);
        }
        let refusal: Refusal = serde_json::from_slice(&body).map_err(CallError::Malformed)?;
        Err(CallError::Refused(CloudError {
            status: status.as_u16(),
            ..refusal.error
        }))
    }
}

/// Names of providers may contain anything but a slash.
fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}
