//! Sends requests and receives responses; tests replace it.

use std::error::Error as StdError;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use reqwest::header::HeaderMap;
use reqwest::{Certificate, Client, Identity, Method, StatusCode, Url};

use crate::clouds::{SettingsError, Tls};

/// Enough for thousands of servers in one page.
const MAX_RESPONSE: usize = 64 << 20;
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
const AGENT: &str = concat!("nodeyard/", env!("CARGO_PKG_VERSION"));

/// Exchanges one request for one response, without retries.
#[async_trait]
pub trait Transport: fmt::Debug + Send + Sync {
    /// Returns the response, whatever its status.
    async fn send(&self, request: Request) -> Result<Response, TransportError>;
}

/// A request. Its debug output omits headers and body, which contain secrets.
pub struct Request {
    pub method: Method,
    pub url: Url,
    pub headers: HeaderMap,
    pub body: Body,
    /// The timeout of the whole exchange.
    pub limit: Option<Duration>,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.url.path())
    }
}

pub enum Body {
    Empty,
    Bytes(Bytes),
    /// Produced while it is sent, and so sent once.
    Stream(reqwest::Body),
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "Empty",
            Self::Bytes(_) => "Bytes(…)",
            Self::Stream(_) => "Stream(…)",
        })
    }
}

pub struct Response {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {} bytes", self.status, self.body.len())
    }
}

/// No response was received.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct TransportError {
    text: Box<str>,
    /// Whether the request did not reach the server, so that any may be sent again.
    pub unsent: bool,
    #[source]
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl TransportError {
    pub fn new(text: impl Into<Box<str>>, unsent: bool) -> Self {
        Self {
            text: text.into(),
            unsent,
            source: None,
        }
    }
}

/// HTTP, through the proxies that the environment names.
#[derive(Debug, Clone)]
pub struct Http(Client);

impl Http {
    /// Reads certificate files. Blocks.
    pub fn new(tls: &Tls) -> Result<Self, SettingsError> {
        let mut builder = Client::builder()
            .user_agent(AGENT)
            .connect_timeout(CONNECT_LIMIT)
            .redirect(reqwest::redirect::Policy::none());
        if let Some(path) = &tls.cacert {
            let unusable = |cause| no_certificate(path, cause);
            let certificates = Certificate::from_pem_bundle(&read(path)?).map_err(unusable)?;
            builder = builder.tls_certs_only(certificates);
        }
        if let Some((cert, key)) = &tls.identity {
            let mut pem = read(cert)?;
            if let Some(key) = key {
                pem.push(b'\n');
                pem.extend(read(key)?);
            }
            let unusable = |cause| no_certificate(cert, cause);
            builder = builder.identity(Identity::from_pem(&pem).map_err(unusable)?);
        }
        if !tls.verify {
            builder = builder.tls_danger_accept_invalid_certs(true);
        }
        let unusable = "failed to use the certificates of a cloud";
        let client = builder.build();
        let client = client.map_err(|cause| SettingsError::new(unusable).with_source(cause))?;
        Ok(Self(client))
    }
}

fn no_certificate(path: &Path, cause: reqwest::Error) -> SettingsError {
    let path = path.display();
    SettingsError::new(format!("{path} has no valid certificate or key")).with_source(cause)
}

fn read(path: &Path) -> Result<Vec<u8>, SettingsError> {
    std::fs::read(path).map_err(|cause| SettingsError::unreadable(path, cause))
}

#[async_trait]
impl Transport for Http {
    async fn send(&self, request: Request) -> Result<Response, TransportError> {
        let origin = request.url.origin().ascii_serialization();
        let broken = |cause: reqwest::Error| {
            let what = if cause.is_timeout() {
                "takes too long"
            } else if cause.is_connect() {
                "cannot be reached"
            } else {
                "broke the connection"
            };
            TransportError {
                text: format!("{origin} {what}").into(),
                unsent: cause.is_connect(),
                source: Some(cause.without_url().into()),
            }
        };
        let mut builder = self
            .0
            .request(request.method, request.url)
            .headers(request.headers);
        if let Some(limit) = request.limit {
            builder = builder.timeout(limit);
        }
        builder = match request.body {
            Body::Empty => builder,
            Body::Bytes(bytes) => builder.body(bytes),
            Body::Stream(stream) => builder.body(stream),
        };
        let mut answer = builder.send().await.map_err(broken)?;
        let mut body = BytesMut::new();
        while let Some(chunk) = answer.chunk().await.map_err(broken)? {
            if body.len() + chunk.len() > MAX_RESPONSE {
                let text = format!("the response of {origin} has more than {MAX_RESPONSE} bytes");
                return Err(TransportError::new(text, false));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Response {
            status: answer.status(),
            headers: std::mem::take(answer.headers_mut()),
            body: body.freeze(),
        })
    }
}
