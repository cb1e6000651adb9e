//! What Zuul's API says of builds and their artifacts.
//!
//! One question is asked: which builds of a job were successful lately, the newest first. [`Api::builds`] asks it, of
//! a tenant that is named or of a web root that shows one tenant only; [`Api::further`] goes on from there. Nothing is
//! taken on trust: answers are bounded, have to be what they should be, and are compared with the question once more.
//! An entry that is no build is told as such and hides no other.

mod build;
mod codes;

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

use nodeyard_fetch::header::{ACCEPT, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use nodeyard_fetch::{BadUrl, Client, Request, Response, StatusCode, Url};
use serde::Deserialize;
use serde_json::Value;

pub use build::{Artifact, Build, OddBuild};

/// Builds that one question asks for.
const BUILDS: usize = 20;
/// Twenty builds with hundreds of artifacts each fit into this.
const LONGEST_ANSWER: usize = 8 << 20;
/// How much of an answer that makes no sense is shown.
const SHOWN: usize = 80;

/// Which builds count.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Question {
    pub project: String,
    pub job: String,
    /// All if empty.
    pub pipelines: Vec<String>,
    /// All if empty.
    pub branches: Vec<String>,
}

impl Question {
    fn pairs(&self, skip: usize) -> Vec<(&str, Cow<'_, str>)> {
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
            ("limit", BUILDS.to_string().into()),
        ]);
        if skip > 0 {
            pairs.push(("skip", skip.to_string().into()));
        }
        pairs
    }

    /// Zuul matches patterns and may ignore what it does not know; this does neither.
    fn is_about(&self, build: &Build) -> bool {
        let among = |wanted: &[String], found: Option<&str>| {
            wanted.is_empty() || found.is_some_and(|found| wanted.iter().any(|w| w == found))
        };
        build.job_name == self.job
            && build.project.as_deref() == Some(&*self.project)
            && among(&self.pipelines, build.pipeline.as_deref())
            && among(&self.branches, build.branch.as_deref())
    }
}

/// Zuul takes a star for a wildcard.
fn literal(text: &str) -> Cow<'_, str> {
    if text.contains('*') {
        text.replace('*', "\\*").into()
    } else {
        text.into()
    }
}

/// What the API says.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Builds(Listing),
    /// Nothing has changed since the last answer.
    Unchanged,
}

/// Successful builds that a question is about.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Listing {
    /// The newest first; what makes no sense is where it was.
    pub builds: Vec<Result<Build, OddBuild>>,
    /// Whether there may be more, which are older.
    pub has_more: bool,
    /// Entries that were looked at, whatever they were about.
    pub seen: usize,
}

impl Listing {
    fn of(entries: &[Value], question: &Question) -> Self {
        let builds = entries.iter().map(Build::read).filter(|read| match read {
            Ok(build) => build.is_good() && question.is_about(build),
            Err(_) => true,
        });
        Self {
            builds: builds.take(BUILDS).collect(),
            has_more: entries.len() >= BUILDS,
            seen: entries.len().min(BUILDS),
        }
    }

    /// Adds what comes further down. What has moved down in the meantime is there already.
    fn add(&mut self, further: Self) {
        let new = further.builds.into_iter().filter(|read| match read {
            Ok(build) => self.build(&build.uuid).is_none(),
            Err(_) => true,
        });
        let new: Vec<_> = new.collect();
        self.builds.extend(new);
        self.has_more = further.has_more;
        self.seen += further.seen;
    }

    /// The build with this id.
    pub fn build(&self, uuid: &str) -> Option<&Build> {
        let mut builds = self.builds.iter().flatten();
        builds.find(|build| build.uuid == uuid)
    }
}

/// Why the API says nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("Zuul cannot be asked")]
    Fetch(#[from] nodeyard_fetch::Error),
    #[error("{url} says status {status}{hint}")]
    Status {
        url: Url,
        status: StatusCode,
        hint: &'static str,
    },
    #[error("{url} answers with {kind} instead of JSON: is it the root of Zuul's web pages?")]
    NotJson { url: Url, kind: String },
    #[error("{url} answers in a way that is not known here, beginning with {shown:?}")]
    Unknown {
        url: Url,
        shown: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("{url} serves several tenants: set `tenant`")]
    NoTenant { url: Url },
}

/// The API of one Zuul.
#[derive(Debug)]
pub struct Api {
    client: Client,
    root: Url,
    tenant: Option<String>,
    /// Where builds are listed, once that is known.
    place: Mutex<Option<Url>>,
    /// What the last answer was marked with.
    mark: Mutex<Option<String>>,
}

#[derive(Deserialize)]
struct Info {
    info: InfoOf,
}

#[derive(Deserialize)]
struct InfoOf {
    #[serde(default)]
    tenant: Option<String>,
}

impl Api {
    /// `root` ends in `/api`. Without a tenant, the root must be that of one tenant.
    pub fn new(client: Client, root: &str, tenant: Option<String>) -> Result<Self, BadUrl> {
        Ok(Self {
            client,
            root: root.parse()?,
            tenant,
            place: Mutex::new(None),
            mark: Mutex::new(None),
        })
    }

    /// Successful builds that the question is about, the newest first; `Unchanged` only if `known` is set, which says
    /// that the last answer is still at hand.
    pub async fn builds(&self, question: &Question, known: bool) -> Result<Answer, Error> {
        let mut request = Request::get(self.address(question, 0).await?);
        let mark = lock(&self.mark).clone();
        if let Some(mark) = mark.filter(|_| known) {
            request = request.with(IF_NONE_MATCH, &mark);
        }
        let response = self.client.send(&json(request)).await?;
        if response.status == StatusCode::NOT_MODIFIED && known {
            return Ok(Answer::Unchanged);
        }
        let mark = response.header(&ETAG).map(ToOwned::to_owned);
        let entries: Vec<Value> = read(response).await?;
        *lock(&self.mark) = mark;
        Ok(Answer::Builds(Listing::of(&entries, question)))
    }

    /// Adds the builds that come after those in the listing.
    pub async fn further(&self, question: &Question, listing: &mut Listing) -> Result<(), Error> {
        let request = Request::get(self.address(question, listing.seen).await?);
        let entries: Vec<Value> = read(self.client.send(&json(request)).await?).await?;
        listing.add(Listing::of(&entries, question));
        Ok(())
    }

    async fn address(&self, question: &Question, skip: usize) -> Result<Url, Error> {
        let pairs = question.pairs(skip);
        let pairs = pairs.iter().map(|(key, value)| (*key, &**value));
        Ok(self.place().await?.with_query(pairs))
    }

    async fn place(&self) -> Result<Url, Error> {
        if let Some(tenant) = &self.tenant {
            return Ok(self.root.below(["tenant", tenant, "builds"]));
        }
        if let Some(place) = lock(&self.place).clone() {
            return Ok(place);
        }
        let url = self.root.below(["info"]);
        let response = self.client.send(&json(Request::get(url.clone()))).await?;
        let Info { info } = read(response).await?;
        let Some(tenant) = info.tenant else {
            return Err(Error::NoTenant { url });
        };
        // Such a root shows the tenant's own part of the API. Some proxies pass the whole of it on.
        let own = self.root.below(["builds"]);
        let asked = own.with_query([("limit", "1")]);
        let response = self.client.send(&json(Request::get(asked))).await?;
        // Any other answer is of this moment only.
        let place = match response.status {
            StatusCode::NOT_FOUND => self.root.below(["tenant", &tenant, "builds"]),
            _ => {
                let _builds: Vec<Value> = read(response).await?;
                own
            }
        };
        *lock(&self.place) = Some(place.clone());
        Ok(place)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn json(request: Request) -> Request {
    request.with(ACCEPT, "application/json")
}

async fn read<T: for<'de> Deserialize<'de>>(response: Response) -> Result<T, Error> {
    let (url, status) = (response.url().clone(), response.status);
    if status != StatusCode::OK {
        let hint = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ": check `auth`",
            StatusCode::NOT_FOUND => ": check `api-url` and `tenant`",
            _ => "",
        };
        return Err(Error::Status { url, status, hint });
    }
    let kind = response.header(&CONTENT_TYPE).unwrap_or("nothing known");
    let kind = kind.split(';').next().unwrap_or(kind).trim().to_owned();
    if kind.starts_with("text/html") {
        return Err(Error::NotJson { url, kind });
    }
    let text = response.body.whole(LONGEST_ANSWER).await?;
    serde_json::from_slice(&text).map_err(|source| {
        let text = String::from_utf8_lossy(&text);
        let shown = text.chars().take(SHOWN).collect();
        Error::Unknown { url, shown, source }
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
    fn an_odd_entry_stays_in_its_place_and_others_go() {
        let question = Question {
            project: "p".to_owned(),
            job: "j".to_owned(),
            branches: vec!["main".to_owned()],
            ..Question::default()
        };
        let entries = [
            entry("b", "main"),
            Value::Null,
            entry("x", "dev"),
            entry("a", "main"),
        ];
        let listing = Listing::of(&entries, &question);
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
    fn no_more_is_kept_than_was_asked_for() {
        let listing = Listing::of(&vec![Value::Null; 1000], &Question::default());
        assert_eq!(listing.builds.len(), BUILDS);
        assert!(listing.has_more);
    }
}
