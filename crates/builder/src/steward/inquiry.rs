//! Finding out what became of a job whose answer did not come.

use nodeyard_image::ImageId;
use nodeyard_model::{BuildId, BuildKey, ProviderName, UploadId};
use tokio::time::Instant;

use super::calls::Answer;
use super::context::Context;
use crate::jobs::{
    BuildResult, Failure, Function, ImageInfo, InfoJob, LocalState, UploadProgress, UploadResult,
    from_payload,
};

/// What there is to know of a job.
#[derive(Debug)]
pub(super) enum Found<T> {
    Done(T),
    Failed(Failure),
    /// Nobody knows of it, and nobody will.
    Nothing,
}

/// What a worker says of a job at one moment.
#[derive(Debug)]
pub(super) enum Stand<T> {
    UnderWay,
    Ended(Found<T>),
    /// It does not know.
    Unknown,
}

impl Stand<BuildResult> {
    pub(super) fn of_build(info: ImageInfo) -> Self {
        match info.state {
            LocalState::Building => Self::UnderWay,
            LocalState::Ready => Self::Ended(Found::Done(BuildResult {
                image_id: info.image_id,
                builder: info.builder,
                builder_id: info.builder_id,
                formats: info.formats,
                provenance: info.provenance,
            })),
            LocalState::Failed => {
                let unsaid = || Failure::unable("the worker does not say why");
                Self::Ended(Found::Failed(info.failure.unwrap_or_else(unsaid)))
            }
        }
    }
}

impl Stand<UploadResult> {
    pub(super) fn of_upload(info: ImageInfo, upload: UploadId, provider: &ProviderName) -> Self {
        let mut uploads = info.uploads.into_iter();
        let ours =
            uploads.find(|known| known.upload_id == Some(upload) && known.provider == *provider);
        match ours.map(|known| known.state) {
            Some(UploadProgress::Uploading) => Self::UnderWay,
            Some(UploadProgress::Ready(result)) => Self::Ended(Found::Done(result)),
            Some(UploadProgress::Failed(failure)) => Self::Ended(Found::Failed(failure)),
            None => Self::Unknown,
        }
    }
}

impl Context {
    /// What a worker says of an image; none if nobody says anything that makes sense.
    pub(super) async fn info(&self, build: BuildId) -> Option<ImageInfo> {
        let function = Function::Info(ImageId::from(build));
        let question = InfoJob::default();
        match self.call(&function, &question, self.timing.call).await {
            Answer::Done(data) => from_payload(&function, &data)
                .inspect_err(|error| {
                    let error = error as &dyn std::error::Error;
                    tracing::warn!(%build, error, "a worker's answer makes no sense");
                })
                .ok()
                .filter(|info: &ImageInfo| info.image_id.build() == Some(build)),
            Answer::Failed(_) | Answer::Lost(_) | Answer::Unsent(_) => None,
        }
    }

    /// Waits for the end of a build that we have no job of.
    ///
    /// Its job may still wait for a worker: that of a steward whose session was lost, which has its job yet.
    pub(super) async fn inquire_build(&self, key: &BuildKey, job: &Function) -> Found<BuildResult> {
        self.inquire(key.build, Some(job), Stand::of_build).await
    }

    /// Waits for the end of an upload that we have no job of.
    pub(super) async fn inquire_upload(
        &self,
        build: BuildId,
        upload: UploadId,
        provider: &ProviderName,
    ) -> Found<UploadResult> {
        self.inquire(build, None, |info| Stand::of_upload(info, upload, provider))
            .await
    }

    async fn inquire<T>(
        &self,
        build: BuildId,
        job: Option<&Function>,
        stand: impl Fn(ImageInfo) -> Stand<T>,
    ) -> Found<T> {
        let function = Function::Info(ImageId::from(build));
        let mut heard = Instant::now();
        loop {
            let functions = self.directory.fresh().await;
            if functions.answers(&function) {
                match self.info(build).await.map(&stand) {
                    Some(Stand::Ended(found)) => return found,
                    Some(Stand::UnderWay) => heard = Instant::now(),
                    Some(Stand::Unknown) | None => {}
                }
            } else if functions.silence().is_some()
                || job.is_some_and(|job| functions.is_called(job))
            {
                // The workers may be well and only we cannot hear them, or nobody has begun yet.
                heard = Instant::now();
            }
            if heard.elapsed() >= self.timing.patience {
                return Found::Nothing;
            }
            tokio::time::sleep(self.timing.inquiry).await;
        }
    }
}
