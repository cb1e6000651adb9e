//! Downloads a large, possibly compressed file from an untrusted URL.
//!
//! ```text
//!   server ══ ranges, in parallel ══► <staging path>.part ──► digests of the sent bytes
//!                                              │
//!                                              └──► decompressed ──► digests ──► target (sparse)
//! ```
//!
//! All steps run concurrently. Received data is kept when a download fails or the process is killed, and reused if the
//! server's ETag or Last-Modified shows that the file is unchanged; a file without them is fetched by a single request.
//! On success the target is complete and verified. [`DownloadError::is_permanent`] tells which errors a retry cannot
//! fix.

mod error;
mod growing_file;
mod probe;
mod ranges;
mod retry_policy;
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
    Backoff, HttpClient, HttpRequest, HttpResponse, StatusCode, Url, is_absent_status,
    is_transient_status, retry_after,
};
use nodeyard_model::now;
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

pub use error::DownloadError;
pub use throttle::Throttle;

use crate::digest::Digests;
use crate::files::AttemptExt as _;
use crate::repository::Repository;
use growing_file::{AbortOnDrop, GrowingFile, GrowingFileReader};
use probe::{RemoteFile, probe};
use retry_policy::RetryPolicy;
use staging::StagingFile;
use transfer::Transfer;

/// How often the file may change on the server during a download.
const MAX_CHANGES: u32 = 3;
/// The default limit of the decompressed size.
const MAX_UNPACKED_SIZE: u64 = 1 << 40;
/// The interval of progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
const MD5_DIGITS: usize = 32;
const SHA256_DIGITS: usize = 64;
/// The maximum size of a `.sha256` file.
const MAX_DIGEST_FILE_LEN: usize = 4096;

/// How a file is compressed.
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
    /// Determines the compression from the file extension of a URL.
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

/// Whether a promised digest is required or verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChecksumPolicy {
    Required,
    IfAvailable,
    Off,
}

/// Called with the number of bytes received and the total, if known.
pub type ProgressFn = Arc<dyn Fn(u64, Option<u64>) + Send + Sync>;

/// A file to download.
#[derive(Debug, Clone)]
pub struct Download {
    pub url: Url,
    pub packing: Packing,
    /// The digests of the file, either as sent or as decompressed.
    pub promised: Digests,
    pub checksum: ChecksumPolicy,
    /// The maximum size, both as sent and as decompressed.
    pub max_size: Option<u64>,
    pub connections: u32,
    pub retries: u32,
    pub throttle: Throttle,
    pub backoff: Backoff,
    /// The size of the range of one request.
    pub piece: u64,
    /// The interval at which received data is synced.
    pub save_every: Duration,
}

impl Download {
    pub fn new(url: Url) -> Self {
        Self {
            packing: Packing::of(&url),
            url,
            promised: Digests::default(),
            checksum: ChecksumPolicy::IfAvailable,
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

/// Size and digests of a file as sent or as decompressed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentInfo {
    pub size: u64,
    pub digests: Digests,
}

/// The result of a download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Downloaded {
    /// The file as sent.
    pub sent: ContentInfo,
    /// The file as decompressed to the target.
    pub plain: ContentInfo,
    /// The promised digests that were verified; empty if none were.
    pub promised: Digests,
}

/// An error of one attempt, by how it is handled.
#[derive(Debug)]
enum TransferError {
    /// Retried, after the delay that the server requested, if any.
    Transient {
        error: Box<DownloadError>,
        after: Option<Duration>,
    },
    /// The file has changed on the server.
    Changed,
    /// The server does not support range requests.
    RangesUnsupported,
    Permanent(DownloadError),
}

impl TransferError {
    fn transient(error: DownloadError) -> Self {
        Self::Transient {
            error: Box::new(error),
            after: None,
        }
    }

    fn of_status(url: &Url, response: &HttpResponse) -> Self {
        let (url, status) = (url.clone(), response.status);
        match status {
            StatusCode::NOT_FOUND | StatusCode::GONE => {
                Self::Permanent(DownloadError::Gone { url, status })
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Self::Permanent(DownloadError::Refused { url, status })
            }
            StatusCode::RANGE_NOT_SATISFIABLE => Self::Changed,
            status if is_transient_status(status) => Self::Transient {
                error: Box::new(DownloadError::Status { url, status }),
                after: retry_after(&response.headers, now().into()),
            },
            _ => Self::Permanent(DownloadError::Status { url, status }),
        }
    }
}

impl From<nodeyard_fetch::Error> for TransferError {
    fn from(error: nodeyard_fetch::Error) -> Self {
        if error.is_transient() {
            Self::transient(error.into())
        } else {
            Self::Permanent(error.into())
        }
    }
}

/// Downloads a file to `target` by way of `<staging_path>.part`. If the future is dropped, received data is kept.
///
/// Both paths are in `repository`, whose disk limits apply.
pub async fn download(
    client: &HttpClient,
    order: &Download,
    staging_path: &Path,
    target: &Path,
    repository: Option<&Repository>,
    progress: &ProgressFn,
) -> Result<Downloaded, DownloadError> {
    let at = staging_path.to_owned();
    let staging = blocking(move || StagingFile::open(&at)).await?;
    let retry_policy = RetryPolicy::new(order.backoff, order.retries, order.connections);
    let mut task = DownloadTask {
        client,
        order,
        staging: Arc::new(staging),
        target,
        repository,
        progress,
        retry_policy: Arc::new(retry_policy),
        promised: match order.checksum {
            ChecksumPolicy::Off => Digests::default(),
            ChecksumPolicy::Required | ChecksumPolicy::IfAvailable => order.promised.clone(),
        },
        single_request: false,
        resumed: false,
        refused: false,
    };
    let result = task.run().await;
    let discard = match &result {
        Ok(_) => order.packing != Packing::None,
        // What was received before the disk was full can be continued when there is space again.
        Err(error) => {
            error.is_permanent() || error.is_out_of_space() && !(task.refused && task.resumed)
        }
    };
    if discard {
        let staging = Arc::clone(&task.staging);
        blocking(move || Ok(staging.remove()?)).await?;
    }
    result
}

struct DownloadTask<'a> {
    client: &'a HttpClient,
    order: &'a Download,
    staging: Arc<StagingFile>,
    target: &'a Path,
    repository: Option<&'a Repository>,
    progress: &'a ProgressFn,
    retry_policy: Arc<RetryPolicy>,
    /// The digests to verify.
    promised: Digests,
    /// The server does not support range requests.
    single_request: bool,
    /// The last attempt reused data of an earlier one.
    resumed: bool,
    /// The last attempt was refused for lack of space before it received anything.
    refused: bool,
}

impl DownloadTask<'_> {
    async fn run(&mut self) -> Result<Downloaded, DownloadError> {
        let mut changes = 0;
        let mut mismatched = false;
        loop {
            let attempt: Result<Infallible, TransferError> = match self.attempt().await {
                Ok(downloaded) => match self.check(&downloaded) {
                    Ok(()) => {
                        self.move_to_target().await?;
                        return Ok(downloaded);
                    }
                    Err(error) => Err(TransferError::Permanent(error)),
                },
                Err(error) => Err(error),
            };
            match attempt {
                // Reused data of an earlier process may be corrupt: start over, once.
                Err(TransferError::Permanent(
                    error @ (DownloadError::Digest { .. }
                    | DownloadError::InvalidCompressedData { .. }),
                )) if self.resumed && !mismatched => {
                    tracing::warn!(
                        url = %self.order.url,
                        error = &error as &dyn std::error::Error,
                        "reused download data is invalid; starting over"
                    );
                    mismatched = true;
                    self.clear().await?;
                }
                Err(TransferError::Changed) => {
                    changes += 1;
                    if changes > MAX_CHANGES {
                        let url = self.order.url.clone();
                        return Err(DownloadError::Changing { url });
                    }
                    self.clear().await?;
                }
                Err(TransferError::RangesUnsupported) => self.single_request = true,
                Err(error) => match self.retry_policy.wait_for_retry(error, 0).await {
                    Ok(()) => {}
                    Err(TransferError::Permanent(error)) => return Err(error),
                    Err(_) => return Err(DownloadError::ShuttingDown),
                },
                Ok(never) => match never {},
            }
        }
    }

    /// Makes one attempt, resuming an earlier one if possible.
    async fn attempt(&mut self) -> Result<Downloaded, TransferError> {
        let order = self.order;
        let source = probe(self.client, &order.url).await?;
        if let (Some(size), Some(limit)) = (source.size, order.max_size)
            && size > limit
        {
            return Err(TransferError::Permanent(DownloadError::TooLarge {
                size,
                limit,
            }));
        }
        self.fetch_digest().await?;
        let pieces = source.supports_ranges() && !self.single_request;
        let (staging, known) = (Arc::clone(&self.staging), source.clone());
        let begun = blocking(move || Ok(staging.start_attempt(&known, pieces)?)).await;
        let (attempt, done) = begun.map_err(TransferError::Permanent)?;
        self.resumed = done.total() > 0;
        let _room = match (self.repository, source.size) {
            (Some(repository), Some(size)) => {
                let room = repository.reserve_file(&self.staging.path, size);
                self.refused = room.is_err();
                Some(room.map_err(|error| TransferError::Permanent(error.into()))?)
            }
            _ => None,
        };
        let missing = source.size.map(|size| done.missing(size, order.piece));
        let size = source.size.filter(|_| pieces);
        let growing_file = Arc::new(GrowingFile::new(done, size));
        let _abort = AbortOnDrop(Arc::clone(&growing_file));
        let transfer = Arc::new(Transfer {
            client: self.client.clone(),
            url: order.url.clone(),
            source: source.clone(),
            staging: Arc::clone(&self.staging),
            attempt,
            growing_file: Arc::clone(&growing_file),
            throttle: order.throttle.clone(),
            retry_policy: Arc::clone(&self.retry_policy),
            sparse: pieces && order.packing == Packing::None,
        });
        let fetch = async {
            match missing.filter(|_| pieces) {
                Some(missing) => {
                    let connections = usize::try_from(order.connections).unwrap_or(1);
                    transfer.fetch_ranges(missing, connections).await
                }
                None => transfer.fetch_whole(order.max_size, self.repository).await,
            }
        };
        let mut read = std::pin::pin!(self.read(&growing_file));
        let outcome = tokio::select! {
            forms = &mut read => forms.map_err(TransferError::Permanent),
            fetched = fetch => match fetched {
                Ok(()) => (&mut read).await.map_err(TransferError::Permanent),
                Err(error) => {
                    // Waits for the readers before another attempt starts.
                    growing_file.abort();
                    let _aborted = (&mut read).await;
                    Err(error)
                }
            },
            never = self.report_and_save(attempt, &source, &growing_file, pieces) => match never {},
        };
        if outcome.is_err() && pieces {
            self.save(attempt, &source, &growing_file).await;
        }
        let (sent, plain) = outcome?;
        (self.progress)(sent.size, Some(sent.size));
        Ok(Downloaded {
            sent,
            plain,
            promised: self.promised.clone(),
        })
    }

    /// Hashes and decompresses the file while it is received.
    fn read(
        &self,
        growing_file: &Arc<GrowingFile>,
    ) -> impl Future<Output = Result<(ContentInfo, ContentInfo), DownloadError>> + use<> {
        let reader = || GrowingFileReader {
            growing_file: Arc::clone(growing_file),
            file: Arc::clone(&self.staging.file),
            at: 0,
        };
        let path = self.staging.path.clone();
        let packing = self.order.packing;
        if packing == Packing::None {
            let plain = reader();
            let form =
                spawn_blocking(move || unpack::hash_plain_stream(plain).attempt("read", &path));
            return futures_util::future::Either::Left(async move {
                let form = form.await.map_err(|_| DownloadError::ShuttingDown)??;
                Ok((form.clone(), form))
            });
        }
        let (sent, packed) = (reader(), reader());
        let with_md5 = self.promised.md5.is_some();
        let sent =
            blocking(move || Ok(unpack::hash_stream(sent, with_md5).attempt("read", &path)?));
        let (target, repository) = (self.target.to_owned(), self.repository.cloned());
        let limit = self.order.max_size.unwrap_or(MAX_UNPACKED_SIZE);
        let plain =
            blocking(move || unpack::unpack(packing, packed, &target, limit, repository.as_ref()));
        futures_util::future::Either::Right(async move { tokio::try_join!(sent, plain) })
    }

    /// Reports progress and saves received data periodically.
    async fn report_and_save(
        &self,
        attempt: u64,
        source: &RemoteFile,
        growing_file: &GrowingFile,
        pieces: bool,
    ) -> Infallible {
        let mut saved = (Instant::now(), growing_file.total());
        loop {
            tokio::time::sleep(self.order.save_every.min(PROGRESS_INTERVAL)).await;
            let total = growing_file.total();
            (self.progress)(total, source.size);
            let (at, before) = saved;
            if pieces && total > before && at.elapsed() >= self.order.save_every {
                self.save(attempt, source, growing_file).await;
                saved = (Instant::now(), total);
            }
        }
    }

    /// Saves the received ranges, so that a later download can resume. Errors are only logged.
    async fn save(&self, attempt: u64, source: &RemoteFile, growing_file: &GrowingFile) {
        let (staging, source, done) = (
            Arc::clone(&self.staging),
            source.clone(),
            growing_file.done(),
        );
        let saved = blocking(move || Ok(staging.save(attempt, &source, done)?)).await;
        if let Err(error) = saved {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "failed to save download progress");
        }
    }

    async fn clear(&self) -> Result<(), DownloadError> {
        let staging = Arc::clone(&self.staging);
        blocking(move || Ok(staging.clear()?)).await
    }

    /// Moves an uncompressed file to the target.
    async fn move_to_target(&self) -> Result<(), DownloadError> {
        let (staging, target) = (Arc::clone(&self.staging), self.target.to_owned());
        let plain = self.order.packing == Packing::None;
        blocking(move || {
            if plain {
                staging.move_to(&target)?;
            }
            Ok(())
        })
        .await
    }

    /// Fetches the digest from the file with the suffix `.sha256` if none was promised.
    ///
    /// Only a status that means absence counts as no digest. Other errors are returned, so that a temporary error
    /// neither skips verification nor rejects the build.
    async fn fetch_digest(&mut self) -> Result<(), TransferError> {
        let order = self.order;
        if order.checksum == ChecksumPolicy::Off || !self.promised.is_empty() {
            return Ok(());
        }
        let Some(url) = order.url.with_suffix(".sha256") else {
            return Ok(());
        };
        let response = self.client.send(&HttpRequest::get(url.clone())).await?;
        match response.status {
            StatusCode::OK => {}
            status if is_absent_status(status) => return Ok(()),
            _ => return Err(TransferError::of_status(&url, &response)),
        }
        let text = match response.body.read_all(MAX_DIGEST_FILE_LEN).await {
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

    /// Verifies the promised digests against the file as decompressed or as sent.
    fn check(&self, downloaded: &Downloaded) -> Result<(), DownloadError> {
        let promised = &self.promised;
        match self.order.checksum {
            ChecksumPolicy::Off => return Ok(()),
            ChecksumPolicy::Required if promised.is_empty() => {
                return Err(DownloadError::MissingDigest);
            }
            ChecksumPolicy::Required | ChecksumPolicy::IfAvailable => {}
        }
        for (kind, digest, digits) in [
            ("MD5", &promised.md5, MD5_DIGITS),
            ("SHA-256", &promised.sha256, SHA256_DIGITS),
        ] {
            let is_invalid = |digest: &&str| {
                digest.len() != digits || !digest.bytes().all(|byte| byte.is_ascii_hexdigit())
            };
            if digest.as_deref().filter(is_invalid).is_some() {
                return Err(DownloadError::InvalidDigest { kind });
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
        .map_err(|_| DownloadError::ShuttingDown)?
}
