//! Uploads builds to providers: submits upload jobs and records their results.

use std::collections::BTreeMap;

use nodeyard_image::ImageId;
use nodeyard_model::{
    BuildId, ImageBuild, ImageName, ImageUpload, ProviderName, UploadKey, UploadState,
};
use nodeyard_plan::images::{Action, ImageState, Subject, UploadRef};
use nodeyard_store::lock::LockGuard;
use nodeyard_store::{Result, TreePath, ext};
use tokio::time::Instant;

use super::calls::CallOutcome;
use super::context::{StewardContext, WorkFailure, WorkOutcome, key, now};
use super::notes::ImageNotes;
use super::progress::ProgressReporter;
use super::recovery::{JobResult, ReportedState};
use super::renewable_lock::RenewableLock;
use crate::jobs::{
    FailureKind, Function, JobFailure, UploadDeleteJob, UploadJob, UploadResult, from_payload,
};

impl StewardContext {
    pub(super) async fn upload(
        &self,
        image: &ImageName,
        build: BuildId,
        provider: &ProviderName,
    ) -> Result<WorkOutcome> {
        let action = Action::Upload {
            build,
            provider: provider.clone(),
        };
        let Some(lock) = self.lock_upload_of(image, build, provider, &action).await? else {
            return Ok(WorkOutcome::Skipped);
        };
        let build = key(image, build);
        let images = self.registry.images();
        let Some(built) = images.build(&build).await? else {
            lock.release().await?;
            return Ok(WorkOutcome::Skipped);
        };
        let mut record = ImageUpload::new(UploadState::Uploading, now());
        copy_login(&mut record, &built.value);
        let (upload, _) = images.create_upload(&build, provider, &record).await?;
        tracing::info!(%image, build = %build.build, %provider, upload = %upload.upload, "started upload");
        let attempt = UploadAttempt::new(self, upload, built.value, built.stat.czxid);
        attempt.submit(lock).await
    }

    /// Recovers the result of an upload whose steward is gone.
    pub(super) async fn settle_upload(
        &self,
        image: &ImageName,
        upload: &UploadRef,
    ) -> Result<WorkOutcome> {
        let action = Action::SettleUpload(upload.clone());
        let UploadRef {
            build, provider, ..
        } = upload;
        let Some(lock) = self
            .lock_upload_of(image, *build, provider, &action)
            .await?
        else {
            return Ok(WorkOutcome::Skipped);
        };
        tracing::info!(%image, %upload, "resumed upload without steward");
        let build = key(image, *build);
        let built = self.registry.images().build(&build).await?;
        let Some(built) = built else {
            lock.release().await?;
            return Ok(WorkOutcome::Skipped);
        };
        let job_result = self
            .recover_upload(build.build, upload.upload, provider)
            .await;
        let key = UploadKey {
            build,
            provider: provider.clone(),
            upload: upload.upload,
        };
        let mut attempt = UploadAttempt::new(self, key, built.value, built.stat.czxid);
        attempt.observed_from_start = false;
        attempt.finish(lock, job_result).await
    }

    async fn lock_upload_of(
        &self,
        image: &ImageName,
        build: BuildId,
        provider: &ProviderName,
        action: &Action,
    ) -> Result<Option<RenewableLock>> {
        let key = key(image, build);
        let lock = self.registry.images().uploading_lock(&key, provider)?;
        let Some(lock) = RenewableLock::try_acquire(lock).await? else {
            return Ok(None);
        };
        let unlock = |image_state: &mut ImageState| {
            if let Some(build) = image_state.builds.get_mut(&build) {
                build.uploading.remove(provider);
            }
        };
        if self.confirm(image, action, unlock).await?.is_some() {
            return Ok(Some(lock));
        }
        lock.release().await?;
        // Locking has recreated the record of a deleted build without data.
        let path = TreePath::new(nodeyard_model::layout::build(&key))?;
        let tree = &**self.registry.tree();
        let empty_record = ext::get_opt(tree, &path).await?;
        if empty_record.is_some_and(|record| record.data.is_empty()) {
            ext::delete_recursive(tree, &path).await?;
        }
        Ok(None)
    }
}

fn copy_login(upload: &mut ImageUpload, build: &ImageBuild) {
    upload.username.clone_from(&build.username);
    upload.python_path.clone_from(&build.python_path);
    upload.shell_type.clone_from(&build.shell_type);
}

/// An upload with a record.
struct UploadAttempt<'c> {
    ctx: &'c StewardContext,
    key: UploadKey,
    built: ImageBuild,
    /// The creation transaction of the build record.
    order: i64,
    started: Instant,
    /// Whether the whole upload was observed, so that its duration is known.
    observed_from_start: bool,
}

impl<'c> UploadAttempt<'c> {
    fn new(ctx: &'c StewardContext, key: UploadKey, built: ImageBuild, order: i64) -> Self {
        Self {
            ctx,
            key,
            built,
            order,
            started: Instant::now(),
            observed_from_start: true,
        }
    }

    async fn submit(&self, lock: RenewableLock) -> Result<WorkOutcome> {
        let ctx = self.ctx;
        let UploadKey {
            build,
            provider,
            upload,
        } = &self.key;
        let id = ImageId::from(build.build);
        let function = Function::Upload(id.clone());
        let job = UploadJob {
            provider: provider.clone(),
            image_name: Some(build.image.clone()),
            managed: Some((&*ctx.system).into()),
            upload_id: Some(*upload),
            external_name: None,
            metadata: BTreeMap::new(),
        };
        let tree = &**ctx.registry.tree();
        let mut reporter =
            ProgressReporter::start(tree, &build.image, build.build, Some(provider)).await;
        let outcome = match ctx.submit(&function, &job).await {
            Ok(job) => {
                let state = |info| ReportedState::of_upload(info, *upload, provider);
                ctx.follow(&function, build.build, job, &mut reporter, state)
                    .await
            }
            Err(outcome) => outcome,
        };
        let recover = ctx.recover_upload(build.build, *upload, provider);
        let job_result = match outcome {
            CallOutcome::Done(data) => match from_payload::<UploadResult>(&function, &data) {
                Ok(result) => JobResult::Done(result),
                Err(_) => recover.await,
            },
            CallOutcome::Failed(failure) => JobResult::Failed(failure),
            CallOutcome::Lost(reason) => {
                tracing::info!(image = %build.image, build = %build.build, %provider, reason, "lost connection to upload job; asking its worker");
                recover.await
            }
            // The worker stopped, or restarts, since the upload was decided on.
            CallOutcome::NotSent(reason) => JobResult::Failed(JobFailure::interrupted(reason)),
        };
        reporter.end().await;
        self.finish(lock, job_result).await
    }

    async fn finish(
        &self,
        mut lock: RenewableLock,
        job_result: JobResult<UploadResult>,
    ) -> Result<WorkOutcome> {
        let result = match job_result {
            JobResult::Done(result) => Ok(result),
            JobResult::Failed(failure) => Err(failure),
            JobResult::Lost => Err(JobFailure::unable("the upload was lost: no worker has it")),
        };
        let stored = loop {
            match self.store(lock.guard(), result.as_ref().ok()).await {
                Err(error) if error.is_connection() => match lock.renew().await {
                    Err(error) if error.is_no_node() => break false,
                    renewed => renewed?,
                },
                stored => break stored?,
            }
        };
        match result {
            Ok(_) if stored => self.record_success().await?,
            // Without a record it must not stay in the cloud.
            Ok(result) => self.delete_from_cloud(result).await,
            Err(failure) => self.record_upload_failure(failure).await?,
        }
        lock.release().await?;
        Ok(WorkOutcome::Done)
    }

    /// Stores the result. Returns `false` if the record is gone.
    async fn store(&self, guard: &LockGuard, result: Option<&UploadResult>) -> Result<bool> {
        let images = self.ctx.registry.images();
        guard.tree().sync().await?;
        let Some(stored) = images.upload(&self.key).await? else {
            return Ok(false);
        };
        // Otherwise it has already ended or is being deleted, and its record leads to the image.
        if stored.value.state == UploadState::Uploading {
            let record = self.record(stored.value, result);
            images.store_upload(guard, &self.key, &record).await?;
        }
        Ok(true)
    }

    fn record(&self, mut record: ImageUpload, result: Option<&UploadResult>) -> ImageUpload {
        match result {
            Some(result) => {
                copy_login(&mut record, &self.built);
                record.external_id = Some(result.external_id.clone());
                record.external_name = Some(result.external_name.clone());
                record.format = Some(result.format.clone());
                record.set_state(UploadState::Ready, now());
                record
            }
            // Like Nodepool: only the state is kept.
            None => ImageUpload::new(UploadState::Failed, now()),
        }
    }

    async fn record_success(&self) -> Result<()> {
        let UploadKey {
            build, provider, ..
        } = &self.key;
        tracing::info!(image = %build.image, build = %build.build, %provider, "completed upload");
        let took = self.started.elapsed();
        self.ctx.events.uploaded(&build.image, provider, took);
        let subject = self.subject();
        ImageNotes::change(&**self.ctx.registry.tree(), &build.image, |notes| {
            notes.setbacks.remove(&subject);
            if self.observed_from_start {
                notes.durations.add_upload(provider, took);
            }
        })
        .await
    }

    async fn record_upload_failure(&self, failure: JobFailure) -> Result<()> {
        let build = &self.key.build;
        let work_failure = WorkFailure {
            subject: self.subject(),
            build: build.build,
            order: self.order,
            counts: failure.kind != FailureKind::Interrupted,
            reason: failure.reason,
        };
        self.ctx.record_failure(&build.image, work_failure).await
    }

    fn subject(&self) -> Subject {
        Subject::Upload {
            provider: self.key.provider.clone(),
        }
    }

    async fn delete_from_cloud(&self, result: UploadResult) {
        let UploadKey {
            build,
            provider,
            upload,
        } = &self.key;
        let job = UploadDeleteJob {
            image: build.image.clone(),
            image_id: ImageId::from(build.build),
            external_id: Some(result.external_id),
            managed: Some((&*self.ctx.system).into()),
            upload_id: Some(*upload),
        };
        let function = Function::UploadDelete(provider.clone());
        let limit = self.ctx.timing.cloud_call_timeout;
        let outcome = self.ctx.call(&function, &job, limit).await;
        tracing::warn!(image = %build.image, build = %build.build, %provider, ?outcome,
            "deleted upload from cloud because its record is gone");
    }
}
