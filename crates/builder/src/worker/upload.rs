//! `image-upload:<id>`: uploads an image to a cloud.
//!
//! An upload has the id of its record if a steward requests it, and a generated id otherwise. The manifest records its outcome, so
//! a repeated request returns the same result, and an upload that was interrupted by a crash is resumed.

mod task;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::join_all;
use nodeyard_config::Config;
use nodeyard_driver::{self as driver, Driver, Owner};
use nodeyard_gearman::worker::Job;
use nodeyard_image::{ImageId, Manifest, ManifestState, UploadOutcome};
use nodeyard_model::{BuildKey, ImageName, ProviderName, UploadId, UploadKey, coded, now};
use tokio::sync::watch;

use self::task::UploadTask;
use super::info::from_manifest;
use super::shared_tasks::{SharedTask, SharedTasks};
use super::task_error::TaskError;
use super::{WorkerContext, provider, upload_delete};
use crate::jobs::{UploadDeleteJob, UploadJob, UploadResult, from_payload, to_payload};

/// The first generated id. Ids of records are counted from 0 and do not reach it.
const FIRST_GENERATED_ID: u64 = 5_000_000_000;

/// The progress units of an upload: convert, upload, run the hook.
const STEPS: u64 = 3 * STEP;

/// The progress units of one step.
const STEP: u64 = 1000;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct UploadTaskKey {
    id: ImageId,
    provider: ProviderName,
    upload: UploadId,
}

impl UploadTaskKey {
    /// Returns whether the upload has a record. Otherwise only this worker knows it.
    fn has_record(&self) -> bool {
        self.upload.sequence() < FIRST_GENERATED_ID
    }
}

/// The running uploads, and the images for which uploads are blocked.
#[derive(Debug, Default)]
pub(super) struct RunningUploads {
    tasks: SharedTasks<UploadTaskKey, watch::Receiver<u64>, UploadResult>,
    blocked: Mutex<HashSet<ImageId>>,
}

/// Blocks uploads of an image until dropped.
#[derive(Debug)]
pub(super) struct UploadBlock<'u> {
    uploads: &'u RunningUploads,
    id: ImageId,
}

impl RunningUploads {
    pub(super) fn running(&self) -> Vec<(ImageId, ProviderName)> {
        let keys = self.tasks.keys().into_iter();
        keys.map(|key| (key.id, key.provider)).collect()
    }

    pub(super) fn is_running(
        &self,
        id: &ImageId,
        provider: &ProviderName,
        upload: Option<UploadId>,
    ) -> bool {
        upload.is_some_and(|upload| {
            let key = UploadTaskKey {
                id: id.clone(),
                provider: provider.clone(),
                upload,
            };
            self.tasks.get(&key).is_some()
        })
    }

    /// Blocks uploads of an image. Returns `None` if an upload is running or uploads are already blocked.
    pub(super) fn block(&self, id: &ImageId) -> Option<UploadBlock<'_>> {
        let mut blocked = self.blocked.lock().unwrap_or_else(PoisonError::into_inner);
        let busy = self.tasks.keys().iter().any(|key| key.id == *id);
        (!busy && blocked.insert(id.clone())).then(|| UploadBlock {
            uploads: self,
            id: id.clone(),
        })
    }
}

impl Drop for UploadBlock<'_> {
    fn drop(&mut self) {
        let blocked = &self.uploads.blocked;
        blocked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.id);
    }
}

pub(super) async fn serve(
    context: &Arc<WorkerContext>,
    id: &ImageId,
    job: &Job,
) -> Result<Vec<u8>, TaskError> {
    let order: UploadJob = from_payload(job.function(), job.payload())?;
    let work = match start(context, id, &order)? {
        UploadStart::Running(work) => work,
        UploadStart::Done(result) => return Ok(to_payload(&result)),
    };
    let mut steps = work.view.clone();
    let report = async {
        loop {
            let done = *steps.borrow_and_update();
            job.progress(done, STEPS).await;
            if steps.changed().await.is_err() {
                return;
            }
        }
    };
    let ((), result) = tokio::join!(report, work.outcome());
    Ok(to_payload(&result?))
}

/// A running upload, or the result of an earlier one.
enum UploadStart {
    Running(SharedTask<watch::Receiver<u64>, UploadResult>),
    Done(UploadResult),
}

fn start(
    context: &Arc<WorkerContext>,
    id: &ImageId,
    order: &UploadJob,
) -> Result<UploadStart, TaskError> {
    let uploads = &context.uploads;
    // Locked to the end, so that no other upload is started or blocked in between.
    let blocked = uploads
        .blocked
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let upload = match order.upload_id {
        Some(upload) if order.managed.is_some() && upload.sequence() < FIRST_GENERATED_ID => upload,
        Some(_) => {
            return Err(TaskError::refused(
                "`upload-id` must be the id of an upload record and requires `managed`",
            ));
        }
        None if order.managed.is_some() => {
            return Err(TaskError::refused(
                "`managed` requires `upload-id`, the id of an upload record",
            ));
        }
        None => generate_upload_id(context, id, &order.provider)?,
    };
    let key = UploadTaskKey {
        id: id.clone(),
        provider: order.provider.clone(),
        upload,
    };
    if let Some(work) = uploads.tasks.get(&key) {
        return Ok(UploadStart::Running(work));
    }
    // A task records its outcome before it ends, so this is current.
    let manifest = context.repository.get(id);
    let manifest = manifest
        .filter(|manifest| manifest.state == ManifestState::Ready && !blocked.contains(id))
        .ok_or_else(|| {
            TaskError::missing(format!(
                "image {id} does not exist on this worker or is not ready"
            ))
        })?;
    let mut known = manifest.uploads.iter();
    let known = known.find(|one| one.provider == key.provider && one.upload_id == Some(upload));
    match known.map(|known| &known.outcome) {
        Some(UploadOutcome::Ready {
            external_id,
            external_name,
            format,
        }) => {
            return Ok(UploadStart::Done(UploadResult {
                external_id: external_id.clone(),
                external_name: external_name.clone(),
                format: format.clone(),
            }));
        }
        Some(UploadOutcome::Failed(failure)) => {
            return Err(TaskError::Failed(from_manifest(failure)));
        }
        Some(UploadOutcome::Pending | UploadOutcome::Interrupted) | None => {}
    }
    if manifest.files.is_empty() {
        let reason = format!("image {id} has no files on this worker any more");
        return Err(TaskError::missing(reason));
    }
    let work = uploads.tasks.get_or_start(key.clone(), &context.tasks, || {
        let upload = UploadTask::of(context, &manifest, order, key, known.is_some())?;
        let (publish, steps) = watch::channel(0);
        Ok::<_, TaskError>((steps, upload.run(publish)))
    });
    work.map(UploadStart::Running)
}

/// Returns the id of a running upload without a record, or generates a new one.
fn generate_upload_id(
    context: &WorkerContext,
    id: &ImageId,
    provider: &ProviderName,
) -> Result<UploadId, TaskError> {
    let running = context
        .uploads
        .tasks
        .keys()
        .into_iter()
        .find(|key| key.id == *id && key.provider == *provider && !key.has_record());
    if let Some(running) = running {
        return Ok(running.upload);
    }
    let manifest = context.repository.get(id);
    let uploads = manifest.iter().flat_map(|manifest| &manifest.uploads);
    let taken = uploads.filter_map(|upload| upload.upload_id);
    let taken = taken.map(UploadId::sequence).max().unwrap_or(0);
    let fresh = FIRST_GENERATED_ID + now().as_secs() as u64;
    let id = format!("{:010}", fresh.max(taken + 1));
    id.parse()
        .map_err(|_| TaskError::Internal("upload ids are exhausted".to_owned()))
}

fn upload_key(manifest: &Manifest, key: &UploadTaskKey) -> UploadKey {
    UploadKey {
        build: BuildKey {
            image: manifest.image.clone(),
            build: provider::build_id(&key.id),
        },
        provider: key.provider.clone(),
        upload: key.upload,
    }
}

/// Returns the driver of a provider for an owner.
pub(super) fn find_driver(
    context: &WorkerContext,
    config: &Config,
    managed: Option<&str>,
    name: &ProviderName,
) -> Result<(Arc<dyn Driver>, Owner), TaskError> {
    let found = config.provider(name.as_str());
    let found = found.ok_or_else(|| {
        TaskError::refused(format!(
            "provider {name} is not in the configuration of this worker"
        ))
    })?;
    let managed = provider::managed(managed)?;
    let owner = provider::owner(managed.as_deref(), context.repository.builder_id(), name);
    let driver = context
        .drivers
        .get(found, &owner)
        .map_err(|error: driver::Error| {
            TaskError::unable(format!("provider {name}: {}", coded(&error)))
        })?;
    if driver.images().is_none() {
        return Err(TaskError::refused(format!(
            "provider {name} does not support image uploads"
        )));
    }
    Ok((driver, owner))
}

/// Returns whether the id was generated for an upload without a record.
pub(super) fn is_generated(id: UploadId) -> bool {
    id.sequence() >= FIRST_GENERATED_ID
}

/// Returns the failed uploads of an image that have no record and may have left remains in a cloud, which only this worker can
/// delete.
pub(super) fn lost_uploads(context: &WorkerContext, id: &ImageId) -> Vec<LostUpload> {
    let pending = || {
        let image = context.repository.get(id);
        let uploads = image.iter().flat_map(|image| {
            image
                .uploads
                .iter()
                .map(move |upload| (&image.image, upload))
        });
        let lost = uploads.filter_map(|(image, upload)| {
            let id = upload.upload_id.filter(|id| is_generated(*id))?;
            (upload.outcome == UploadOutcome::Pending).then(|| LostUpload {
                image: image.clone(),
                provider: upload.provider.clone(),
                upload: id,
            })
        });
        lost.collect::<Vec<LostUpload>>()
    };
    let mut lost = pending();
    lost.retain(|lost| {
        !context
            .uploads
            .is_running(id, &lost.provider, Some(lost.upload))
    });
    // An upload that was just ending has recorded its outcome by now.
    if !lost.is_empty() {
        let still = pending();
        lost.retain(|lost| still.contains(lost));
    }
    lost
}

/// An upload without a record whose outcome is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LostUpload {
    image: ImageName,
    pub(super) provider: ProviderName,
    upload: UploadId,
}

/// Deletes the remains of lost uploads from their clouds.
pub(super) async fn delete_lost_uploads(
    context: &Arc<WorkerContext>,
    of: impl Fn(&ImageId) -> bool,
) {
    let images = context.repository.images();
    let images = images.iter().filter(|image| of(&image.id));
    let deletions = images.flat_map(|image| {
        let id = &image.id;
        let lost = lost_uploads(context, id).into_iter();
        lost.map(move |lost| delete_lost_upload(context, id, lost))
    });
    join_all(deletions).await;
}

async fn delete_lost_upload(context: &Arc<WorkerContext>, id: &ImageId, lost: LostUpload) {
    let LostUpload {
        image,
        provider,
        upload,
    } = lost;
    let order = UploadDeleteJob {
        image,
        image_id: id.clone(),
        external_id: None,
        managed: None,
        upload_id: Some(upload),
    };
    let removed = match upload_delete::start(context, &provider, order) {
        Ok(deletion) => deletion.outcome().await,
        Err(problem) => Err(problem),
    };
    if let Err(problem) = removed {
        let failure = problem.into_failure();
        let reason = context.redactor().mask(&failure.reason);
        tracing::warn!(%id, %provider, reason, "failed to delete remains of upload from cloud; retrying later");
    }
}
