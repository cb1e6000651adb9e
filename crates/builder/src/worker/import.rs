//! `image-import:<image>`: fetches an image that a job of Zuul has made.
//!
//! A caller says what to fetch; how to log in, where it may be and what has to be true of it is in this worker's own
//! configuration. Each artifact is fetched, unpacked and checked in one go; when all of them are here, the image is
//! one like any other.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nodeyard_config::{self as config, Config, ImageSource, ZuulImage};
use nodeyard_fetch::{BadUrl, Client, Request, StatusCode, Url, is_transient_status};
use nodeyard_image::{
    BadFormat, Checksum, Claims, Download, DownloadError, Draft, Form, Format, ImageId, Meter,
    PublicKey, Repository, Room, download, inspect,
};
use nodeyard_model::{ImageName, with_causes};
use serde_json::Value;

use super::Context;
use super::functions::works_on;
use super::now;
use super::problem::{Problem, blocking};
use crate::jobs::{ArtifactProvenance, ImportArtifact, ImportJob, Provenance};
use crate::source::Console;
use crate::zuul;

/// The file beside the manifest that says where an image is from.
pub(super) const PROVENANCE: &str = "zuul.json";

/// How often progress is told.
const TICK: Duration = Duration::from_secs(1);

/// Signatures have a few kilobytes.
const LONGEST_SIGNATURE: usize = 1 << 20;

/// What is left of a download that nobody goes on with is removed after so long.
const LEFT_OVER: Duration = Duration::from_secs(24 * 60 * 60);

/// Removes what is left of downloads that nobody goes on with. Blocks.
pub(super) fn forget_downloads(repository: &Repository) {
    if let Err(error) = repository.forget_downloads(LEFT_OVER) {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(error, "old downloads stay");
    }
}

/// One import.
#[derive(Debug)]
pub(super) struct Import {
    how: Box<ZuulImage>,
    job: ImportJob,
    files: Vec<Wanted>,
}

#[derive(Debug)]
struct Wanted {
    format: Format,
    artifact: ImportArtifact,
    url: Url,
    compression: config::Compression,
}

impl Import {
    pub(super) fn of(config: &Config, image: &ImageName, job: ImportJob) -> Result<Self, Problem> {
        let entry = config.images.get(image.as_str());
        let how = match entry.map(|entry| &entry.source) {
            Some(ImageSource::Zuul(how)) if works_on(config, image.as_str()) => how.clone(),
            _ => {
                let reason = format!("image {image} is not imported here");
                return Err(Problem::refused(reason));
            }
        };
        // It becomes part of a file name.
        if job.build.uuid.parse::<ImageId>().is_err() {
            return Err(Problem::refused("the id of Zuul's build cannot be one"));
        }
        let mut files = Vec::new();
        for (format, artifact) in &job.artifacts {
            let known = how
                .artifacts
                .iter()
                .find(|a| a.format.as_str() == &**format);
            let known = known.ok_or_else(|| {
                Problem::refused(format!(
                    "`artifacts` of image {image} has no entry for {format}"
                ))
            })?;
            files.push(Wanted {
                format: format
                    .parse()
                    .map_err(|error: BadFormat| Problem::refused(error.to_string()))?,
                // What a build has published does not change.
                url: artifact
                    .url
                    .parse()
                    .map_err(|error: BadUrl| Problem::failed(error.to_string()))?,
                artifact: artifact.clone(),
                compression: known.compression,
            });
        }
        if files.is_empty() {
            return Err(Problem::refused("nothing is to be fetched: name artifacts"));
        }
        Ok(Self { how, job, files })
    }

    pub(super) fn formats(&self) -> Vec<Format> {
        self.files.iter().map(|file| file.format.clone()).collect()
    }

    pub(super) fn time_limit(&self) -> Duration {
        *self.how.download_timeout
    }

    /// Fetches all files into the draft.
    pub(super) async fn make(
        &self,
        context: &Context,
        draft: &mut Draft,
        console: &mut Console,
    ) -> Result<(), Problem> {
        let build = &self.job.build;
        console
            .say(&format!("importing build {} of Zuul", build.uuid))
            .await;
        let repository = context.repository.clone();
        let how = self.how.clone();
        let client = tokio::task::spawn_blocking(move || {
            forget_downloads(&repository);
            zuul::download_client(&how)
        });
        let client = client
            .await?
            .map_err(|error| Problem::unable(with_causes(&error)))?;
        let mut artifacts = BTreeMap::new();
        for wanted in &self.files {
            let fetched = self.fetch(context, &client, wanted, draft, console).await;
            match fetched {
                Ok(fetched) => {
                    artifacts.insert(wanted.format.as_str().into(), fetched);
                }
                Err(problem) => {
                    let failure = problem.clone().into_failure();
                    console.say(&format!("failed: {}", failure.reason)).await;
                    return Err(problem);
                }
            }
        }
        let provenance = Provenance {
            api_url: self.how.api_url.as_str().into(),
            tenant: self.how.tenant.as_deref().map(Into::into),
            build: build.clone(),
            fetched: now(),
            artifacts,
        };
        let text = serde_json::to_vec_pretty(&provenance).unwrap_or_default();
        draft
            .keep(PROVENANCE, &text)
            .map_err(|error| Problem::unable(with_causes(&error)))?;
        console.say("everything is here and as promised").await;
        Ok(())
    }

    async fn fetch(
        &self,
        context: &Context,
        client: &Client,
        wanted: &Wanted,
        draft: &mut Draft,
        console: &mut Console,
    ) -> Result<ArtifactProvenance, Problem> {
        let Wanted {
            format,
            artifact,
            url,
            ..
        } = wanted;
        let order = self.order(wanted);
        let line = format!(
            "{format}: fetching {}, {}, from {url}",
            artifact.name, order.packing
        );
        console.say(&line).await;
        let place = draft
            .downloads()
            .join(format!("{}.{format}", self.job.build.uuid));
        let target = draft.scratch().join(format.as_str());
        let repository = context.repository.clone();
        let room: Room = Arc::new(move |bytes| repository.check_room(bytes));
        let seen = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let meter: Meter = {
            let seen = Arc::clone(&seen);
            Arc::new(move |done, all| {
                seen.0.store(done, Ordering::Relaxed);
                seen.1.store(all.unwrap_or(0), Ordering::Relaxed);
            })
        };
        let fetched = {
            let mut fetch =
                std::pin::pin!(download(client, &order, &place, &target, &room, &meter));
            loop {
                tokio::select! {
                    fetched = &mut fetch => break fetched,
                    () = tokio::time::sleep(TICK) => {
                        let (done, all) = (&seen.0, &seen.1);
                        console.progress(done.load(Ordering::Relaxed), all.load(Ordering::Relaxed));
                    }
                }
            }
        };
        let fetched = fetched.map_err(|error| problem(&error))?;
        check_header(&target, format).await?;
        let forms = [&fetched.sent, &fetched.plain];
        let signed_by = self.check_signature(client, wanted, forms).await?;
        draft
            .install(format, &target, Some(fetched.plain.digests.clone()))
            .map_err(|error| Problem::unable(with_causes(&error)))?;
        let digest = fetched.plain.digests.sha256.as_deref().unwrap_or("unknown");
        let checked = if fetched.promised.is_empty() {
            "no digest was promised"
        } else {
            "as promised"
        };
        let line = format!(
            "{format}: {} bytes came and are {} bytes, SHA-256 {digest}, {checked}",
            fetched.sent.size, fetched.plain.size
        );
        console.say(&line).await;
        Ok(ArtifactProvenance {
            name: artifact.name.clone(),
            url: format!("{}{}", url.origin(), url.path()).into(),
            packing: order.packing,
            sent: fetched.sent,
            plain: fetched.plain,
            promised: fetched.promised,
            signed_by,
        })
    }

    /// Whether the artifact is signed as the configuration wants it; returns the id of the key.
    async fn check_signature(
        &self,
        client: &Client,
        wanted: &Wanted,
        forms: [&Form; 2],
    ) -> Result<Option<Box<str>>, Problem> {
        let how = &self.how;
        let Some(policy) = &how.signature else {
            return Ok(None);
        };
        let key = tokio::fs::read(&policy.key_file).await.map_err(|error| {
            Problem::unable(format!(
                "the key {} cannot be read: {error}",
                policy.key_file
            ))
        })?;
        let key =
            PublicKey::from_pem(&key).map_err(|error| Problem::unable(with_causes(&error)))?;
        let signature = signature(client, wanted).await?;
        let build = &self.job.build;
        let claims = Claims {
            project: &how.project,
            job: &how.job,
            pipelines: &how.pipelines,
            branches: &how.branches,
            pipeline: build.pipeline.as_deref(),
            branch: build.branch.as_deref(),
        };
        let digests = forms.map(|form| &form.digests);
        key.verify(&signature, &digests, &claims)
            .map_err(|error| Problem::failed(with_causes(&error)))?;
        Ok(Some(key.id().into()))
    }

    fn order(&self, wanted: &Wanted) -> Download {
        let how = &self.how;
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Download {
            packing: zuul::packing(wanted.compression, &wanted.url),
            promised: zuul::promised(&wanted.artifact.metadata),
            checksum: match how.checksum {
                config::Checksum::Required => Checksum::Required,
                config::Checksum::IfAvailable => Checksum::IfAvailable,
                config::Checksum::Off => Checksum::Off,
            },
            max_size: how.max_size,
            connections: number(how.download_connections).min(64),
            retries: number(how.download_retries),
            rate: how.download_rate,
            ..Download::new(wanted.url.clone())
        }
    }
}

/// The signature in an artifact's metadata, or in a file beside it.
async fn signature(client: &Client, wanted: &Wanted) -> Result<Vec<u8>, Problem> {
    match wanted.artifact.metadata.get("signature") {
        Some(Value::String(text)) => return Ok(text.clone().into_bytes()),
        Some(object @ Value::Object(_)) => return Ok(object.to_string().into_bytes()),
        _ => {}
    }
    let missing = || {
        Problem::failed(
            "the artifact is not signed: its metadata has no `signature`, and no file beside it ends in .sigstore.json",
        )
    };
    let url = wanted
        .url
        .with_suffix(".sigstore.json")
        .ok_or_else(missing)?;
    let failed = |error| problem(&DownloadError::Fetch(error));
    let response = client.send(&Request::get(url)).await.map_err(failed)?;
    match response.status {
        StatusCode::OK => response.body.whole(LONGEST_SIGNATURE).await.map_err(failed),
        status if is_transient_status(status) => Err(Problem::unable(format!(
            "the signature of the artifact cannot be had now (status {status})"
        ))),
        _ => Err(missing()),
    }
}

/// A disk that is only complete with other files would have our programs read files of this host.
async fn check_header(path: &Path, format: &Format) -> Result<(), Problem> {
    let (path, format) = (path.to_owned(), format.clone());
    blocking(move || {
        inspect(&path, &format)
            .map(drop)
            .map_err(|error| Problem::failed(with_causes(&error)))
    })
    .await
}

/// What is wrong with the file itself will be wrong the next time; all else may be better then, or elsewhere.
fn problem(error: &DownloadError) -> Problem {
    let reason = with_causes(error);
    if error.is_permanent() {
        Problem::failed(reason)
    } else {
        Problem::unable(reason)
    }
}
