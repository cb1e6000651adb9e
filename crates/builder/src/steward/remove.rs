//! Deletes uploads, builds and files.

use std::collections::BTreeSet;

use nodeyard_image::ImageId;
use nodeyard_model::layout::{self, RecordPath};
use nodeyard_model::{BuildId, BuildState, ImageName, UploadKey, UploadState};
use nodeyard_plan::canary::CanaryState;
use nodeyard_plan::images::{Action, ImageState, Subject, UploadRef};
use nodeyard_store::registry::{Attempt, Patience, Registry};
use nodeyard_store::{Result, TreePath, ext};

use super::calls::CallOutcome;
use super::context::{StewardContext, WorkFailure, WorkOutcome, key, now};
use super::notes::ImageNotes;
use crate::jobs::{DeleteJob, FailureKind, Function, JobFailure, UploadDeleteJob};

impl StewardContext {
    /// Deletes an upload from the cloud, then its record.
    pub(super) async fn remove_upload(
        &self,
        image: &ImageName,
        upload: &UploadRef,
    ) -> Result<WorkOutcome> {
        let images = self.registry.images();
        let key = UploadKey {
            build: key(image, upload.build),
            provider: upload.provider.clone(),
            upload: upload.upload,
        };
        let Attempt::Held(mut held) = images.lock_upload(&key, Patience::None).await? else {
            return Ok(WorkOutcome::Skipped);
        };
        let upload_key = (upload.provider.clone(), upload.upload);
        let unlock = |image_state: &mut ImageState| {
            let build = image_state.builds.get_mut(&upload.build);
            if let Some(upload) = build.and_then(|build| build.uploads.get_mut(&upload_key)) {
                upload.locked = false;
            }
        };
        let action = Action::RemoveUpload(upload.clone());
        let Some(image_state) = self.confirm(image, &action, unlock).await? else {
            held.guard.release().await?;
            return Ok(WorkOutcome::Skipped);
        };
        if held.value.state != UploadState::Deleting {
            held.value.set_state(UploadState::Deleting, now());
            images.store_upload(&held.guard, &key, &held.value).await?;
        }
        let job = UploadDeleteJob {
            image: image.clone(),
            image_id: ImageId::from(upload.build),
            external_id: held.value.external_id.clone(),
            managed: Some((&*self.system).into()),
            upload_id: Some(upload.upload),
        };
        let function = Function::UploadDelete(upload.provider.clone());
        let subject = Subject::RemoveUpload(upload.clone());
        match deletion_result(
            self.call(&function, &job, self.timing.cloud_call_timeout)
                .await,
        ) {
            Ok(()) => {
                tracing::info!(%image, %upload, "deleted upload");
                images.delete_upload(&key).await?;
                self.clear_failures(image, &subject).await?;
            }
            Err(failure) => {
                let work_failure = work_failure(&image_state, upload.build, subject, failure);
                self.record_failure(image, work_failure).await?;
            }
        }
        held.guard.release().await?;
        Ok(WorkOutcome::Done)
    }

    /// Deletes the files of a build, then its record unless it still has uploads.
    pub(super) async fn remove_build(
        &self,
        image: &ImageName,
        build: BuildId,
    ) -> Result<WorkOutcome> {
        let images = self.registry.images();
        let key = key(image, build);
        let Attempt::Held(mut held) = images.lock_build(&key, Patience::None).await? else {
            return Ok(WorkOutcome::Skipped);
        };
        let action = Action::RemoveBuild { build };
        let confirmed = self.confirm(image, &action, unlock_build(build)).await?;
        let Some(image_state) = confirmed else {
            held.guard.release().await?;
            return Ok(WorkOutcome::Skipped);
        };
        let tree = &**self.registry.tree();
        // If its worker still has it, it can be adopted.
        let is_lost = held.value.state == BuildState::Failed
            && ImageNotes::read(tree, image)
                .await?
                .lost
                .contains_key(&build);
        if held.value.state != BuildState::Deleting {
            held.value.set_state(BuildState::Deleting, now());
            images.store_build(&held.guard, &key, &held.value).await?;
        }
        let subject = Subject::RemoveBuild { build };
        let deleted = if is_lost {
            Ok(())
        } else {
            self.delete_files(build, &DeleteJob::default()).await
        };
        match deleted {
            Ok(()) => {
                if self.has_uploads(image, build).await? {
                    self.clear_failures(image, &subject).await?;
                } else {
                    tracing::info!(%image, %build, "deleted build");
                    images.delete_build(&key).await?;
                    let in_use = booted_builds(&self.registry, image).await?;
                    ImageNotes::change(tree, image, |notes| notes.forget_build(build, &in_use))
                        .await?;
                    let canary = TreePath::new(layout::image_canary(image))?;
                    ext::change_json(tree, &canary, |state: &mut CanaryState| {
                        state.forget(build);
                    })
                    .await?;
                }
            }
            Err(failure) => {
                let work_failure = work_failure(&image_state, build, subject, failure);
                self.record_failure(image, work_failure).await?;
            }
        }
        held.guard.release().await?;
        Ok(WorkOutcome::Done)
    }

    /// Deletes some files of a build; its record stays.
    pub(super) async fn drop_files(
        &self,
        image: &ImageName,
        build: BuildId,
        formats: &BTreeSet<Box<str>>,
    ) -> Result<WorkOutcome> {
        let images = self.registry.images();
        let attempt = images
            .lock_build(&key(image, build), Patience::None)
            .await?;
        let Attempt::Held(held) = attempt else {
            return Ok(WorkOutcome::Skipped);
        };
        let action = Action::DropFiles {
            build,
            formats: formats.clone(),
        };
        let confirmed = self.confirm(image, &action, unlock_build(build)).await?;
        let Some(image_state) = confirmed else {
            held.guard.release().await?;
            return Ok(WorkOutcome::Skipped);
        };
        let job = DeleteJob {
            formats: formats.iter().cloned().collect(),
        };
        let subject = Subject::DropFiles { build };
        match self.delete_files(build, &job).await {
            Ok(()) => {
                tracing::info!(%image, %build, ?formats, "deleted files after upload");
                ImageNotes::change(&**self.registry.tree(), image, |notes| {
                    notes.setbacks.remove(&subject);
                    let dropped = &mut notes.builds.entry(build).or_default().dropped;
                    dropped.extend(formats.iter().cloned());
                })
                .await?;
            }
            Err(failure) => {
                let work_failure = work_failure(&image_state, build, subject, failure);
                self.record_failure(image, work_failure).await?;
            }
        }
        held.guard.release().await?;
        Ok(WorkOutcome::Done)
    }

    /// Deletes the files of a build. Succeeds if no worker has the image: files of an offline worker are found as orphans when
    /// it returns.
    pub(super) async fn delete_files(
        &self,
        build: BuildId,
        job: &DeleteJob,
    ) -> Result<(), JobFailure> {
        let function = Function::Delete(ImageId::from(build));
        let functions = self.directory.refresh().await;
        if functions.unavailable_reason().is_none() && !functions.is_registered(&function) {
            return Ok(());
        }
        deletion_result(self.call(&function, job, self.timing.call_timeout).await)
    }

    /// Deletes the notes of an image without records, unless nodes that booted from it exist.
    pub(super) async fn forget_image(&self, image: &ImageName) -> Result<()> {
        let tree = &**self.registry.tree();
        let notes = ImageNotes::read(tree, image).await?;
        let gone = notes.builds.iter().filter(|(_, known)| known.gone);
        let gone: BTreeSet<BuildId> = gone.map(|(build, _)| *build).collect();
        if !gone.is_empty() && !gone.is_disjoint(&booted_builds(&self.registry, image).await?) {
            return Ok(());
        }
        ImageNotes::remove(tree, image).await
    }

    async fn has_uploads(&self, image: &ImageName, build: BuildId) -> Result<bool> {
        let functions = self.directory.latest().borrow().clone();
        let image_state = self.load_image_state(image, &functions).await?;
        let build = image_state.builds.get(&build);
        Ok(build.is_some_and(|build| !build.uploads.is_empty() || build.unreadable > 0))
    }
}

/// Returns the builds of an image that existing nodes booted from.
async fn booted_builds(registry: &Registry, image: &ImageName) -> Result<BTreeSet<BuildId>> {
    let nodes = registry.nodes().list().await?;
    let uploads = nodes.iter().filter_map(|(_, node)| {
        let upload = node.value.image_id.as_deref()?;
        match RecordPath::parse(upload)? {
            RecordPath::Upload(key) if key.build.image == *image => Some(key.build.build),
            _ => None,
        }
    });
    Ok(uploads.collect())
}

fn unlock_build(build: BuildId) -> impl FnOnce(&mut ImageState) {
    move |image_state| {
        if let Some(build) = image_state.builds.get_mut(&build) {
            build.locked = false;
        }
    }
}

fn work_failure(
    image_state: &ImageState,
    build: BuildId,
    subject: Subject,
    failure: JobFailure,
) -> WorkFailure {
    let order = image_state
        .builds
        .get(&build)
        .map_or(0, |build| build.order);
    WorkFailure {
        subject,
        build,
        order,
        counts: failure.kind != FailureKind::Interrupted,
        reason: failure.reason,
    }
}

/// Converts the outcome of a deletion. A missing image counts as deleted.
fn deletion_result(outcome: CallOutcome) -> Result<(), JobFailure> {
    match outcome {
        CallOutcome::Done(_) => Ok(()),
        CallOutcome::Failed(failure) if failure.kind == FailureKind::Missing => Ok(()),
        CallOutcome::Failed(failure) => Err(failure),
        CallOutcome::Lost(reason) | CallOutcome::NotSent(reason) => Err(JobFailure::unable(reason)),
    }
}
