//! Requests and where they may go.

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

use crate::body::Body;
use crate::connect;
use crate::credentials::Credentials;
use crate::error::Error;
use crate::url::{BadUrl, Origin, Url};

pub(crate) type NoBody = Empty<Bytes>;
/// A connection between two requests.
pub(crate) type Idle = SendRequest<NoBody>;

const MOST_REDIRECTS: usize = 10;
/// Idle connections that are kept for one origin.
const MOST_IDLE: usize = 16;
const AGENT: &str = concat!("nodeyard/", env!("CARGO_PKG_VERSION"));

#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Whether `http` is allowed.
    pub allow_insecure: bool,
    /// Whether addresses of private networks are allowed for everybody.
    pub allow_private: bool,
    /// Origins that the configuration names: they may be anywhere, and each gets its own credentials.
    pub origins: Vec<(Origin, Credentials)>,
    /// A file with further certificates to trust.
    pub ca_bundle: Option<PathBuf>,
    /// How long a server may take to answer, and between two pieces of an answer; 60 s if zero.
    pub quiet: Duration,
}

/// Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: Options,
    roots: Arc<RootCertStore>,
    pool: Arc<Pool>,
}

/// Connections between two requests.
#[derive(Debug, Default)]
pub(crate) struct Pool(Mutex<HashMap<Origin, Vec<Idle>>>);

impl Pool {
    pub(crate) fn put(&self, origin: &Origin, connection: Idle) {
        let mut pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = pool.entry(origin.clone()).or_default();
        idle.retain(|connection| !connection.is_closed());
        if idle.len() < MOST_IDLE {
            idle.push(connection);
        }
    }

    fn take(&self, origin: &Origin) -> Option<Idle> {
        let mut pool = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pool.get_mut(origin)?.pop()
    }
}

#[derive(Debug, Clone)]
pub struct Request {
    pub method: Method,
    pub url: Url,
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl Request {
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

    /// With one more header; a value that no header can have is left out.
    #[must_use]
    pub fn with(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.push((name, value));
        }
        self
    }
}

#[derive(Debug)]
pub struct Response {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Body,
}

impl Response {
    /// A header, if it is text.
    pub fn header(&self, name: &HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Who has answered, after all redirects.
    pub fn url(&self) -> &Url {
        &self.body.url
    }
}

impl Client {
    /// Reads the certificates that are trusted. Blocks.
    pub fn new(mut options: Options) -> Result<Self, Error> {
        if options.quiet.is_zero() {
            options.quiet = Duration::from_secs(60);
        }
        let roots = Arc::new(connect::roots(options.ca_bundle.as_deref())?);
        Ok(Self {
            shared: Arc::new(Shared {
                options,
                roots,
                pool: Arc::default(),
            }),
        })
    }

    /// Sends a request and follows where it is redirected. An answer of any status is an answer.
    ///
    /// If credentials were refused they are read once more: they may have been renewed meanwhile.
    pub async fn send(&self, request: &Request) -> Result<Response, Error> {
        let mut url = request.url.clone();
        let mut refused = false;
        for _ in 0..=MOST_REDIRECTS {
            let response = self.ask(request, &url).await?;
            match response.status {
                StatusCode::MOVED_PERMANENTLY
                | StatusCode::FOUND
                | StatusCode::SEE_OTHER
                | StatusCode::TEMPORARY_REDIRECT
                | StatusCode::PERMANENT_REDIRECT => {
                    let location = response.header(&LOCATION);
                    let location =
                        location.ok_or_else(|| Error::NoLocation { url: url.clone() })?;
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
        Err(Error::Redirects {
            url: request.url.clone(),
            limit: MOST_REDIRECTS,
        })
    }

    /// The credentials of an origin that the configuration names.
    fn known(&self, origin: &Origin) -> Option<&Credentials> {
        let mut origins = self.shared.options.origins.iter();
        origins
            .find(|(known, _)| known == origin)
            .map(|(_, credentials)| credentials)
    }

    fn has_secret(&self, origin: &Origin) -> bool {
        let known = self.known(origin);
        known.is_some_and(|credentials| *credentials != Credentials::None)
    }

    async fn ask(&self, request: &Request, url: &Url) -> Result<Response, Error> {
        let origin = url.origin();
        if !origin.secure && !self.shared.options.allow_insecure {
            return Err(Error::Insecure { url: url.clone() });
        }
        let known = self.known(origin);
        let authorization = match known {
            Some(credentials) => credentials.authorization().await?,
            None => None,
        };
        // A connection that was idle may have been closed by the server just now; a new one is tried then.
        if let Some(mut idle) = self.shared.pool.take(origin)
            && idle.ready().await.is_ok()
            && let Ok(response) = self
                .exchange(request, url, authorization.as_ref(), idle)
                .await
        {
            return Ok(response);
        }
        let any_address = self.shared.options.allow_private || known.is_some();
        let connection = connect::open(
            origin,
            &self.shared.roots,
            known.unwrap_or(&Credentials::None),
            any_address,
        )
        .await?;
        self.exchange(request, url, authorization.as_ref(), connection)
            .await
    }

    async fn exchange(
        &self,
        request: &Request,
        url: &Url,
        authorization: Option<&HeaderValue>,
        mut connection: Idle,
    ) -> Result<Response, Error> {
        let mut message = hyper::Request::new(NoBody::new());
        *message.method_mut() = request.method.clone();
        *message.uri_mut() = url.target().parse().map_err(|_| {
            BadUrl::new("its path or query has characters that no request can have")
        })?;
        let headers = message.headers_mut();
        if let Ok(host) = HeaderValue::from_str(&url.origin().authority()) {
            headers.insert(HOST, host);
        }
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        for (name, value) in &request.headers {
            headers.insert(name.clone(), value.clone());
        }
        if let Some(authorization) = authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        let quiet = self.shared.options.quiet;
        let answer = tokio::time::timeout(quiet, connection.send_request(message)).await;
        let answer: hyper::Response<Incoming> = answer
            .map_err(|_| Error::TimedOut {
                origin: url.origin().clone(),
                what: "answer",
                seconds: quiet.as_secs(),
            })?
            .map_err(|source| Error::Broken {
                origin: url.origin().clone(),
                source,
            })?;
        let (parts, incoming) = answer.into_parts();
        Ok(Response {
            status: parts.status,
            headers: parts.headers,
            body: Body {
                incoming,
                url: url.clone(),
                rest: None,
                quiet,
                connection: Some(connection),
                pool: Arc::clone(&self.shared.pool),
            },
        })
    }
}
