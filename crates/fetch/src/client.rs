//! The client: sends requests, follows redirects, and enforces which addresses may be contacted.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{
    ACCEPT_ENCODING, AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, USER_AGENT,
};
use hyper::{Method, StatusCode};
use rustls::RootCertStore;

use crate::body::ResponseBody;
use crate::connect;
use crate::credentials::HttpCredentials;
use crate::error::Error;
use crate::url::{Origin, Url, UrlError};

pub(crate) type EmptyBody = Empty<Bytes>;
/// An open connection without a request in progress.
pub(crate) type IdleConnection = SendRequest<EmptyBody>;

const MAX_REDIRECTS: usize = 10;
/// The maximum number of idle connections to one origin.
const MAX_IDLE_PER_ORIGIN: usize = 16;
const PRODUCT: &str = concat!("nodeyard/", env!("CARGO_PKG_VERSION"));

#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Whether `http` is allowed.
    pub allow_insecure: bool,
    /// Whether addresses of private networks are allowed for every origin.
    pub allow_private: bool,
    /// Configured origins with their credentials. They may have private addresses.
    pub origins: Vec<(Origin, HttpCredentials)>,
    /// A file with additional trusted CA certificates.
    pub ca_bundle: Option<PathBuf>,
    /// Timeout for a response to begin and for each chunk of its body; 60 s if zero.
    pub read_timeout: Duration,
}

/// An HTTP client. Clones share their connections.
#[derive(Debug, Clone)]
pub struct HttpClient {
    inner: Arc<HttpClientInner>,
}

#[derive(Debug)]
struct HttpClientInner {
    options: Options,
    roots: Arc<RootCertStore>,
    pool: Arc<ConnectionPool>,
}

/// Idle connections by origin.
#[derive(Debug, Default)]
pub(crate) struct ConnectionPool(Mutex<HashMap<Origin, Vec<IdleConnection>>>);

impl ConnectionPool {
    pub(crate) fn put(&self, origin: &Origin, connection: IdleConnection) {
        let mut pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = pool.entry(origin.clone()).or_default();
        idle.retain(|connection| !connection.is_closed());
        if idle.len() < MAX_IDLE_PER_ORIGIN {
            idle.push(connection);
        }
    }

    fn take(&self, origin: &Origin) -> Option<IdleConnection> {
        let mut pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pool.get_mut(origin)?.pop()
    }
}

#[derive(Debug, Clone)]
pub struct HttpRequest {
    pub method: Method,
    pub url: Url,
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl HttpRequest {
    pub fn get(url: Url) -> Self {
        Self {
            method: Method::GET,
            url,
            headers: Vec::new(),
        }
    }

    pub fn head(url: Url) -> Self {
        Self {
            method: Method::HEAD,
            ..Self::get(url)
        }
    }

    /// Adds a header. Ignores a value that is not valid in a header.
    #[must_use]
    pub fn with(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.push((name, value));
        }
        self
    }
}

#[derive(Debug)]
pub struct HttpResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: ResponseBody,
}

impl HttpResponse {
    /// Returns a header's value if it is text.
    pub fn header(&self, name: &HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the URL that responded, after redirects.
    pub fn url(&self) -> &Url {
        &self.body.url
    }
}

impl HttpClient {
    /// Creates a client and loads the trusted certificates. Blocks.
    pub fn new(mut options: Options) -> Result<Self, Error> {
        if options.read_timeout.is_zero() {
            options.read_timeout = Duration::from_secs(60);
        }
        let roots = Arc::new(connect::load_roots(options.ca_bundle.as_deref())?);
        Ok(Self {
            inner: Arc::new(HttpClientInner {
                options,
                roots,
                pool: Arc::default(),
            }),
        })
    }

    /// Sends a request and follows redirects. Returns responses of any status.
    ///
    /// On 401 and 403 the credentials are reloaded once and the request is repeated, as they may have been renewed.
    pub async fn send(&self, request: &HttpRequest) -> Result<HttpResponse, Error> {
        let mut url = request.url.clone();
        let mut refused = false;
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send_once(request, &url).await?;
            match response.status {
                StatusCode::MOVED_PERMANENTLY
                | StatusCode::FOUND
                | StatusCode::SEE_OTHER
                | StatusCode::TEMPORARY_REDIRECT
                | StatusCode::PERMANENT_REDIRECT => {
                    let location = response.header(&LOCATION);
                    let location =
                        location.ok_or_else(|| Error::MissingLocation { url: url.clone() })?;
                    url = url.join(location)?;
                }
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN
                    if !refused && self.has_secret(url.origin()) =>
                {
                    refused = true;
                }
                _ => return Ok(response),
            }
        }
        Err(Error::TooManyRedirects {
            url: request.url.clone(),
            limit: MAX_REDIRECTS,
        })
    }

    /// Returns the credentials configured for an origin.
    fn credentials_for(&self, origin: &Origin) -> Option<&HttpCredentials> {
        let mut origins = self.inner.options.origins.iter();
        origins
            .find(|(known, _)| known == origin)
            .map(|(_, credentials)| credentials)
    }

    fn has_secret(&self, origin: &Origin) -> bool {
        let known = self.credentials_for(origin);
        known.is_some_and(|credentials| *credentials != HttpCredentials::None)
    }

    async fn send_once(&self, request: &HttpRequest, url: &Url) -> Result<HttpResponse, Error> {
        let origin = url.origin();
        if !origin.secure && !self.inner.options.allow_insecure {
            return Err(Error::Insecure { url: url.clone() });
        }
        let known = self.credentials_for(origin);
        let authorization = match known {
            Some(credentials) => credentials.authorization().await?,
            None => None,
        };
        // The server may have closed an idle connection; then a new one is opened.
        if let Some(mut idle) = self.inner.pool.take(origin)
            && idle.ready().await.is_ok()
            && let Ok(response) = self
                .send_on(request, url, authorization.as_ref(), idle)
                .await
        {
            return Ok(response);
        }
        let allow_private = self.inner.options.allow_private || known.is_some();
        let connection = connect::open(
            origin,
            &self.inner.roots,
            known.unwrap_or(&HttpCredentials::None),
            allow_private,
        )
        .await?;
        self.send_on(request, url, authorization.as_ref(), connection)
            .await
    }

    async fn send_on(
        &self,
        request: &HttpRequest,
        url: &Url,
        authorization: Option<&HeaderValue>,
        mut connection: IdleConnection,
    ) -> Result<HttpResponse, Error> {
        let mut message = hyper::Request::new(EmptyBody::new());
        *message.method_mut() = request.method.clone();
        *message.uri_mut() = url
            .target()
            .parse()
            .map_err(|_| UrlError::new("invalid characters in path or query"))?;
        let headers = message.headers_mut();
        if let Ok(host) = HeaderValue::from_str(&url.origin().authority()) {
            headers.insert(HOST, host);
        }
        headers.insert(USER_AGENT, HeaderValue::from_static(PRODUCT));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        for (name, value) in &request.headers {
            headers.insert(name.clone(), value.clone());
        }
        if let Some(authorization) = authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let read_timeout = self.inner.options.read_timeout;
        let response = tokio::time::timeout(read_timeout, connection.send_request(message)).await;
        let response: hyper::Response<Incoming> = response
            .map_err(|_| Error::TimedOut {
                origin: url.origin().clone(),
                what: "answer",
                seconds: read_timeout.as_secs(),
            })?
            .map_err(|source| Error::ConnectionFailed {
                origin: url.origin().clone(),
                source,
            })?;
        let (parts, incoming) = response.into_parts();
        Ok(HttpResponse {
            status: parts.status,
            headers: parts.headers,
            body: ResponseBody {
                incoming,
                url: url.clone(),
                rest: None,
                read_timeout,
                connection: Some(connection),
                pool: Arc::clone(&self.inner.pool),
            },
        })
    }
}
