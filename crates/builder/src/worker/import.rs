//! `image-import:<image>`: imports an image that was built by a Zuul job.
//!
//! The job names the artifacts. Credentials, allowed origins and checks come from the configuration of this worker. All
//! artifacts are downloaded concurrently, and each is unpacked and checked while it is received; they share the rate limit,
//! the disk reservation and the progress.

mod download_progress;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::try_join_all;
use nodeyard_config::{self as config, Config, ImageSource, ZuulImage};
use nodeyard_fetch::{HttpClient, HttpRequest, StatusCode, Url, UrlError, is_absent_status};
use nodeyard_image::{
    ChecksumPolicy, Claims, ContentInfo, Download, DownloadError, Draft, Format, ImageId,
    InvalidFormat, ProgressFn, PublicKey, Repository, Throttle, download, inspect,
};
use nodeyard_model::{ImageName, coded, now};
use serde_json::Value;
use tokio::sync::mpsc;

use super::WorkerContext;
use super::functions::handles_image;
use super::task_error::{TaskError, blocking};
use crate::jobs::{ArtifactProvenance, ImportArtifact, ImportJob, Provenance, ZuulBuildInfo};
use crate::source::BuildConsole;
use crate::zuul;
use download_progress::DownloadProgress;

/// The attachment of the manifest with the provenance of an image.
pub(super) const PROVENANCE: &str = "zuul.json";

/// The interval of progress updates.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// The maximum size of a signature, which usually has a few kilobytes.
const MAX_SIGNATURE: usize = 1 << 20;

/// How long an abandoned download is kept.
const DOWNLOAD_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// Removes abandoned downloads. Blocks.
pub(super) fn remove_stale_downloads(repository: &Repository) {
    if let Err(error) = repository.remove_stale_downloads(DOWNLOAD_RETENTION) {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(error, "failed to remove stale downloads");
    }
}

/// An import to be run.
#[derive(Debug)]
pub(super) struct ImportTask {
    image_config: Box<ZuulImage>,
    job: ImportJob,
    files: Vec<WantedArtifact>,
}

#[derive(Debug)]
struct WantedArtifact {
    format: Format,
    artifact: ImportArtifact,
    url: Url,
    compression: config::ArtifactCompression,
}

impl ImportTask {
    pub(super) fn of(
        config: &Config,
        image: &ImageName,
        job: ImportJob,
    ) -> Result<Self, TaskError> {
        let entry = config.images.get(image.as_str());
        let image_config = match entry.map(|entry| &entry.source) {
            Some(ImageSource::Zuul(image_config)) if handles_image(config, image.as_str()) => {
                image_config.clone()
            }
            _ => {
                let reason = format!("image {image} is not imported by this worker");
                return Err(TaskError::refused(reason));
            }
        };
        // It is used in a file name.
        if job.build.uuid.parse::<ImageId>().is_err() {
            return Err(TaskError::refused("invalid Zuul build id"));
        }
        let mut files = Vec::new();
        for (format, artifact) in &job.artifacts {
            let known = image_config
                .artifacts
                .iter()
                .find(|a| a.format.as_str() == &**format);
            let known = known.ok_or_else(|| {
                TaskError::refused(format!(
                    "`artifacts` of image {image} has no entry for {format}"
                ))
            })?;
            files.push(WantedArtifact {
                format: format
                    .parse()
                    .map_err(|error: InvalidFormat| TaskError::refused(error.to_string()))?,
                // Permanent, since artifacts of a build do not change.
                url: artifact
                    .url
                    .parse()
                    .map_err(|error: UrlError| TaskError::failed(error.to_string()))?,
                artifact: artifact.clone(),
                compression: known.compression,
            });
        }
        if files.is_empty() {
            return Err(TaskError::refused(
                "no artifacts to fetch: list at least one in `artifacts`",
            ));
        }
        Ok(Self {
            image_config,
            job,
            files,
        })
    }

    pub(super) fn formats(&self) -> Vec<Format> {
        self.files.iter().map(|file| file.format.clone()).collect()
    }

    pub(super) fn time_limit(&self) -> Duration {
        *self.image_config.download_timeout
    }

    /// Downloads all files into the draft.
    pub(super) async fn make(
        &self,
        context: &WorkerContext,
        draft: &mut Draft,
        console: &mut BuildConsole,
    ) -> Result<(), TaskError> {
        let build = &self.job.build;
        console
            .write_line(&format!("importing Zuul build {}", build.uuid))
            .await;
        let image_config = self.image_config.clone();
        let client = tokio::task::spawn_blocking(move || zuul::download_client(&image_config));
        let client = client
            .await?
            .map_err(|error| TaskError::unable(coded(&error)))?;
        let artifacts = match self.fetch_all(context, &client, draft, console).await {
            Ok(artifacts) => artifacts,
            Err(problem) => {
                let failure = problem.clone().into_failure();
                console
                    .write_line(&format!("failed: {}", failure.reason))
                    .await;
                return Err(problem);
            }
        };
        let log_url = build.log_url.as_deref();
        let provenance = Provenance {
            api_url: self.image_config.api_url.as_str().into(),
            tenant: self.image_config.tenant.as_deref().map(Into::into),
            build: ZuulBuildInfo {
                log_url: log_url.and_then(zuul::without_query),
                ..build.clone()
            },
            fetched: now(),
            artifacts,
        };
        let text = serde_json::to_vec_pretty(&provenance).unwrap_or_default();
        draft
            .attach(PROVENANCE, &text)
            .map_err(|error| TaskError::unable(coded(&error)))?;
        console.write_line("import complete").await;
        Ok(())
    }

    /// Downloads all files concurrently. The first failure ends the others; partial downloads are kept.
    async fn fetch_all(
        &self,
        context: &WorkerContext,
        client: &HttpClient,
        draft: &mut Draft,
        console: &mut BuildConsole,
    ) -> Result<BTreeMap<Box<str>, ArtifactProvenance>, TaskError> {
        let (say, mut lines) = mpsc::unbounded_channel();
        let rate = self.image_config.download_rate.filter(|rate| *rate > 0);
        let fetch_context = FetchContext {
            client,
            repository: &context.repository,
            throttle: rate.map_or_else(Throttle::default, Throttle::new),
            downloads: draft.downloads(),
            scratch: draft.scratch(),
            say,
        };
        let download_progress = DownloadProgress::new(self.files.len());
        let fetches = self.files.iter().enumerate();
        let fetches = fetches.map(|(index, wanted)| {
            self.fetch(&fetch_context, wanted, download_progress.reporter(index))
        });
        let mut fetches = std::pin::pin!(try_join_all(fetches));
        let fetched = loop {
            tokio::select! {
                fetched = &mut fetches => break fetched,
                Some(line) = lines.recv() => console.write_line(&line).await,
                () = tokio::time::sleep(PROGRESS_INTERVAL) => {
                    let (done, all) = download_progress.total();
                    console.progress(done, all);
                }
            }
        };
        while let Ok(line) = lines.try_recv() {
            console.write_line(&line).await;
        }
        let mut artifacts = BTreeMap::new();
        for (wanted, fetched) in self.files.iter().zip(fetched?) {
            let format = &wanted.format;
            draft
                .install(
                    format,
                    &fetch_context.target(format),
                    Some(fetched.plain.digests.clone()),
                )
                .map_err(|error| TaskError::unable(coded(&error)))?;
            artifacts.insert(format.as_str().into(), fetched);
        }
        Ok(artifacts)
    }

    async fn fetch(
        &self,
        fetch_context: &FetchContext<'_>,
        wanted: &WantedArtifact,
        reporter: ProgressFn,
    ) -> Result<ArtifactProvenance, TaskError> {
        let WantedArtifact {
            format,
            artifact,
            url,
            ..
        } = wanted;
        let order = self.order(wanted, &fetch_context.throttle);
        fetch_context.log(format!(
            "{format}: fetching {}, {}, from {url}",
            artifact.name, order.packing
        ));
        let partial = format!("{}.{format}", self.job.build.uuid);
        let (partial, target) = (
            fetch_context.downloads.join(partial),
            fetch_context.target(format),
        );
        let repository = Some(fetch_context.repository);
        let fetched = download(
            fetch_context.client,
            &order,
            &partial,
            &target,
            repository,
            &reporter,
        )
        .await;
        let fetched = fetched.map_err(|error| download_error(&error))?;
        reporter(fetched.sent.size, Some(fetched.sent.size));
        check_header(&target, format).await?;
        let forms = [&fetched.sent, &fetched.plain];
        let signed_by = self
            .check_signature(fetch_context.client, wanted, forms)
            .await?;
        let digest = fetched.plain.digests.sha256.as_deref().unwrap_or("unknown");
        let line = format!(
            "{format}: received {} bytes, unpacked to {} bytes, SHA-256 {digest}",
            fetched.sent.size, fetched.plain.size
        );
        let provenance = ArtifactProvenance {
            name: artifact.name.clone(),
            url: url.without_query().into(),
            packing: order.packing,
            sent: fetched.sent,
            plain: fetched.plain,
            promised: fetched.promised,
            unchecked: self.image_config.checksum == config::ChecksumRequirement::Off,
            signed_by,
        };
        fetch_context.log(format!("{line}, {}", provenance.verdict()));
        Ok(provenance)
    }

    /// Checks the signature if the configuration requires one; returns the id of the key.
    async fn check_signature(
        &self,
        client: &HttpClient,
        wanted: &WantedArtifact,
        forms: [&ContentInfo; 2],
    ) -> Result<Option<Box<str>>, TaskError> {
        let image_config = &self.image_config;
        let Some(policy) = &image_config.signature else {
            return Ok(None);
        };
        let key = tokio::fs::read(&policy.key_file).await.map_err(|error| {
            TaskError::unable(format!("failed to read key {}: {error}", policy.key_file))
        })?;
        let key = PublicKey::from_pem(&key).map_err(|error| TaskError::unable(coded(&error)))?;
        let signature = signature(client, wanted).await?;
        let build = &self.job.build;
        let claims = Claims {
            project: &image_config.project,
            job: &image_config.job,
            pipelines: &image_config.pipelines,
            branches: &image_config.branches,
            pipeline: build.pipeline.as_deref(),
            branch: build.branch.as_deref(),
        };
        let digests = forms.map(|form| &form.digests);
        key.verify(&signature, &digests, &claims)
            .map_err(|error| TaskError::failed(coded(&error)))?;
        Ok(Some(key.id().into()))
    }

    fn order(&self, wanted: &WantedArtifact, throttle: &Throttle) -> Download {
        let image_config = &self.image_config;
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Download {
            packing: zuul::packing(wanted.compression, &wanted.url),
            promised: zuul::promised(&wanted.artifact.metadata),
            checksum: match image_config.checksum {
                config::ChecksumRequirement::Required => ChecksumPolicy::Required,
                config::ChecksumRequirement::IfAvailable => ChecksumPolicy::IfAvailable,
                config::ChecksumRequirement::Off => ChecksumPolicy::Off,
            },
            max_size: image_config.max_size,
            connections: number(image_config.download_connections).min(64),
            retries: number(image_config.download_retries),
            throttle: throttle.clone(),
            ..Download::new(wanted.url.clone())
        }
    }
}

/// State that is shared by the downloads of an import.
struct FetchContext<'e> {
    client: &'e HttpClient,
    repository: &'e Repository,
    throttle: Throttle,
    downloads: PathBuf,
    scratch: PathBuf,
    say: mpsc::UnboundedSender<String>,
}

impl FetchContext<'_> {
    /// Returns the path of a file before it is installed.
    fn target(&self, format: &Format) -> PathBuf {
        self.scratch.join(format.as_str())
    }

    /// Writes a line to the log.
    fn log(&self, line: String) {
        let _nobody_listens = self.say.send(line);
    }
}

/// Returns the signature from the metadata of an artifact, or downloads it from a file next to it.
async fn signature(client: &HttpClient, wanted: &WantedArtifact) -> Result<Vec<u8>, TaskError> {
    match wanted.artifact.metadata.get("signature") {
        Some(Value::String(text)) => return Ok(text.clone().into_bytes()),
        Some(object @ Value::Object(_)) => return Ok(object.to_string().into_bytes()),
        _ => {}
    }
    let missing = || {
        TaskError::failed(
            "the artifact is not signed: its metadata has no `signature`, and no file beside it ends in .sigstore.json",
        )
    };
    let url = wanted
        .url
        .with_suffix(".sigstore.json")
        .ok_or_else(missing)?;
    let failed = |error| download_error(&DownloadError::Fetch(error));
    let response = client.send(&HttpRequest::get(url)).await.map_err(failed)?;
    match response.status {
        StatusCode::OK => response.body.read_all(MAX_SIGNATURE).await.map_err(failed),
        status if is_absent_status(status) => Err(missing()),
        status => Err(TaskError::unable(format!(
            "failed to fetch the signature of the artifact: status {status}; see the log of that server"
        ))),
    }
}

/// Checks the disk header. A disk with a backing file is rejected, because it could refer to files of this host.
async fn check_header(path: &Path, format: &Format) -> Result<(), TaskError> {
    let (path, format) = (path.to_owned(), format.clone());
    blocking(move || {
        inspect(&path, &format)
            .map(drop)
            .map_err(|error| TaskError::failed(coded(&error)))
    })
    .await
}

/// Converts a download error. Errors in the file itself are permanent; others can be retried.
fn download_error(error: &DownloadError) -> TaskError {
    let reason = coded(error);
    if error.is_permanent() {
        TaskError::failed(reason)
    } else {
        TaskError::unable(reason)
    }
}
