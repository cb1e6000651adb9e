//! Builds images: submits build jobs and records their results.

use std::collections::BTreeSet;

use nodeyard_image::ImageId;
use nodeyard_model::{BuildId, BuildKey, BuildState, Formats, ImageBuild, ImageName};
use nodeyard_plan::images::{Action, ImageState, Subject};
use nodeyard_store::Result;
use nodeyard_store::lock::LockGuard;
use serde::Serialize;
use tokio::time::Instant;
use uuid::Uuid;

use super::calls::CallOutcome;
use super::context::{StewardContext, WorkFailure, WorkOutcome, key, now};
use super::events::BuildEnded;
use super::notes::ImageNotes;
use super::progress::ProgressReporter;
use super::recovery::{JobResult, ReportedState};
use super::renewable_lock::RenewableLock;
use super::zuul::{FailedImport, ImportSource};
use crate::jobs::{
    BuildJob, BuildResult, FailureKind, Function, ImportJob, JobFailure, Provenance, from_payload,
};

impl StewardContext {
    pub(super) async fn build(
        &self,
        image: &ImageName,
        formats: &BTreeSet<Box<str>>,
    ) -> Result<WorkOutcome> {
        let action = Action::Build {
            formats: formats.clone(),
        };
        let Some((lock, image_state)) = self.lock_image(image, &action).await? else {
            return Ok(WorkOutcome::Skipped);
        };
        if self.adopt_lost_build(&image_state).await? {
            lock.release().await?;
            return Ok(WorkOutcome::Done);
        }
        let key = key(image, BuildId::from_u128(Uuid::new_v4().as_u128()));
        let mut record = ImageBuild::new(BuildState::Building, now());
        record.builder = Some((&*self.hostname).into());
        record.formats = formats.iter().collect();
        let stat = self.registry.images().create_build(&key, &record).await?;
        tracing::info!(%image, build = %key.build, "started build");
        let build = BuildAttempt::new(self, key, stat.czxid, formats.clone());
        build.submit_build(lock).await
    }

    /// Resumes a build whose steward is gone.
    pub(super) async fn resume_build(
        &self,
        image: &ImageName,
        build: BuildId,
    ) -> Result<WorkOutcome> {
        let action = Action::ResumeBuild { build };
        let Some((lock, _)) = self.lock_image(image, &action).await? else {
            return Ok(WorkOutcome::Skipped);
        };
        let key = key(image, build);
        let Some(stored) = self.registry.images().build(&key).await? else {
            lock.release().await?;
            return Ok(WorkOutcome::Skipped);
        };
        tracing::info!(%image, %build, "resumed build without steward");
        let requested = stored.value.formats.iter().map(Box::from).collect();
        let mut attempt = BuildAttempt::new(self, key, stored.stat.czxid, requested);
        attempt.observed_from_start = false;
        if let Some(zuul_build) = &stored.value.zuul_build_uuid {
            attempt = attempt.with_import(self.import_source(image, zuul_build));
        }
        let tree = &**self.registry.tree();
        let reporter = ProgressReporter::start(tree, image, build, None).await;
        let job_result = self.recover_build(&attempt.key, &attempt.function()).await;
        reporter.end().await;
        attempt.finish(lock, job_result).await
    }

    /// Deletes a build request that has been served. The store cannot delete a record on condition of its identity, so requests
    /// are only deleted, also by Python builders, while the image is locked: a newer request cannot take its place in between.
    pub(super) async fn clear_request(&self, image: &ImageName, order: i64) -> Result<WorkOutcome> {
        let action = Action::ClearRequest { order };
        let Some((lock, _)) = self.lock_image(image, &action).await? else {
            return Ok(WorkOutcome::Skipped);
        };
        self.registry.images().delete_build_request(image).await?;
        lock.release().await?;
        Ok(WorkOutcome::Done)
    }

    pub(super) async fn lock_image(
        &self,
        image: &ImageName,
        action: &Action,
    ) -> Result<Option<(RenewableLock, ImageState)>> {
        let lock = self.registry.images().building_lock(image)?;
        let Some(lock) = RenewableLock::try_acquire(lock).await? else {
            return Ok(None);
        };
        let unlock = |image_state: &mut ImageState| image_state.building = false;
        if let Some(image_state) = self.confirm(image, action, unlock).await? {
            return Ok(Some((lock, image_state)));
        }
        lock.release().await?;
        Ok(None)
    }
}

/// A build with a record.
pub(super) struct BuildAttempt<'c> {
    ctx: &'c StewardContext,
    key: BuildKey,
    order: i64,
    requested: BTreeSet<Box<str>>,
    /// The Zuul build to import from.
    import: Option<ImportSource>,
    /// Whether the job was submitted. Otherwise a failure does not count against the Zuul build.
    submitted: bool,
    /// Whether the failure was reported by the worker as the result of the job.
    reported_by_worker: bool,
    started: Instant,
    /// Whether the whole build was observed, so that its duration is known.
    observed_from_start: bool,
}

impl<'c> BuildAttempt<'c> {
    pub(super) fn new(
        ctx: &'c StewardContext,
        key: BuildKey,
        order: i64,
        requested: BTreeSet<Box<str>>,
    ) -> Self {
        Self {
            ctx,
            key,
            order,
            requested,
            import: None,
            submitted: true,
            reported_by_worker: false,
            started: Instant::now(),
            observed_from_start: true,
        }
    }

    /// Makes the attempt an import of a Zuul build.
    pub(super) fn with_import(mut self, import: ImportSource) -> Self {
        self.import = Some(import);
        self
    }

    fn function(&self) -> Function {
        let image = self.key.image.clone();
        match self.import {
            Some(_) => Function::Import(image),
            None => Function::Build(image),
        }
    }

    async fn submit_build(self, lock: RenewableLock) -> Result<WorkOutcome> {
        let job = BuildJob {
            image_id: ImageId::from(self.key.build),
            managed: Some((&*self.ctx.system).into()),
            formats: self.requested.iter().cloned().collect(),
            stream: false,
        };
        self.submit(lock, &job).await
    }

    pub(super) async fn submit_import(
        self,
        lock: RenewableLock,
        job: &ImportJob,
    ) -> Result<WorkOutcome> {
        self.submit(lock, job).await
    }

    async fn submit(mut self, lock: RenewableLock, job: &impl Serialize) -> Result<WorkOutcome> {
        let (ctx, build) = (self.ctx, self.key.build);
        let function = self.function();
        let tree = &**ctx.registry.tree();
        let mut reporter = ProgressReporter::start(tree, &self.key.image, build, None).await;
        let outcome = match ctx.submit(&function, job).await {
            Ok(job) => {
                ctx.follow(
                    &function,
                    build,
                    job,
                    &mut reporter,
                    ReportedState::of_build,
                )
                .await
            }
            Err(outcome) => outcome,
        };
        let job_result = match outcome {
            CallOutcome::Done(data) => match from_payload::<BuildResult>(&function, &data) {
                Ok(result) if result.image_id.build() == Some(build) => JobResult::Done(result),
                // The worker sent a result without details, or an invalid one.
                _ => ctx.recover_build(&self.key, &function).await,
            },
            CallOutcome::Failed(failure) => {
                self.reported_by_worker = true;
                JobResult::Failed(failure)
            }
            CallOutcome::Lost(reason) => {
                tracing::info!(image = %self.key.image, %build, reason, "lost connection to build job; asking its worker");
                ctx.recover_build(&self.key, &function).await
            }
            CallOutcome::NotSent(reason) => {
                self.submitted = false;
                JobResult::Failed(JobFailure::unable(reason))
            }
        };
        reporter.end().await;
        self.finish(lock, job_result).await
    }

    async fn finish(
        self,
        mut lock: RenewableLock,
        job_result: JobResult<BuildResult>,
    ) -> Result<WorkOutcome> {
        let result = match job_result {
            JobResult::Done(result) => Ok(result),
            JobResult::Failed(failure) => Err(failure),
            JobResult::Lost => {
                if self.import.is_none() {
                    self.record_lost().await?;
                }
                Err(JobFailure::unable("the build was lost: no worker has it"))
            }
        };
        // Recorded before the build can be used, so that its origin is always known.
        let provenance = result.as_ref().ok().and_then(|r| r.provenance.as_ref());
        if provenance.is_some() {
            self.record_provenance(provenance).await?;
        }
        let stored = loop {
            match self.store(lock.guard(), result.as_ref().ok()).await {
                Err(error) if error.is_connection() => lock.renew().await?,
                stored => break stored?,
            }
        };
        if stored {
            let is_ready = result.is_ok();
            self.record_result(result).await?;
            if is_ready {
                self.clear_request().await?;
            }
        } else if provenance.is_some() {
            self.record_provenance(None).await?;
        }
        lock.release().await?;
        Ok(WorkOutcome::Done)
    }

    /// Deletes the request that the build serves. The image must be locked.
    async fn clear_request(&self) -> Result<()> {
        let images = self.ctx.registry.images();
        let request = images.build_request(&self.key.image).await?;
        if request.is_some_and(|request| request.czxid < self.order) {
            images.delete_build_request(&self.key.image).await?;
        }
        Ok(())
    }

    /// Returns whether the build can be retried at once: its worker was stopped, or was unable to build the image and another
    /// worker is registered. A worker that was unable has unregistered its function. A build that was lost with its worker is
    /// not retried at once, since it may be the cause of that.
    async fn can_retry_at_once(&self, failure: &JobFailure) -> bool {
        match failure.kind {
            FailureKind::Interrupted => true,
            FailureKind::Unable if self.reported_by_worker => {
                let functions = self.ctx.directory.refresh().await;
                functions.is_registered(&self.function())
            }
            _ => false,
        }
    }

    async fn record_lost(&self) -> Result<()> {
        let tree = &**self.ctx.registry.tree();
        ImageNotes::change(tree, &self.key.image, |notes| {
            notes.add_lost(self.key.build, now());
        })
        .await
    }

    async fn record_provenance(&self, provenance: Option<&Provenance>) -> Result<()> {
        let build = self.key.build;
        let tree = &**self.ctx.registry.tree();
        ImageNotes::change(tree, &self.key.image, |notes| match provenance {
            Some(provenance) => {
                let known = notes.builds.entry(build).or_default();
                known.provenance = Some(provenance.clone());
            }
            None => {
                notes.builds.remove(&build);
            }
        })
        .await
    }

    /// Stores the result. Returns `false` if the build has already ended or its record is gone.
    async fn store(&self, guard: &LockGuard, result: Option<&BuildResult>) -> Result<bool> {
        let images = self.ctx.registry.images();
        guard.tree().sync().await?;
        let stored = images.build(&self.key).await?;
        let building = stored.filter(|stored| stored.value.state == BuildState::Building);
        let Some(stored) = building else {
            return Ok(false);
        };
        let record = self.record(stored.value, result);
        images.store_build(guard, &self.key, &record).await?;
        Ok(true)
    }

    fn record(&self, mut record: ImageBuild, result: Option<&BuildResult>) -> ImageBuild {
        if let Some(image) = self.ctx.image(&self.key.image) {
            record.username = Some(image.username.into());
            record.python_path = Some(image.python_path.into());
            record.shell_type = image.shell_type.map(Into::into);
        }
        match result {
            Some(result) => {
                record.builder = Some(result.builder.clone());
                record.builder_id = Some(result.builder_id.clone());
                record.formats = result.formats.keys().collect::<Formats>();
                record.set_state(BuildState::Ready, now());
            }
            None => record.set_state(BuildState::Failed, now()),
        }
        record
    }

    async fn record_result(&self, result: Result<BuildResult, JobFailure>) -> Result<()> {
        let (ctx, image, build) = (self.ctx, &self.key.image, self.key.build);
        let took = self.started.elapsed();
        let result = match result {
            Ok(result) => result,
            Err(failure) => {
                ctx.events.built(&BuildEnded {
                    image,
                    took,
                    formats: None,
                    exit_code: failure.exit_code.unwrap_or(1),
                });
                let counts = !self.can_retry_at_once(&failure).await;
                if let Some(import) = self.import.as_ref().filter(|_| self.submitted && counts) {
                    let failed = FailedImport {
                        key: &self.key,
                        order: self.order,
                        failure: &failure,
                    };
                    // Another Zuul build can be imported without waiting for this one.
                    if ctx.mark_bad(import, &failed).await? {
                        return ctx.clear_failures(image, &Subject::Build).await;
                    }
                }
                let work_failure = WorkFailure {
                    subject: Subject::Build,
                    build,
                    order: self.order,
                    reason: failure.reason,
                    counts,
                };
                return ctx.record_failure(image, work_failure).await;
            }
        };
        tracing::info!(%image, %build, builder = %result.builder, "completed build");
        let formats: Vec<_> = result.formats.iter().map(|(f, i)| (&**f, i)).collect();
        ctx.events.built(&BuildEnded {
            image,
            took,
            formats: Some(&formats),
            exit_code: 0,
        });
        if let Some(import) = &self.import {
            ctx.clear_bad(image, import).await?;
        }
        if let Some(provenance) = &result.provenance {
            let sent = provenance.artifacts.values().map(|file| file.sent.size);
            ctx.events.fetched(image, sent.sum());
        }
        let made_less = self
            .requested
            .iter()
            .any(|f| !result.formats.contains_key(f));
        ImageNotes::change(&**ctx.registry.tree(), image, |notes| {
            notes.setbacks.remove(&Subject::Build);
            if self.observed_from_start {
                notes.durations.add_build(took);
            }
            if made_less {
                notes.builds.entry(build).or_default().asked = self.requested.clone();
            }
        })
        .await
    }
}
