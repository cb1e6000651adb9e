//! Building, sending and retrying one call, and decoding its response.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use nodeyard_driver::CallClass;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, StatusCode, Url};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::{Error, ErrorKind};
use crate::service::Service;
use crate::session::Session;
use crate::transport::{Body, Request, Response};

/// More pages than any list has.
const MOST_PAGES: usize = 1000;
/// If a service asks for a longer pause than this, the call fails instead of waiting.
const PATIENCE: Duration = Duration::from_secs(60);

/// A builder of one call.
#[derive(Debug)]
pub struct Call<'s> {
    session: &'s Session,
    service: Service,
    method: Method,
    what: Box<str>,
    path: Vec<String>,
    query: Vec<(String, String)>,
    headers: HeaderMap,
    body: Option<Bytes>,
    /// Whether the call is idempotent.
    repeatable: bool,
    /// The first error of the builder.
    build_error: Option<Error>,
}

/// A successful response.
#[derive(Debug)]
pub struct CallResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl<'s> Call<'s> {
    pub(crate) fn new(
        session: &'s Session,
        service: Service,
        method: Method,
        what: Box<str>,
    ) -> Self {
        Self {
            session,
            service,
            repeatable: method != Method::POST && method != Method::PATCH,
            method,
            what,
            path: Vec::new(),
            query: Vec::new(),
            headers: HeaderMap::new(),
            body: None,
            build_error: None,
        }
    }

    /// Adds segments to the path below the endpoint of the service. They are escaped here.
    #[must_use]
    pub fn path<'p>(mut self, parts: impl IntoIterator<Item = &'p str>) -> Self {
        self.path.extend(parts.into_iter().map(ToOwned::to_owned));
        self
    }

    #[must_use]
    pub fn query(mut self, key: &str, value: &str) -> Self {
        self.query.push((key.to_owned(), value.to_owned()));
        self
    }

    #[must_use]
    pub fn header(mut self, name: HeaderName, value: &str) -> Self {
        match HeaderValue::from_str(value) {
            Ok(value) => {
                self.headers.insert(name, value);
            }
            Err(cause) => self.build_error = Some(self.error(ErrorKind::Setup).because(cause)),
        }
        self
    }

    #[must_use]
    pub fn body(mut self, body: &impl Serialize) -> Self {
        match serde_json::to_vec(body) {
            Ok(body) => self.body = Some(body.into()),
            Err(cause) => self.build_error = Some(self.error(ErrorKind::Setup).because(cause)),
        }
        self
    }

    /// Declares a call idempotent whose method is not.
    #[must_use]
    pub(crate) fn repeatable(mut self) -> Self {
        self.repeatable = true;
        self
    }

    /// Sends the call and decodes the response as JSON.
    pub async fn json<T: DeserializeOwned>(self) -> Result<T, Error> {
        let (service, what) = (self.service, self.what.clone());
        let answer = self.send().await?;
        read(service, &what, &answer.body)
    }

    /// Like [`Call::json`], but returns None if the resource does not exist.
    pub(crate) async fn json_if_found<T: DeserializeOwned>(self) -> Result<Option<T>, Error> {
        found(self.json().await)
    }

    /// Sends the call. Succeeds if the resource does not exist.
    pub(crate) async fn send_ignoring_missing(self) -> Result<(), Error> {
        found(self.send().await)?;
        Ok(())
    }

    /// Sends the call.
    pub async fn send(mut self) -> Result<CallResponse, Error> {
        if let Some(build_error) = self.build_error.take() {
            return Err(build_error);
        }
        if self.body.is_some() {
            let json = HeaderValue::from_static("application/json");
            self.headers.entry(CONTENT_TYPE).or_insert(json);
        }
        let mut failures = 0;
        let mut renewed = false;
        loop {
            let body = self.body.clone().map_or(Body::Empty, Body::Bytes);
            let limit = Some(self.session.options().limit);
            let (error, again) = match self.try_once(body, limit).await {
                Ok(answer) => return Ok(answer),
                // The token may have been revoked before it expired.
                Err(FailedAttempt {
                    error,
                    token: Some(token),
                    ..
                }) if error.kind() == ErrorKind::Auth && !renewed => {
                    renewed = true;
                    self.session.discard_token(&token).await;
                    continue;
                }
                Err(failed) => {
                    let again = self.may_be_repeated(&failed);
                    (failed.error, again)
                }
            };
            failures += 1;
            let pause = error.retry_after();
            if !again
                || failures >= self.session.options().tries
                || pause.is_some_and(|pause| pause > PATIENCE)
            {
                return Err(error);
            }
            let delay = self.session.options().backoff.delay(failures, pause);
            tracing::debug!(%error, ?delay, "call failed; retrying");
            tokio::time::sleep(delay).await;
        }
    }

    fn may_be_repeated(&self, failed: &FailedAttempt) -> bool {
        match failed.error.kind() {
            // Neither has had an effect.
            ErrorKind::TooManyRequests => true,
            ErrorKind::Unavailable if failed.unsent => true,
            ErrorKind::Unavailable | ErrorKind::Fault => self.repeatable,
            _ => false,
        }
    }

    /// Sends a streamed body, once and without a time limit: dropping the future ends the call.
    pub async fn stream(mut self, body: impl Into<reqwest::Body>) -> Result<CallResponse, Error> {
        if let Some(build_error) = self.build_error.take() {
            return Err(build_error);
        }
        let sent = self.try_once(Body::Stream(body.into()), None).await;
        match sent {
            Ok(answer) => Ok(answer),
            Err(failed) => {
                if let Some(token) = failed.token
                    && failed.error.kind() == ErrorKind::Auth
                {
                    self.session.discard_token(&token).await;
                }
                Err(failed.error)
            }
        }
    }

    /// Fetches all pages of a list. `key` is the name of the list in the response.
    pub async fn list<T: DeserializeOwned>(self, key: &str) -> Result<Vec<T>, Error> {
        let mut items = Vec::new();
        let mut seen = HashSet::new();
        let mut query = self.query.clone();
        for _ in 0..MOST_PAGES {
            let page = Call {
                query: query.clone(),
                path: self.path.clone(),
                headers: self.headers.clone(),
                ..Call::new(self.session, self.service, Method::GET, self.what.clone())
            };
            let mut page: HashMap<String, Box<RawValue>> = page.json().await?;
            let malformed = |cause| self.error(ErrorKind::Malformed).because(cause);
            let own: Vec<T> = match page.remove(key) {
                Some(list) => serde_json::from_str(list.get()).map_err(malformed)?,
                None => {
                    let text = format!("the response has no {key:?}");
                    return Err(self.error(ErrorKind::Malformed).with_message(text));
                }
            };
            let last = own.is_empty();
            items.extend(own);
            let next = next_query(&page, key).filter(|_| !last);
            let Some(next) = next else {
                return Ok(items);
            };
            if !seen.insert(next.clone()) {
                let text = "its pages form a loop";
                return Err(self.error(ErrorKind::Malformed).with_message(text));
            }
            query = next;
        }
        let text = format!("it has more than {MOST_PAGES} pages");
        Err(self.error(ErrorKind::Malformed).with_message(text))
    }

    async fn try_once(
        &self,
        body: Body,
        limit: Option<Duration>,
    ) -> Result<CallResponse, FailedAttempt> {
        let token = self
            .session
            .token()
            .await
            .map_err(FailedAttempt::before_sending)?;
        let request = self
            .request(&token, body, limit)
            .map_err(FailedAttempt::before_sending)?;
        let class = match self.method {
            Method::GET | Method::HEAD => CallClass::Read,
            Method::DELETE => CallClass::Delete,
            _ => CallClass::Create,
        };
        self.session.turn(self.service, class).await;
        let answer = self.session.transport().send(request).await;
        let Response {
            status,
            headers,
            body,
        } = answer.map_err(|cause| FailedAttempt {
            unsent: cause.unsent,
            error: self.error(ErrorKind::Unavailable).because(cause),
            token: None,
        })?;
        if !status.is_success() {
            let error = Error::from_response(self.service, &self.what, status, &headers, &body);
            return Err(FailedAttempt {
                error,
                unsent: false,
                token: Some(token),
            });
        }
        Ok(CallResponse {
            status,
            headers,
            body,
        })
    }

    fn request(
        &self,
        token: &crate::auth::Token,
        body: Body,
        limit: Option<Duration>,
    ) -> Result<Request, Error> {
        let mut url = self.session.endpoint(token, self.service, &self.what)?;
        if let Ok(mut path) = url.path_segments_mut() {
            path.extend(&self.path);
        }
        if !self.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&self.query);
        }
        let mut headers = self.headers.clone();
        headers.insert("x-auth-token", token.header.clone());
        headers
            .entry(ACCEPT)
            .or_insert(HeaderValue::from_static("application/json"));
        for (name, value) in self.service.headers() {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        Ok(Request {
            method: self.method.clone(),
            url,
            headers,
            body,
            limit,
        })
    }

    fn error(&self, kind: ErrorKind) -> Error {
        Error::new(kind, self.service, self.what.clone())
    }
}

/// A failed attempt.
struct FailedAttempt {
    error: Error,
    unsent: bool,
    /// The token of the attempt, if the service responded.
    token: Option<std::sync::Arc<crate::auth::Token>>,
}

impl FailedAttempt {
    /// An error before the request was sent.
    fn before_sending(error: Error) -> Self {
        Self {
            unsent: true,
            error,
            token: None,
        }
    }
}

fn found<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(thing) => Ok(Some(thing)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn read<T: DeserializeOwned>(service: Service, what: &str, body: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|cause| {
        let shown: String = String::from_utf8_lossy(body).chars().take(80).collect();
        Error::new(ErrorKind::Malformed, service, what)
            .with_message(format!("it begins with {shown:?}"))
            .because(cause)
    })
}

/// Returns the query of the next page. The rest of its URL is ignored: behind a proxy, services do not know their own name.
fn next_query(page: &HashMap<String, Box<RawValue>>, key: &str) -> Option<Vec<(String, String)>> {
    #[derive(Deserialize)]
    struct PageLink {
        rel: String,
        href: String,
    }
    let links = page.get(&format!("{key}_links"));
    let links: Vec<PageLink> = links
        .and_then(|links| serde_json::from_str(links.get()).ok())
        .unwrap_or_default();
    let linked = links.into_iter().find(|link| link.rel == "next");
    let next = linked.map(|link| link.href).or_else(|| {
        let next = page.get("next")?;
        serde_json::from_str(next.get()).ok()
    })?;
    let base: Url = "http://page/".parse().ok()?;
    let url = base.join(&next).ok()?;
    let pairs: Vec<_> = url.query_pairs().into_owned().collect();
    (!pairs.is_empty()).then_some(pairs)
}
