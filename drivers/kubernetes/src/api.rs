//! Calls of the API server by path and JSON, each with a timeout and classified errors.
//!
//! Requests are untyped JSON, so that a pod specification of the configuration keeps all of its keys, also those of newer
//! Kubernetes versions. Responses are typed.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Method, Request};
use kube::Client;
use kube::core::Status;
use nodeyard_driver::Error;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use crate::failure::driver_error;

const CONFLICT: u16 = 409;
const FORBIDDEN: u16 = 403;
const NOT_FOUND: u16 = 404;
const UNAUTHORIZED: u16 = 401;

/// Items per page of a list.
const PAGE: usize = 500;

/// A client with a timeout.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) client: Client,
    pub(crate) limit: Duration,
    /// Set when the cluster has rejected the credentials.
    pub(crate) stale: Arc<AtomicBool>,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Api")
    }
}

/// Options of a deletion.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct DeleteOptions<'a> {
    /// Only the object with this uid.
    pub(crate) uid: Option<&'a str>,
    /// Only if the object still has this version.
    pub(crate) version: Option<&'a str>,
    /// Seconds until a pod is killed.
    pub(crate) grace: Option<u32>,
    pub(crate) foreground: bool,
}

/// The result of a creation.
#[derive(Debug)]
pub(crate) enum CreateOutcome<T> {
    New(T),
    /// The name is taken.
    Exists,
}

#[derive(Deserialize)]
struct ListPage<T> {
    #[serde(default = "Vec::new")]
    items: Vec<T>,
    #[serde(default)]
    metadata: ListMetadata,
}

#[derive(Deserialize, Default)]
struct ListMetadata {
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

impl Api {
    pub(crate) fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed)
    }

    async fn call<T: DeserializeOwned>(
        &self,
        what: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Result<T, Box<Status>>, Error> {
        let bytes = body.map(|body| body.to_string().into_bytes());
        let content = if method == Method::PATCH {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, content)
            .body(bytes.unwrap_or_default())
            .map_err(|cause| driver_error(what, kube::Error::HttpError(cause)))?;
        let answer = timeout(self.limit, self.client.request::<T>(request)).await;
        match answer {
            Ok(Ok(answer)) => Ok(Ok(answer)),
            Ok(Err(kube::Error::Api(status))) => {
                if status.code == UNAUTHORIZED {
                    self.stale.store(true, Ordering::Relaxed);
                }
                Ok(Err(status))
            }
            Ok(Err(error)) => Err(driver_error(what, error)),
            Err(_) => Err(Error::retry(format!(
                "failed to {what}: the API server did not respond within {} s",
                self.limit.as_secs()
            ))),
        }
    }

    pub(crate) async fn create<T: DeserializeOwned>(
        &self,
        what: &str,
        path: &str,
        body: &Value,
    ) -> Result<CreateOutcome<T>, Error> {
        match self.call(what, Method::POST, path, Some(body)).await? {
            Ok(made) => Ok(CreateOutcome::New(made)),
            Err(status) if status.code == CONFLICT && status.reason == "AlreadyExists" => {
                Ok(CreateOutcome::Exists)
            }
            Err(status) => Err(driver_error(what, kube::Error::Api(status))),
        }
    }

    /// Creates an object unless it exists.
    pub(crate) async fn ensure(&self, what: &str, path: &str, body: &Value) -> Result<(), Error> {
        self.create::<IgnoredAny>(what, path, body).await.map(drop)
    }

    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        what: &str,
        path: &str,
    ) -> Result<Option<T>, Error> {
        let answer = self.call(what, Method::GET, path, None).await?;
        unless_absent(what, answer, &[NOT_FOUND])
    }

    /// Like [`Api::get`], but returns None also if the object may not be read.
    pub(crate) async fn get_own<T: DeserializeOwned>(
        &self,
        what: &str,
        path: &str,
    ) -> Result<Option<T>, Error> {
        let answer = self.call(what, Method::GET, path, None).await?;
        unless_absent(what, answer, &[NOT_FOUND, FORBIDDEN])
    }

    /// Merges `change` into an object. Returns None if it does not exist.
    pub(crate) async fn change<T: DeserializeOwned>(
        &self,
        what: &str,
        path: &str,
        change: &Value,
    ) -> Result<Option<T>, Error> {
        let answer = self.call(what, Method::PATCH, path, Some(change)).await?;
        unless_absent(what, answer, &[NOT_FOUND])
    }

    /// Fetches all pages of a list. `query` has no question mark.
    pub(crate) async fn list<T: DeserializeOwned>(
        &self,
        what: &str,
        path: &str,
        query: &str,
    ) -> Result<Vec<T>, Error> {
        let mut items = Vec::new();
        let mut next = String::new();
        loop {
            let uri = format!("{path}?{query}&limit={PAGE}{next}");
            let answer = self
                .call::<ListPage<T>>(what, Method::GET, &uri, None)
                .await?;
            let page = answer.map_err(|status| driver_error(what, kube::Error::Api(status)))?;
            items.extend(page.items);
            match page.metadata.next.filter(|token| !token.is_empty()) {
                Some(token) => next = format!("&continue={}", escape(&token)),
                None => return Ok(items),
            }
        }
    }

    /// Deletes an object. Succeeds if it does not exist. With a uid, fails with a conflict if another object has the name,
    /// or if a namespace is being deleted already.
    pub(crate) async fn delete(
        &self,
        what: &str,
        path: &str,
        removal: &DeleteOptions<'_>,
    ) -> Result<(), Error> {
        let policy = if removal.foreground {
            "Foreground"
        } else {
            "Background"
        };
        let mut options = json!({"propagationPolicy": policy});
        let mut only_if = Map::new();
        for (key, value) in [("uid", removal.uid), ("resourceVersion", removal.version)] {
            if let Some(value) = value {
                only_if.insert(key.to_owned(), value.into());
            }
        }
        if !only_if.is_empty() {
            put(&mut options, "preconditions", only_if.into());
        }
        if let Some(seconds) = removal.grace {
            put(&mut options, "gracePeriodSeconds", seconds.into());
        }
        let answer = self.call::<IgnoredAny>(what, Method::DELETE, path, Some(&options));
        unless_absent(what, answer.await?, &[NOT_FOUND]).map(drop)
    }
}

/// Returns None if the response has one of the codes for an absent object.
fn unless_absent<T>(
    what: &str,
    answer: Result<T, Box<Status>>,
    absent: &[u16],
) -> Result<Option<T>, Error> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(status) if absent.contains(&status.code) => Ok(None),
        Err(status) => Err(driver_error(what, kube::Error::Api(status))),
    }
}

/// Sets a key of an object.
pub(crate) fn put(object: &mut Value, key: &str, value: Value) {
    if let Some(object) = object.as_object_mut() {
        object.insert(key.to_owned(), value);
    }
}

/// Escapes a text for a query.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(byte.into());
            }
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}
