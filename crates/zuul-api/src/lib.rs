//! A client of Zuul's REST API that lists successful builds of a job and their artifacts.
//!
//! [`ZuulApi::builds`] returns the newest builds of a configured tenant, or of a web root that serves one tenant;
//! [`ZuulApi::fetch_more`] continues the list. Responses are untrusted: their size is limited and entries are checked
//! against the query.

mod build;

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

use nodeyard_fetch::header::{ACCEPT, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use nodeyard_fetch::{HttpClient, HttpRequest, HttpResponse, StatusCode, Url, UrlError};
use serde::Deserialize;
use serde_json::Value;

pub use build::{BuildArtifact, FinishedBuild, InvalidBuild};

/// The number of builds per request.
const PAGE_SIZE: usize = 20;
/// Sufficient for twenty builds with hundreds of artifacts each.
const MAX_RESPONSE_LEN: usize = 8 << 20;
/// The number of characters of an unexpected response that an error shows.
const EXCERPT_LEN: usize = 80;

/// Selects builds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ZuulBuildQuery {
    pub project: String,
    pub job: String,
    /// All if empty.
    pub pipelines: Vec<String>,
    /// All if empty.
    pub branches: Vec<String>,
}

impl ZuulBuildQuery {
    fn query_pairs(&self, skip: usize) -> Vec<(&str, Cow<'_, str>)> {
        let mut pairs = vec![
            ("project", literal(&self.project)),
            ("job_name", literal(&self.job)),
        ];
        let pipelines = self.pipelines.iter();
        pairs.extend(pipelines.map(|pipeline| ("pipeline", literal(pipeline))));
        let branches = self.branches.iter();
        pairs.extend(branches.map(|branch| ("branch", literal(branch))));
        pairs.extend([
            ("result", "SUCCESS".into()),
            ("complete", "true".into()),
            ("limit", PAGE_SIZE.to_string().into()),
        ]);
        if skip > 0 {
            pairs.push(("skip", skip.to_string().into()));
        }
        pairs
    }

    /// Returns whether a build matches exactly. Zuul matches patterns and may ignore unknown parameters.
    fn matches(&self, build: &FinishedBuild) -> bool {
        let among = |wanted: &[String], found: Option<&str>| {
            wanted.is_empty() || found.is_some_and(|found| wanted.iter().any(|w| w == found))
        };
        build.job_name == self.job
            && build.project.as_deref() == Some(&*self.project)
            && among(&self.pipelines, build.pipeline.as_deref())
            && among(&self.branches, build.branch.as_deref())
    }
}

/// Escapes stars, which Zuul treats as wildcards.
fn literal(text: &str) -> Cow<'_, str> {
    if text.contains('*') {
        text.replace('*', "\\*").into()
    } else {
        text.into()
    }
}

/// The result of [`ZuulApi::builds`].
#[derive(Debug, Clone, PartialEq)]
pub enum BuildsResponse {
    Builds(BuildList),
    /// The list has not changed since the last response.
    NotModified,
}

/// Successful builds that match a [`ZuulBuildQuery`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BuildList {
    /// Newest first, including invalid entries.
    pub builds: Vec<Result<FinishedBuild, InvalidBuild>>,
    /// Whether there may be older builds.
    pub has_more: bool,
    /// The number of entries read, matching or not.
    pub entries_read: usize,
}

impl BuildList {
    fn of(entries: &[Value], query: &ZuulBuildQuery) -> Self {
        let builds = entries
            .iter()
            .map(FinishedBuild::parse)
            .filter(|read| match read {
                Ok(build) => build.is_successful() && query.matches(build),
                Err(_) => true,
            });
        Self {
            builds: builds.take(PAGE_SIZE).collect(),
            has_more: entries.len() >= PAGE_SIZE,
            entries_read: entries.len().min(PAGE_SIZE),
        }
    }

    /// Appends older builds, skipping those already listed because the list moved on in the meantime.
    fn append(&mut self, more: Self) {
        let new = more.builds.into_iter().filter(|read| match read {
            Ok(build) => self.build(&build.uuid).is_none(),
            Err(_) => true,
        });
        let new: Vec<_> = new.collect();
        self.builds.extend(new);
        self.has_more = more.has_more;
        self.entries_read += more.entries_read;
    }

    /// Returns the build with this uuid.
    pub fn build(&self, uuid: &str) -> Option<&FinishedBuild> {
        let mut builds = self.builds.iter().flatten();
        builds.find(|build| build.uuid == uuid)
    }
}

/// An error of a request to Zuul's API.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("request to Zuul failed")]
    Fetch(#[from] nodeyard_fetch::Error),
    #[error("{url} returned status {status}{hint}")]
    Status {
        url: Url,
        status: StatusCode,
        hint: &'static str,
    },
    #[error("{url} returned {kind} instead of JSON: is it the root of Zuul's web pages?")]
    NotJson { url: Url, kind: String },
    #[error("{url} returned unexpected JSON, beginning with {excerpt:?}")]
    UnexpectedJson {
        url: Url,
        excerpt: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("{url} serves several tenants: set `tenant`")]
    TenantRequired { url: Url },
}

/// A client of one Zuul's API.
#[derive(Debug)]
pub struct ZuulApi {
    client: HttpClient,
    root: Url,
    tenant: Option<String>,
    /// The URL of the build list, once determined.
    builds_url: Mutex<Option<Url>>,
    /// The ETag of the last response.
    etag: Mutex<Option<String>>,
}

#[derive(Deserialize)]
struct InfoResponse {
    info: InfoFields,
}

#[derive(Deserialize)]
struct InfoFields {
    #[serde(default)]
    tenant: Option<String>,
}

impl ZuulApi {
    /// Creates a client. `root` ends in `/api`; without a tenant it must be the root of a single tenant.
    pub fn new(client: HttpClient, root: &str, tenant: Option<String>) -> Result<Self, UrlError> {
        Ok(Self {
            client,
            root: root.parse()?,
            tenant,
            builds_url: Mutex::new(None),
            etag: Mutex::new(None),
        })
    }

    /// Lists the newest successful builds that match. With `if_modified`, returns [`BuildsResponse::NotModified`] if
    /// the list has not changed since the last call.
    pub async fn builds(
        &self,
        query: &ZuulBuildQuery,
        if_modified: bool,
    ) -> Result<BuildsResponse, Error> {
        let mut request = HttpRequest::get(self.page_url(query, 0).await?);
        let etag = lock(&self.etag).clone();
        if let Some(etag) = etag.filter(|_| if_modified) {
            request = request.with(IF_NONE_MATCH, &etag);
        }
        let response = self.client.send(&accept_json(request)).await?;
        if response.status == StatusCode::NOT_MODIFIED && if_modified {
            return Ok(BuildsResponse::NotModified);
        }
        let etag = response.header(&ETAG).map(ToOwned::to_owned);
        let entries: Vec<Value> = parse(response).await?;
        *lock(&self.etag) = etag;
        Ok(BuildsResponse::Builds(BuildList::of(&entries, query)))
    }

    /// Appends the next page of builds to the list.
    pub async fn fetch_more(
        &self,
        query: &ZuulBuildQuery,
        listing: &mut BuildList,
    ) -> Result<(), Error> {
        let request = HttpRequest::get(self.page_url(query, listing.entries_read).await?);
        let entries: Vec<Value> = parse(self.client.send(&accept_json(request)).await?).await?;
        listing.append(BuildList::of(&entries, query));
        Ok(())
    }

    async fn page_url(&self, query: &ZuulBuildQuery, skip: usize) -> Result<Url, Error> {
        let pairs = query.query_pairs(skip);
        let pairs = pairs.iter().map(|(key, value)| (*key, &**value));
        Ok(self.builds_url().await?.with_query(pairs))
    }

    async fn builds_url(&self) -> Result<Url, Error> {
        if let Some(tenant) = &self.tenant {
            return Ok(self.root.join_segments(["tenant", tenant, "builds"]));
        }
        if let Some(builds_url) = lock(&self.builds_url).clone() {
            return Ok(builds_url);
        }
        let url = self.root.join_segments(["info"]);
        let response = self
            .client
            .send(&accept_json(HttpRequest::get(url.clone())))
            .await?;
        let InfoResponse { info } = parse(response).await?;
        let Some(tenant) = info.tenant else {
            return Err(Error::TenantRequired { url });
        };
        // Such a root serves the tenant's part of the API, but some proxies serve the whole API there.
        let own = self.root.join_segments(["builds"]);
        let asked = own.with_query([("limit", "1")]);
        let response = self
            .client
            .send(&accept_json(HttpRequest::get(asked)))
            .await?;
        // Other statuses may be temporary and are not remembered.
        let builds_url = match response.status {
            StatusCode::NOT_FOUND => self.root.join_segments(["tenant", &tenant, "builds"]),
            _ => {
                let _builds: Vec<Value> = parse(response).await?;
                own
            }
        };
        *lock(&self.builds_url) = Some(builds_url.clone());
        Ok(builds_url)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept_json(request: HttpRequest) -> HttpRequest {
    request.with(ACCEPT, "application/json")
}

async fn parse<T: for<'de> Deserialize<'de>>(response: HttpResponse) -> Result<T, Error> {
    let (url, status) = (response.url().clone(), response.status);
    if status != StatusCode::OK {
        let hint = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ": check `auth`",
            StatusCode::NOT_FOUND => ": check `api-url` and `tenant`",
            _ => "",
        };
        return Err(Error::Status { url, status, hint });
    }
    let kind = response.header(&CONTENT_TYPE).unwrap_or("an unknown type");
    let kind = kind.split(';').next().unwrap_or(kind).trim().to_owned();
    if kind.starts_with("text/html") {
        return Err(Error::NotJson { url, kind });
    }
    let text = response.body.read_all(MAX_RESPONSE_LEN).await?;
    serde_json::from_slice(&text).map_err(|source| {
        let text = String::from_utf8_lossy(&text);
        let excerpt = text.chars().take(EXCERPT_LEN).collect();
        Error::UnexpectedJson {
            url,
            excerpt,
            source,
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(uuid: &str, branch: &str) -> Value {
        json!({"uuid": uuid, "job_name": "j", "project": "p", "branch": branch, "result": "SUCCESS"})
    }

    #[test]
    fn invalid_entries_are_kept_and_other_builds_dropped() {
        let query = ZuulBuildQuery {
            project: "p".to_owned(),
            job: "j".to_owned(),
            branches: vec!["main".to_owned()],
            ..ZuulBuildQuery::default()
        };
        let entries = [
            entry("b", "main"),
            Value::Null,
            entry("x", "dev"),
            entry("a", "main"),
        ];
        let listing = BuildList::of(&entries, &query);
        let kept: Vec<Option<&str>> = listing
            .builds
            .iter()
            .map(|read| read.as_ref().ok().map(|build| &*build.uuid))
            .collect();
        assert_eq!(kept, [Some("b"), None, Some("a")]);
        assert!(!listing.has_more);
        assert!(listing.build("a").is_some() && listing.build("x").is_none());
    }

    #[test]
    fn no_more_than_one_page_is_kept() {
        let listing = BuildList::of(&vec![Value::Null; 1000], &ZuulBuildQuery::default());
        assert_eq!(listing.builds.len(), PAGE_SIZE);
        assert!(listing.has_more);
    }
}
