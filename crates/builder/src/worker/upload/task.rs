//! Runs one upload: verifies, converts and uploads a file, and runs the hook.

use std::convert::Infallible;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nodeyard_driver::{
    Bytes, Driver, ExternalId, ImageTarget, Owner, Progress, UploadOrder, UploadedImage,
};
use nodeyard_image::{ConversionTarget, Converter, Format, InvalidFormat, Manifest, UploadOutcome};
use nodeyard_model::{UploadKey, coded, now};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{STEP, UploadTaskKey, find_driver, upload_key};
use crate::jobs::{UploadJob, UploadResult};
use crate::worker::info::{INTERRUPTED_UPLOAD, to_manifest};
use crate::worker::provider::ProviderUploadSettings;
use crate::worker::task_error::{TaskError, blocking};
use crate::worker::{WorkerContext, cloud, hook};

/// The time limit for deleting the remains of a failed upload.
const CLEANUP_LIMIT: Duration = Duration::from_secs(300);

/// The default time limit of an upload, which may take a cloud hours to process.
const DEFAULT_UPLOAD_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// A failed upload.
struct FailedUpload {
    problem: TaskError,
    /// Whether remains of it may be in the cloud.
    may_remain_in_cloud: bool,
}

impl From<TaskError> for FailedUpload {
    fn from(problem: TaskError) -> Self {
        Self {
            problem,
            may_remain_in_cloud: false,
        }
    }
}

/// An upload to be run.
pub(super) struct UploadTask {
    context: Arc<WorkerContext>,
    manifest: Arc<Manifest>,
    key: UploadTaskKey,
    /// Whether an earlier worker may have started it.
    resumed: bool,
    settings: ProviderUploadSettings,
    format: Format,
    driver: Arc<dyn Driver>,
    owner: Owner,
    name: Box<str>,
}

impl UploadTask {
    pub(super) fn of(
        context: &Arc<WorkerContext>,
        manifest: &Arc<Manifest>,
        order: &UploadJob,
        key: UploadTaskKey,
        resumed: bool,
    ) -> Result<Self, TaskError> {
        let config = context.config();
        let image = &manifest.image;
        let requested = order.image_name.as_ref().unwrap_or(image);
        if requested != image {
            let id = &key.id;
            return Err(TaskError::refused(format!(
                "image {id} was built for {image}, not for {requested}"
            )));
        }
        let (driver, owner) =
            find_driver(context, &config, order.managed.as_deref(), &key.provider)?;
        let provider = &key.provider;
        let settings = config.provider(provider.as_str()).and_then(|found| {
            ProviderUploadSettings::of(context.drivers.kinds(), &config, found, image.as_str())
        });
        let mut settings = settings.ok_or_else(|| {
            TaskError::refused(format!(
                "provider {provider} does not use image {image} in this worker's configuration"
            ))
        })?;
        settings.metadata.extend(order.metadata.clone());
        let format = settings.format.parse();
        let format =
            format.map_err(|error: InvalidFormat| TaskError::refused(error.to_string()))?;
        let name = match &order.external_name {
            Some(name) => name.clone(),
            None => settings.external_name(image, key.upload, now())?,
        };
        Ok(Self {
            context: Arc::clone(context),
            manifest: Arc::clone(manifest),
            key,
            resumed,
            settings,
            format,
            driver,
            owner,
            name,
        })
    }

    pub(super) async fn run(self, steps: watch::Sender<u64>) -> Result<UploadResult, TaskError> {
        self.record(UploadOutcome::Pending).await?;
        let started = Instant::now();
        let outcome = self.upload(&steps).await;
        self.context.events.uploaded(
            &self.manifest.image,
            &self.key.provider,
            started.elapsed(),
            outcome.is_ok(),
        );
        match &outcome {
            Ok(done) => {
                let ready = UploadOutcome::Ready {
                    external_id: done.external_id.clone(),
                    external_name: done.external_name.clone(),
                    format: done.format.clone(),
                };
                if let Err(problem) = self.record(ready).await {
                    // The upload succeeded, and the caller gets the result.
                    tracing::error!(id = %self.key.id, ?problem, "failed to record completed upload");
                }
            }
            // It is resumed by the next request. Remains of an upload without a record are deleted by the next worker.
            Err(_) if self.context.stopping.is_cancelled() => {
                if self.key.has_record() {
                    self.record(UploadOutcome::Interrupted).await?;
                }
            }
            // It stays pending, so that this worker retries the deletion of its remains. A steward does that by its record.
            Err(failed) if failed.may_remain_in_cloud && !self.key.has_record() => {}
            Err(failed) => {
                let failure = to_manifest(&failed.problem.clone().into_failure());
                self.record(UploadOutcome::Failed(failure)).await?;
            }
        }
        outcome.map_err(|failed| failed.problem)
    }

    async fn record(&self, outcome: UploadOutcome) -> Result<(), TaskError> {
        let (repository, key) = (self.context.repository.clone(), self.key.clone());
        blocking(move || {
            repository.record_upload(&key.id, &key.provider, Some(key.upload), outcome)
        })
        .await
    }

    async fn upload(&self, steps: &watch::Sender<u64>) -> Result<UploadResult, FailedUpload> {
        self.verify().await?;
        let file = self.file(steps).await?;
        steps.send_replace(STEP);
        let order = self.order(file.clone());
        let limit = self.settings.timeout.unwrap_or(DEFAULT_UPLOAD_TIMEOUT);
        let progress = Progress::default();
        let uploaded = cloud::upload(&*self.driver, &order, &progress);
        let uploaded = tokio::select! {
            uploaded = tokio::time::timeout(limit, uploaded) => uploaded,
            () = self.context.stopping.cancelled() => return Err(stopped().into()),
            never = follow(&progress, steps) => match never {},
        };
        let mut external_id = progress.external_id();
        let problem = match uploaded {
            Ok(Ok(image)) => {
                steps.send_replace(2 * STEP);
                external_id = Some(image.external_id.clone());
                match self.run_hook(&image, &file, limit).await {
                    Ok(()) => return Ok(self.result(image).await),
                    Err(problem) => problem,
                }
            }
            Ok(Err(error)) => {
                let provider = &self.key.provider;
                TaskError::failed(format!("upload to {provider}: {}", coded(&error)))
            }
            Err(_) => TaskError::failed(format!(
                "the upload took longer than {} allows, {} seconds",
                self.key.provider,
                limit.as_secs()
            )),
        };
        if self.context.stopping.is_cancelled() {
            return Err(stopped().into());
        }
        Err(FailedUpload {
            problem,
            may_remain_in_cloud: !self.clean_up(external_id).await,
        })
    }

    /// Verifies files that were not built by this worker.
    async fn verify(&self) -> Result<(), TaskError> {
        let (repository, id) = (self.context.repository.clone(), self.key.id.clone());
        let files = self.manifest.files.iter();
        let unchecked = files.filter(|(_, file)| file.verified.is_none());
        let formats: Vec<Format> = unchecked.map(|(format, _)| format.clone()).collect();
        let verified = blocking(move || {
            formats
                .iter()
                .try_for_each(|format| repository.verify(&id, format).map(drop))
        });
        tokio::select! {
            verified = verified => verified,
            () = self.context.stopping.cancelled() => Err(stopped()),
        }
    }

    /// Returns the file in the format of the provider, converting it if needed.
    async fn file(&self, steps: &watch::Sender<u64>) -> Result<PathBuf, TaskError> {
        let (repository, id) = (self.context.repository.clone(), self.key.id.clone());
        if self.manifest.files.contains_key(&self.format) {
            return Ok(repository.path(&id, &self.format)?);
        }
        let target = ConversionTarget {
            format: self.format.clone(),
            compression: self.settings.compression,
        };
        let converter = Converter::default();
        let converted = repository.convert(&id, &target, &converter, |percent| {
            steps.send_replace((f64::from(percent) * STEP as f64 / 100.0) as u64);
        });
        tokio::select! {
            converted = converted => converted?,
            () = self.context.stopping.cancelled() => return Err(stopped()),
        };
        Ok(repository.path(&id, &self.format)?)
    }

    fn order(&self, file: PathBuf) -> UploadOrder {
        let current = self.context.repository.get(&self.key.id);
        let digests = current
            .as_ref()
            .and_then(|manifest| manifest.files.get(&self.format))
            .map(|file| file.digests.clone())
            .unwrap_or_default();
        let upload = self.upload_key();
        UploadOrder {
            tags: self.owner.upload_tags(upload.build.build, upload.upload),
            upload,
            name: self.name.clone(),
            file,
            format: self.format.as_str().into(),
            md5: digests.md5,
            sha256: digests.sha256,
            metadata: self.settings.metadata.clone(),
            marks: self.settings.marks.clone(),
            first_attempt: !self.resumed,
        }
    }

    fn upload_key(&self) -> UploadKey {
        upload_key(&self.manifest, &self.key)
    }

    /// Runs the post-upload hook, if there is one.
    async fn run_hook(
        &self,
        image: &UploadedImage,
        file: &Path,
        limit: Duration,
    ) -> Result<(), TaskError> {
        let Some(hook) = &self.settings.hook else {
            return Ok(());
        };
        let stop = self.context.stopping.child_token();
        let id = image.external_id.to_string();
        let hook_run = hook::run(&self.context, hook, &self.key.provider, &id, file, &stop);
        tokio::pin!(hook_run);
        tokio::select! {
            result = &mut hook_run => return result,
            () = tokio::time::sleep(limit) => stop.cancel(),
        }
        hook_run.await
    }

    async fn result(&self, image: UploadedImage) -> UploadResult {
        let name = self.name_in_cloud(&image).await;
        UploadResult {
            external_id: image.external_id.to_string().into(),
            external_name: name.unwrap_or(image.external_name),
            format: self.format.as_str().into(),
        }
    }

    /// Returns the name that an earlier worker gave the image, which contains another time.
    async fn name_in_cloud(&self, image: &UploadedImage) -> Option<Box<str>> {
        if !self.resumed {
            return None;
        }
        let images = self.driver.images()?.list_images().await.ok()?;
        let found = images.into_iter().find(|one| one.id == image.external_id)?;
        Some(found.name)
    }

    /// Deletes the remains of a failed upload from the cloud. Returns whether that succeeded.
    async fn clean_up(&self, external_id: Option<ExternalId>) -> bool {
        let target = ImageTarget {
            upload: self.upload_key(),
            external_id,
        };
        let removed = cloud::delete_image(&*self.driver, &target);
        let removed = tokio::time::timeout(CLEANUP_LIMIT, removed).await;
        let error: Box<dyn std::error::Error> = match removed {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => Box::new(error),
            Err(late) => Box::new(late),
        };
        tracing::warn!(
            error = &*error, id = %self.key.id, provider = %self.key.provider, upload = %self.key.upload,
            "failed to delete remains of failed upload from cloud"
        );
        false
    }
}

/// Reports the transferred part of the file as progress.
async fn follow(progress: &Progress, steps: &watch::Sender<u64>) -> Infallible {
    let mut reported = progress.subscribe();
    loop {
        let Bytes { sent, total } = reported.borrow_and_update().bytes;
        let part = u128::from(sent.min(total)) * u128::from(STEP) / u128::from(total.max(1));
        steps.send_replace(STEP + u64::try_from(part).unwrap_or(STEP));
        if reported.changed().await.is_err() {
            return pending().await;
        }
    }
}

fn stopped() -> TaskError {
    TaskError::interrupted(INTERRUPTED_UPLOAD)
}
