//! `image-info:<id>`: returns the state of an image on this worker.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use nodeyard_gearman::worker::Job;
use nodeyard_image::{
    self as image, ImageId, Manifest, ManifestState, ManifestUpload, UploadOutcome,
};
use tokio::time::{Instant, timeout_at};

use super::WorkerContext;
use super::follow::{LogFollow, send_log};
use super::import::PROVENANCE;
use super::task_error::TaskError;
use super::upload::is_generated;
use crate::jobs::{
    FailureKind, FormatInfo, ImageInfo, InfoJob, JobFailure, LocalState, Provenance, UploadInfo,
    UploadProgress, UploadResult, from_payload, to_payload,
};
use crate::source::BuildConsole;

/// The names of failure kinds in manifests.
const KINDS: [(FailureKind, &str); 5] = [
    (FailureKind::Refused, "refused"),
    (FailureKind::Unable, "unable"),
    (FailureKind::Interrupted, "interrupted"),
    (FailureKind::Failed, "failed"),
    (FailureKind::Missing, "missing"),
];

/// The failure reason of an upload that was interrupted by the stop of its worker.
pub(super) const INTERRUPTED_UPLOAD: &str =
    "the worker stopped during the upload; request the upload again to resume it";

pub(super) async fn serve(
    context: &Arc<WorkerContext>,
    id: &ImageId,
    job: &Job,
) -> Result<Vec<u8>, TaskError> {
    let order: InfoJob = from_payload(job.function(), job.payload())?;
    let known = || {
        let known = context.repository.get(id);
        known.ok_or_else(|| TaskError::missing(format!("image {id} does not exist on this worker")))
    };
    let manifest = known()?;
    let log_next = match order.log_from {
        Some(from) => send(context, &manifest, job, from, order.follow).await,
        None => None,
    };
    Ok(to_payload(&ImageInfo {
        log_next,
        ..describe(context, &*known()?)
    }))
}

/// Sends the log of a build and returns the offset to continue from, if it has not ended.
///
/// Gearman does not report disconnected clients, so following is limited in time and a client submits another job.
async fn send(
    context: &WorkerContext,
    manifest: &Manifest,
    job: &Job,
    from: u64,
    follow: bool,
) -> Option<u64> {
    let directory = context.config().build_log_dir.clone();
    let path = BuildConsole::path(Path::new(&directory), &manifest.image, &manifest.id);
    if !follow {
        return send_log(job, &path, from, None).await;
    }
    let follows = context.followers.try_acquire();
    let until = match &follows {
        Ok(_) => Instant::now() + context.options.follow_limit,
        // Too many jobs follow logs; send only the current content.
        Err(_) => Instant::now(),
    };
    let Ok(log) = timeout_at(until, context.builds.log(&manifest.id)).await else {
        return Some(from);
    };
    let log_follow = log.map(|log| LogFollow {
        state: log.state,
        until: Some(until),
    });
    send_log(job, &path, from, log_follow).await
}

fn describe(context: &WorkerContext, manifest: &Manifest) -> ImageInfo {
    ImageInfo {
        image_id: manifest.id.clone(),
        image: manifest.image.clone(),
        state: match manifest.state {
            ManifestState::Building => LocalState::Building,
            ManifestState::Ready => LocalState::Ready,
            ManifestState::Failed => LocalState::Failed,
        },
        since: manifest.since,
        builder: manifest.builder.clone(),
        builder_id: manifest.builder_id.clone(),
        managed: manifest.managed.clone(),
        formats: file_infos(manifest),
        provenance: provenance(context, manifest),
        failure: manifest.failure.as_ref().map(|failure| {
            let mut failure = from_manifest(failure);
            failure.reason = context.redactor().mask(&failure.reason);
            failure
        }),
        uploads: manifest
            .uploads
            .iter()
            .map(|upload| describe_upload(context, &manifest.id, upload))
            .collect(),
        log_next: None,
    }
}

fn describe_upload(context: &WorkerContext, id: &ImageId, upload: &ManifestUpload) -> UploadInfo {
    let state = match &upload.outcome {
        UploadOutcome::Pending
            if context
                .uploads
                .is_running(id, &upload.provider, upload.upload_id) =>
        {
            UploadProgress::Uploading
        }
        UploadOutcome::Pending if upload.upload_id.is_some_and(is_generated) => {
            UploadProgress::Failed(JobFailure::new(
                FailureKind::Unable,
                "the upload failed; anything it left in the cloud is being deleted",
            ))
        }
        UploadOutcome::Pending => UploadProgress::Failed(JobFailure::new(
            FailureKind::Unable,
            "the worker ended unexpectedly during the upload; request the upload again to resume it",
        )),
        UploadOutcome::Interrupted => UploadProgress::Failed(JobFailure::new(
            FailureKind::Interrupted,
            INTERRUPTED_UPLOAD,
        )),
        UploadOutcome::Ready {
            external_id,
            external_name,
            format,
        } => UploadProgress::Ready(UploadResult {
            external_id: external_id.clone(),
            external_name: external_name.clone(),
            format: format.clone(),
        }),
        UploadOutcome::Failed(failure) => UploadProgress::Failed(from_manifest(failure)),
    };
    UploadInfo {
        provider: upload.provider.clone(),
        upload_id: upload.upload_id,
        state,
    }
}

/// Returns the provenance of an imported image.
pub(super) fn provenance(context: &WorkerContext, manifest: &Manifest) -> Option<Provenance> {
    let text = context.repository.attachment(&manifest.id, PROVENANCE)?;
    serde_json::from_slice(&text).ok()
}

pub(super) fn file_infos(manifest: &Manifest) -> BTreeMap<Box<str>, FormatInfo> {
    let files = manifest.files.iter().map(|(format, file)| {
        let info = FormatInfo {
            size: file.size,
            allocated: file.allocated,
            md5: file.digests.md5.clone(),
            sha256: file.digests.sha256.clone(),
        };
        (format.as_str().into(), info)
    });
    files.collect()
}

pub(super) fn to_manifest(failure: &JobFailure) -> image::ImageFailure {
    let kind = KINDS.iter().find(|(kind, _)| *kind == failure.kind);
    image::ImageFailure {
        reason: failure.reason.clone(),
        kind: kind.map(|(_, word)| (*word).into()),
        exit_code: failure.exit_code,
    }
}

pub(super) fn from_manifest(failure: &image::ImageFailure) -> JobFailure {
    if failure.reason == image::ImageFailure::INTERRUPTED {
        return JobFailure::new(FailureKind::Unable, "the worker ended during the build");
    }
    let word = failure.kind.as_deref();
    let kind = KINDS.iter().find(|(_, known)| Some(*known) == word);
    JobFailure {
        reason: failure.reason.clone(),
        // Unknown kinds can be retried.
        kind: kind.map_or(FailureKind::Unable, |(kind, _)| *kind),
        exit_code: failure.exit_code,
    }
}
