//! Recovers the results of jobs whose response was lost.

use nodeyard_image::ImageId;
use nodeyard_model::{BuildId, BuildKey, ProviderName, UploadId};
use tokio::time::Instant;

use super::calls::CallOutcome;
use super::context::StewardContext;
use crate::jobs::{
    BuildResult, Function, ImageInfo, InfoJob, JobFailure, LocalState, UploadProgress,
    UploadResult, from_payload,
};

/// The result of a job.
#[derive(Debug)]
pub(super) enum JobResult<T> {
    Done(T),
    Failed(JobFailure),
    /// No worker knows the job.
    Lost,
}

/// The state of a job as reported by its worker.
#[derive(Debug)]
pub(super) enum ReportedState<T> {
    Running,
    Ended(JobResult<T>),
    /// The worker does not know the job.
    Unknown,
}

impl ReportedState<BuildResult> {
    pub(super) fn of_build(info: ImageInfo) -> Self {
        match info.state {
            LocalState::Building => Self::Running,
            LocalState::Ready => Self::Ended(JobResult::Done(BuildResult {
                image_id: info.image_id,
                builder: info.builder,
                builder_id: info.builder_id,
                formats: info.formats,
                provenance: info.provenance,
            })),
            LocalState::Failed => {
                let unknown = || JobFailure::unable("the worker gave no reason");
                Self::Ended(JobResult::Failed(info.failure.unwrap_or_else(unknown)))
            }
        }
    }
}

impl ReportedState<UploadResult> {
    pub(super) fn of_upload(info: ImageInfo, upload: UploadId, provider: &ProviderName) -> Self {
        let mut uploads = info.uploads.into_iter();
        let ours =
            uploads.find(|known| known.upload_id == Some(upload) && known.provider == *provider);
        match ours.map(|known| known.state) {
            Some(UploadProgress::Uploading) => Self::Running,
            Some(UploadProgress::Ready(result)) => Self::Ended(JobResult::Done(result)),
            Some(UploadProgress::Failed(failure)) => Self::Ended(JobResult::Failed(failure)),
            None => Self::Unknown,
        }
    }
}

impl StewardContext {
    /// Queries a worker for an image. Returns `None` without a valid response.
    pub(super) async fn info(&self, build: BuildId) -> Option<ImageInfo> {
        let function = Function::Info(ImageId::from(build));
        let question = InfoJob::default();
        match self
            .call(&function, &question, self.timing.call_timeout)
            .await
        {
            CallOutcome::Done(data) => from_payload(&function, &data)
                .inspect_err(|error| {
                    let error = error as &dyn std::error::Error;
                    tracing::warn!(%build, error, "failed to parse image info from worker");
                })
                .ok()
                .filter(|info: &ImageInfo| info.image_id.build() == Some(build)),
            CallOutcome::Failed(_) | CallOutcome::Lost(_) | CallOutcome::NotSent(_) => None,
        }
    }

    /// Waits for the end of a build whose job is not ours.
    ///
    /// Its job may still be queued, if it belongs to a steward that lost its session.
    pub(super) async fn recover_build(
        &self,
        key: &BuildKey,
        job: &Function,
    ) -> JobResult<BuildResult> {
        self.recover(key.build, Some(job), ReportedState::of_build)
            .await
    }

    /// Waits for the end of an upload whose job is not ours.
    pub(super) async fn recover_upload(
        &self,
        build: BuildId,
        upload: UploadId,
        provider: &ProviderName,
    ) -> JobResult<UploadResult> {
        self.recover(build, None, |info| {
            ReportedState::of_upload(info, upload, provider)
        })
        .await
    }

    async fn recover<T>(
        &self,
        build: BuildId,
        job: Option<&Function>,
        state: impl Fn(ImageInfo) -> ReportedState<T>,
    ) -> JobResult<T> {
        let function = Function::Info(ImageId::from(build));
        let mut last_heard = Instant::now();
        loop {
            let functions = self.directory.refresh().await;
            if functions.is_registered(&function) {
                match self.info(build).await.map(&state) {
                    Some(ReportedState::Ended(job_result)) => return job_result,
                    Some(ReportedState::Running) => last_heard = Instant::now(),
                    Some(ReportedState::Unknown) | None => {}
                }
            } else if functions.unavailable_reason().is_some()
                || job.is_some_and(|job| functions.has_jobs(job))
            {
                // The job servers are unreachable, or the job is still queued.
                last_heard = Instant::now();
            }
            if last_heard.elapsed() >= self.timing.lost_after {
                return JobResult::Lost;
            }
            tokio::time::sleep(self.timing.recovery_poll).await;
        }
    }
}
