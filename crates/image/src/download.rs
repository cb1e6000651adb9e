//! Fetches a file that is large, packed perhaps, and named by somebody else.
//!
//! ```text
//!   server ══ pieces, several at once ══► <place>.part ──► digests of what was sent
//!                                              │
//!                                              └──► unpacked ──► digests ──► target, with holes
//! ```
//!
//! All of that happens at once: the bytes go by while they are still in memory, and the whole takes as long as its
//! slowest part. What was fetched stays for the next time if this one comes to nothing, also if the process is
//! killed; it is used only if the server says, by its marks, that it still has the same file. A file without marks
//! is fetched in one go.
//!
//! The target is complete and checked, or this is an error. [`DownloadError::is_permanent`] tells what another try
//! would not change.

mod error;
mod flow;
mod patience;
mod probe;
mod ranges;
mod staging;
mod throttle;
mod transfer;
mod unpack;

use std::convert::Infallible;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_fetch::{
    Backoff, Client, Request, Response, StatusCode, Url, is_absent_status, is_transient_status,
    retry_after,
};
use nodeyard_model::now;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

pub use error::DownloadError;
pub use throttle::Throttle;

use crate::digest::Digests;
use crate::files::Try as _;
use crate::repository::Repository;
use flow::{Abandon, Flow, Reader};
use patience::Patience;
use probe::{Source, probe};
use staging::Staging;
use transfer::Transfer;

/// How often a file may become another one while it is fetched.
const MOST_CHANGES: u32 = 3;
/// What a file may unpack to where nothing else is said.
const LARGEST: u64 = 1 << 40;
/// How often people are told how far it is.
const TICK: Duration = Duration::from_secs(1);
const MD5_DIGITS: usize = 32;
const SHA256_DIGITS: usize = 64;
/// More is not a file with one digest in it.
const LONGEST_DIGEST_FILE: usize = 4096;

/// How a file is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Packing {
    None,
    Gzip,
    Xz,
    Zstd,
    Bzip2,
}

impl Packing {
    /// As the ending of the address says.
    pub fn of(url: &Url) -> Self {
        let ending = url.path().rsplit(['.', '/']).next().unwrap_or_default();
        match ending.to_ascii_lowercase().as_str() {
            "gz" | "gzip" => Self::Gzip,
            "xz" => Self::Xz,
            "zst" | "zstd" => Self::Zstd,
            "bz2" | "bzip2" => Self::Bzip2,
            _ => Self::None,
        }
    }
}

impl std::fmt::Display for Packing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "plain",
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
            Self::Bzip2 => "bzip2",
        })
    }
}

/// Whether a digest must have been promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Checksum {
    Required,
    IfAvailable,
    Off,
}

/// Told how many bytes have come, and of how many.
pub type Meter = Arc<dyn Fn(u64, Option<u64>) + Send + Sync>;

/// What to fetch.
#[derive(Debug, Clone)]
pub struct Download {
    pub url: Url,
    pub packing: Packing,
    /// Of the file as it is sent or as it is unpacked.
    pub promised: Digests,
    pub checksum: Checksum,
    /// Of either form, in bytes.
    pub max_size: Option<u64>,
    pub connections: u32,
    pub retries: u32,
    pub throttle: Throttle,
    pub backoff: Backoff,
    /// Bytes that one request asks for.
    pub piece: u64,
    /// How often what has come is made to last.
    pub save_every: Duration,
}

impl Download {
    pub fn new(url: Url) -> Self {
        Self {
            packing: Packing::of(&url),
            url,
            promised: Digests::default(),
            checksum: Checksum::IfAvailable,
            max_size: None,
            connections: 4,
            retries: 5,
            throttle: Throttle::default(),
            backoff: Backoff::default(),
            piece: 16 << 20,
            save_every: Duration::from_secs(5),
        }
    }
}

/// One form of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Form {
    pub size: u64,
    pub digests: Digests,
}

/// What was fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Downloaded {
    /// As it was sent.
    pub sent: Form,
    /// As it is now in the target; the same if it was not packed.
    pub plain: Form,
    /// What was promised, and held; empty if nobody looked.
    pub promised: Digests,
}

/// What keeps a file from being fetched, and what can be done about it.
#[derive(Debug)]
enum Trouble {
    /// It may pass; the server may have said when.
    Passing {
        error: Box<DownloadError>,
        after: Option<Duration>,
    },
    /// The server has another file now.
    Changed,
    /// The server does not send pieces.
    Whole,
    Final(DownloadError),
}

impl Trouble {
    fn passing(error: DownloadError) -> Self {
        Self::Passing {
            error: Box::new(error),
            after: None,
        }
    }

    fn of_status(url: &Url, response: &Response) -> Self {
        let (url, status) = (url.clone(), response.status);
        match status {
            StatusCode::NOT_FOUND | StatusCode::GONE => {
                Self::Final(DownloadError::Gone { url, status })
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Self::Final(DownloadError::Refused { url, status })
            }
            StatusCode::RANGE_NOT_SATISFIABLE => Self::Changed,
            status if is_transient_status(status) => Self::Passing {
                error: Box::new(DownloadError::Status { url, status }),
                after: retry_after(&response.headers, now().into()),
            },
            _ => Self::Final(DownloadError::Status { url, status }),
        }
    }
}

impl From<nodeyard_fetch::Error> for Trouble {
    fn from(error: nodeyard_fetch::Error) -> Self {
        if error.is_transient() {
            Self::passing(error.into())
        } else {
            Self::Final(error.into())
        }
    }
}

/// Fetches a file to `target`, by way of `<place>.part`. Dropping the future ends it; what has come stays.
///
/// Both are in `repository`, whose limits hold; without one, nobody counts the bytes.
pub async fn download(
    client: &Client,
    order: &Download,
    place: &Path,
    target: &Path,
    repository: Option<&Repository>,
    meter: &Meter,
) -> Result<Downloaded, DownloadError> {
    let at = place.to_owned();
    let staging = blocking(move || Staging::open(&at)).await?;
    let patience = Patience::new(order.backoff, order.retries, order.connections);
    let mut job = Job {
        client,
        order,
        staging: Arc::new(staging),
        target,
        repository,
        meter,
        patience: Arc::new(patience),
        promised: match order.checksum {
            Checksum::Off => Digests::default(),
            Checksum::Required | Checksum::IfAvailable => order.promised.clone(),
        },
        in_one_go: false,
        resumed: false,
    };
    let result = job.run().await;
    let useless = match &result {
        Ok(_) => order.packing != Packing::None,
        Err(error) => error.is_permanent() || error.is_want_of_room(),
    };
    if useless {
        let staging = Arc::clone(&job.staging);
        blocking(move || Ok(staging.remove()?)).await?;
    }
    result
}

struct Job<'a> {
    client: &'a Client,
    order: &'a Download,
    staging: Arc<Staging>,
    target: &'a Path,
    repository: Option<&'a Repository>,
    meter: &'a Meter,
    patience: Arc<Patience>,
    /// As far as it is looked at.
    promised: Digests,
    /// The server does not send pieces, whatever it says.
    in_one_go: bool,
    /// Something was there already when the last attempt began.
    resumed: bool,
}

impl Job<'_> {
    async fn run(&mut self) -> Result<Downloaded, DownloadError> {
        let mut changes = 0;
        let mut mismatched = false;
        loop {
            let attempt: Result<Infallible, Trouble> = match self.attempt().await {
                Ok(downloaded) => match self.check(&downloaded) {
                    Ok(()) => {
                        self.settle().await?;
                        return Ok(downloaded);
                    }
                    Err(error) => Err(Trouble::Final(error)),
                },
                Err(trouble) => Err(trouble),
            };
            match attempt {
                // What was left by another process may be the cause; it gets no second chance.
                Err(Trouble::Final(
                    error @ (DownloadError::Digest { .. } | DownloadError::NotPacked { .. }),
                )) if self.resumed && !mismatched => {
                    tracing::warn!(
                        url = %self.order.url,
                        error = &error as &dyn std::error::Error,
                        "what was left of a download is of no use"
                    );
                    mismatched = true;
                    self.clear().await?;
                }
                Err(Trouble::Changed) => {
                    changes += 1;
                    if changes > MOST_CHANGES {
                        let url = self.order.url.clone();
                        return Err(DownloadError::Changing { url });
                    }
                    self.clear().await?;
                }
                Err(Trouble::Whole) => self.in_one_go = true,
                Err(trouble) => match self.patience.bear(trouble, 0).await {
                    Ok(()) => {}
                    Err(Trouble::Final(error)) => return Err(error),
                    Err(_) => return Err(DownloadError::Ending),
                },
                Ok(never) => match never {},
            }
        }
    }

    /// Once from its beginning, or from where it was left, to its end.
    async fn attempt(&mut self) -> Result<Downloaded, Trouble> {
        let order = self.order;
        let source = probe(self.client, &order.url).await?;
        if let (Some(size), Some(limit)) = (source.size, order.max_size)
            && size > limit
        {
            return Err(Trouble::Final(DownloadError::TooLarge { size, limit }));
        }
        self.find_digest().await?;
        let pieces = source.has_pieces() && !self.in_one_go;
        let (staging, known) = (Arc::clone(&self.staging), source.clone());
        let begun = blocking(move || Ok(staging.begin(&known, pieces)?)).await;
        let (attempt, done) = begun.map_err(Trouble::Final)?;
        self.resumed = done.total() > 0;
        let _room = match (self.repository, source.size) {
            (Some(repository), Some(size)) => {
                let room = repository.keep_room(&self.staging.path, size);
                Some(room.map_err(|error| Trouble::Final(error.into()))?)
            }
            _ => None,
        };
        let todo = source.size.map(|size| done.missing(size, order.piece));
        let size = source.size.filter(|_| pieces);
        let flow = Arc::new(Flow::new(done, size));
        let _abandon = Abandon(Arc::clone(&flow));
        let transfer = Arc::new(Transfer {
            client: self.client.clone(),
            url: order.url.clone(),
            source: source.clone(),
            staging: Arc::clone(&self.staging),
            attempt,
            flow: Arc::clone(&flow),
            throttle: order.throttle.clone(),
            patience: Arc::clone(&self.patience),
            sparse: pieces && order.packing == Packing::None,
        });
        let fetch = async {
            match todo.filter(|_| pieces) {
                Some(todo) => {
                    let connections = usize::try_from(order.connections).unwrap_or(1);
                    transfer.pieces(todo, connections).await
                }
                None => transfer.whole(order.max_size, self.repository).await,
            }
        };
        let mut read = std::pin::pin!(self.read(&flow));
        let outcome = tokio::select! {
            forms = &mut read => forms.map_err(Trouble::Final),
            fetched = fetch => match fetched {
                Ok(()) => (&mut read).await.map_err(Trouble::Final),
                Err(trouble) => {
                    // The readers are done with their files before another attempt begins.
                    flow.abandon();
                    let _given_up = (&mut read).await;
                    Err(trouble)
                }
            },
            never = self.keep_books(attempt, &source, &flow, pieces) => match never {},
        };
        if outcome.is_err() && pieces {
            self.save(attempt, &source, &flow).await;
        }
        let (sent, plain) = outcome?;
        (self.meter)(sent.size, Some(sent.size));
        Ok(Downloaded {
            sent,
            plain,
            promised: self.promised.clone(),
        })
    }

    /// Reads both forms while they come.
    fn read(
        &self,
        flow: &Arc<Flow>,
    ) -> impl Future<Output = Result<(Form, Form), DownloadError>> + use<> {
        let reader = || Reader {
            flow: Arc::clone(flow),
            file: Arc::clone(&self.staging.file),
            at: 0,
        };
        let path = self.staging.path.clone();
        let packing = self.order.packing;
        if packing == Packing::None {
            let plain = reader();
            let form = spawn_blocking(move || unpack::measure_plain(plain).attempt("read", &path));
            return futures_util::future::Either::Left(async move {
                let form = form.await.map_err(|_| DownloadError::Ending)??;
                Ok((form.clone(), form))
            });
        }
        let (sent, packed) = (reader(), reader());
        let with_md5 = self.promised.md5.is_some();
        let sent = blocking(move || Ok(unpack::measure(sent, with_md5).attempt("read", &path)?));
        let (target, repository) = (self.target.to_owned(), self.repository.cloned());
        let limit = self.order.max_size.unwrap_or(LARGEST);
        let plain =
            blocking(move || unpack::unpack(packing, packed, &target, limit, repository.as_ref()));
        futures_util::future::Either::Right(async move { tokio::try_join!(sent, plain) })
    }

    /// Tells how far it is, and makes what has come last.
    async fn keep_books(
        &self,
        attempt: u64,
        source: &Source,
        flow: &Flow,
        pieces: bool,
    ) -> Infallible {
        let mut saved = (Instant::now(), flow.total());
        loop {
            tokio::time::sleep(self.order.save_every.min(TICK)).await;
            let total = flow.total();
            (self.meter)(total, source.size);
            let (at, before) = saved;
            if pieces && total > before && at.elapsed() >= self.order.save_every {
                self.save(attempt, source, flow).await;
                saved = (Instant::now(), total);
            }
        }
    }

    /// Without it, a later download has more to fetch; nothing else depends on it.
    async fn save(&self, attempt: u64, source: &Source, flow: &Flow) {
        let (staging, source, done) = (Arc::clone(&self.staging), source.clone(), flow.done());
        let saved = blocking(move || Ok(staging.save(attempt, &source, done)?)).await;
        if let Err(error) = saved {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(
                error,
                "what has come of a download would be lost in a crash"
            );
        }
    }

    async fn clear(&self) -> Result<(), DownloadError> {
        let staging = Arc::clone(&self.staging);
        blocking(move || Ok(staging.clear()?)).await
    }

    /// A file that is not packed is the target itself.
    async fn settle(&self) -> Result<(), DownloadError> {
        let (staging, target) = (Arc::clone(&self.staging), self.target.to_owned());
        let plain = self.order.packing == Packing::None;
        blocking(move || {
            if plain {
                staging.become_file(&target)?;
            }
            Ok(())
        })
        .await
    }

    /// What nobody has promised with the file may be written in a file beside it.
    ///
    /// There is none only if the server says so. Any other answer is trouble: a file must not be admitted unchecked,
    /// nor its build be spurned, because a server had a bad moment.
    async fn find_digest(&mut self) -> Result<(), Trouble> {
        let order = self.order;
        if order.checksum == Checksum::Off || !self.promised.is_empty() {
            return Ok(());
        }
        let Some(url) = order.url.with_suffix(".sha256") else {
            return Ok(());
        };
        let response = self.client.send(&Request::get(url.clone())).await?;
        match response.status {
            StatusCode::OK => {}
            status if is_absent_status(status) => return Ok(()),
            _ => return Err(Trouble::of_status(&url, &response)),
        }
        let text = match response.body.whole(LONGEST_DIGEST_FILE).await {
            Ok(text) => text,
            Err(nodeyard_fetch::Error::TooLarge { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let digits = text.get(..SHA256_DIGITS).unwrap_or_default();
        if digits.iter().all(u8::is_ascii_hexdigit) && !digits.is_empty() {
            let digest = String::from_utf8_lossy(digits).to_ascii_lowercase();
            self.promised.sha256 = Some(digest.into());
        }
        Ok(())
    }

    /// Whether what came is what was promised, in one form or the other.
    fn check(&self, downloaded: &Downloaded) -> Result<(), DownloadError> {
        let promised = &self.promised;
        match self.order.checksum {
            Checksum::Off => return Ok(()),
            Checksum::Required if promised.is_empty() => return Err(DownloadError::NoDigest),
            Checksum::Required | Checksum::IfAvailable => {}
        }
        for (kind, digest, digits) in [
            ("MD5", &promised.md5, MD5_DIGITS),
            ("SHA-256", &promised.sha256, SHA256_DIGITS),
        ] {
            let bad = |digest: &&str| {
                digest.len() != digits || !digest.bytes().all(|byte| byte.is_ascii_hexdigit())
            };
            if digest.as_deref().filter(bad).is_some() {
                return Err(DownloadError::BadDigest { kind });
            }
        }
        let Downloaded { sent, plain, .. } = downloaded;
        plain
            .digests
            .check(promised)
            .or_else(|mismatch| sent.digests.check(promised).map_err(|_| mismatch))
            .map_err(|source| DownloadError::Digest { source })
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, DownloadError> + Send + 'static,
) -> Result<T, DownloadError> {
    spawn_blocking(work)
        .await
        .map_err(|_| DownloadError::Ending)?
}
