//! Calls to the API server: paths and JSON, each with a limit of time and an error of a class.
//!
//! What is sent is JSON and not typed, so that a pod specification of the configuration arrives with every key that it
//! has, also those of a newer cluster than this program knows. What is read is typed.

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

use crate::failure::failed;

const CONFLICT: u16 = 409;
const FORBIDDEN: u16 = 403;
const NOT_FOUND: u16 = 404;
const UNAUTHORIZED: u16 = 401;

/// One list is enough for most; more come in pages.
const PAGE: usize = 500;

/// A client that is called.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) client: Client,
    pub(crate) limit: Duration,
    /// The cluster does not know any more who we are.
    pub(crate) stale: Arc<AtomicBool>,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Api")
    }
}

/// How something is deleted.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Removal<'a> {
    /// Only this very thing.
    pub(crate) uid: Option<&'a str>,
    /// Only if nothing about it has changed.
    pub(crate) version: Option<&'a str>,
    /// Seconds that a pod gets to end.
    pub(crate) grace: Option<u32>,
    pub(crate) after_what_it_owns: bool,
}

/// What came of making something.
#[derive(Debug)]
pub(crate) enum Made<T> {
    New(T),
    /// Something of that name is there already.
    Exists,
}

#[derive(Deserialize)]
struct List<T> {
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
            .map_err(|cause| failed(what, kube::Error::HttpError(cause)))?;
        let answer = timeout(self.limit, self.client.request::<T>(request)).await;
        match answer {
            Ok(Ok(answer)) => Ok(Ok(answer)),
            Ok(Err(kube::Error::Api(status))) => {
                if status.code == UNAUTHORIZED {
                    self.stale.store(true, Ordering::Relaxed);
                }
                Ok(Err(status))
            }
            Ok(Err(error)) => Err(failed(what, error)),
            Err(_) => Err(Error::retry(format!(
                "cannot {what}: the API server did not answer within {} s",
                self.limit.as_secs()
            ))),
        }
    }

    pub(crate) async fn create<T: DeserializeOwned>(
        &self,
        what: &str,
        path: &str,
        body: &Value,
    ) -> Result<Made<T>, Error> {
        match self.call(what, Method::POST, path, Some(body)).await? {
            Ok(made) => Ok(Made::New(made)),
            Err(status) if status.code == CONFLICT && status.reason == "AlreadyExists" => {
                Ok(Made::Exists)
            }
            Err(status) => Err(failed(what, kube::Error::Api(status))),
        }
    }

    /// Makes it unless it is there.
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

    /// Like [`Api::get`], for what only those who have a part in it may look at: none of others' is there.
    pub(crate) async fn get_own<T: DeserializeOwned>(
        &self,
        what: &str,
        path: &str,
    ) -> Result<Option<T>, Error> {
        let answer = self.call(what, Method::GET, path, None).await?;
        unless_absent(what, answer, &[NOT_FOUND, FORBIDDEN])
    }

    /// Sets what `change` says and leaves the rest. None if it is not there.
    pub(crate) async fn change<T: DeserializeOwned>(
        &self,
        what: &str,
        path: &str,
        change: &Value,
    ) -> Result<Option<T>, Error> {
        let answer = self.call(what, Method::PATCH, path, Some(change)).await?;
        unless_absent(what, answer, &[NOT_FOUND])
    }

    /// `query` is without a question mark.
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
            let answer = self.call::<List<T>>(what, Method::GET, &uri, None).await?;
            let page = answer.map_err(|status| failed(what, kube::Error::Api(status)))?;
            items.extend(page.items);
            match page.metadata.next.filter(|token| !token.is_empty()) {
                Some(token) => next = format!("&continue={}", escape(&token)),
                None => return Ok(items),
            }
        }
    }

    /// What is not there is deleted. With a uid, something else of the same name is left alone and told as a conflict, and
    /// so is a namespace that is on its way out already.
    pub(crate) async fn delete(
        &self,
        what: &str,
        path: &str,
        removal: &Removal<'_>,
    ) -> Result<(), Error> {
        let policy = if removal.after_what_it_owns {
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

/// None if the cluster answers with one of the codes of what is not there.
fn unless_absent<T>(
    what: &str,
    answer: Result<T, Box<Status>>,
    absent: &[u16],
) -> Result<Option<T>, Error> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(status) if absent.contains(&status.code) => Ok(None),
        Err(status) => Err(failed(what, kube::Error::Api(status))),
    }
}

/// Sets a key of an object.
pub(crate) fn put(object: &mut Value, key: &str, value: Value) {
    if let Some(object) = object.as_object_mut() {
        object.insert(key.to_owned(), value);
    }
}

/// A text as part of a query.
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
