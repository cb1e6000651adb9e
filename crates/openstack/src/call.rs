//! One call: put together, sent, tried again, read.

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
/// A service that wants us to wait longer than this is asked again by whoever wanted something of it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A call that is being put together.
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
    /// Doing it twice is doing it once.
    repeatable: bool,
    /// What could not be put into it.
    flaw: Option<Error>,
}

/// A successful answer.
#[derive(Debug)]
pub struct Answer {
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
            flaw: None,
        }
    }

    /// The path below the service's address, in parts that are escaped here.
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
            Err(cause) => self.flaw = Some(self.error(ErrorKind::Setup).because(cause)),
        }
        self
    }

    #[must_use]
    pub fn body(mut self, body: &impl Serialize) -> Self {
        match serde_json::to_vec(body) {
            Ok(body) => self.body = Some(body.into()),
            Err(cause) => self.flaw = Some(self.error(ErrorKind::Setup).because(cause)),
        }
        self
    }

    /// It may be sent again although it is no method of which this is clear.
    #[must_use]
    pub fn repeatable(mut self) -> Self {
        self.repeatable = true;
        self
    }

    /// The answer as JSON.
    pub async fn json<T: DeserializeOwned>(self) -> Result<T, Error> {
        let (service, what) = (self.service, self.what.clone());
        let answer = self.answer().await?;
        read(service, &what, &answer.body)
    }

    /// As [`Call::json`]; none if there is no such thing.
    pub async fn maybe<T: DeserializeOwned>(self) -> Result<Option<T>, Error> {
        found(self.json().await)
    }

    /// Does it. What is not there is as good as deleted.
    pub async fn gone(self) -> Result<(), Error> {
        found(self.answer().await)?;
        Ok(())
    }

    pub async fn answer(mut self) -> Result<Answer, Error> {
        if let Some(flaw) = self.flaw.take() {
            return Err(flaw);
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
                // Nothing was done; the token may have ended before its time.
                Err(Failed {
                    error,
                    token: Some(token),
                    ..
                }) if error.kind() == ErrorKind::Auth && !renewed => {
                    renewed = true;
                    self.session.refuse(&token).await;
                    continue;
                }
                Err(failed) => {
                    let again = self.may_be_repeated(&failed);
                    (failed.error, again)
                }
            };
            failures += 1;
            let asked = error.retry_after();
            if !again
                || failures >= self.session.options().tries
                || asked.is_some_and(|asked| asked > PATIENCE)
            {
                return Err(error);
            }
            let delay = self.session.options().backoff.delay(failures, asked);
            tracing::debug!(%error, ?delay, "a call is tried again");
            tokio::time::sleep(delay).await;
        }
    }

    fn may_be_repeated(&self, failed: &Failed) -> bool {
        match failed.error.kind() {
            // Both say that nothing was done.
            ErrorKind::TooManyRequests => true,
            ErrorKind::Unavailable if failed.unsent => true,
            ErrorKind::Unavailable | ErrorKind::Fault => self.repeatable,
            _ => false,
        }
    }

    /// Sends a body that is made while it is sent, once and without a limit of time: dropping the future ends it.
    /// Logs in before, so that the token is as fresh as it can be.
    pub async fn stream(mut self, body: impl Into<reqwest::Body>) -> Result<Answer, Error> {
        if let Some(flaw) = self.flaw.take() {
            return Err(flaw);
        }
        let sent = self.try_once(Body::Stream(body.into()), None).await;
        match sent {
            Ok(answer) => Ok(answer),
            Err(failed) => {
                if let Some(token) = failed.token
                    && failed.error.kind() == ErrorKind::Auth
                {
                    self.session.refuse(&token).await;
                }
                Err(failed.error)
            }
        }
    }

    /// All items of a list, page after page. `key` is what the list is called in the answer.
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
                    let text = format!("there is no {key:?} in it");
                    return Err(self.error(ErrorKind::Malformed).saying(text));
                }
            };
            let last = own.is_empty();
            items.extend(own);
            let next = next_query(&page, key).filter(|_| !last);
            let Some(next) = next else {
                return Ok(items);
            };
            if !seen.insert(next.clone()) {
                let text = "its pages go round in circles";
                return Err(self.error(ErrorKind::Malformed).saying(text));
            }
            query = next;
        }
        let text = format!("it has more than {MOST_PAGES} pages");
        Err(self.error(ErrorKind::Malformed).saying(text))
    }

    async fn try_once(&self, body: Body, limit: Option<Duration>) -> Result<Answer, Failed> {
        let token = self.session.token().await.map_err(Failed::early)?;
        let request = self.request(&token, body, limit).map_err(Failed::early)?;
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
        } = answer.map_err(|cause| Failed {
            unsent: cause.unsent,
            error: self.error(ErrorKind::Unavailable).because(cause),
            token: None,
        })?;
        if !status.is_success() {
            let error = Error::answered(self.service, &self.what, status, &headers, &body);
            return Err(Failed {
                error,
                unsent: false,
                token: Some(token),
            });
        }
        Ok(Answer {
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

/// A try that came to nothing.
struct Failed {
    error: Error,
    unsent: bool,
    /// The one that was used, if the service answered.
    token: Option<std::sync::Arc<crate::auth::Token>>,
}

impl Failed {
    /// The service was not asked yet.
    fn early(error: Error) -> Self {
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
            .saying(format!("it begins with {shown:?}"))
            .because(cause)
    })
}

/// What to ask for the next page. Of the address only the question counts: behind a proxy, services do not know their own
/// name.
fn next_query(page: &HashMap<String, Box<RawValue>>, key: &str) -> Option<Vec<(String, String)>> {
    #[derive(Deserialize)]
    struct Link {
        rel: String,
        href: String,
    }
    let links = page.get(&format!("{key}_links"));
    let links: Vec<Link> = links
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
