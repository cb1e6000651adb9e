//! Removing uploads, builds and files.

use std::collections::BTreeSet;

use nodeyard_image::ImageId;
use nodeyard_model::layout::{self, RecordPath};
use nodeyard_model::{BuildId, BuildState, ImageName, UploadKey, UploadState};
use nodeyard_plan::canary::CanaryState;
use nodeyard_plan::images::{Action, ImageState, Subject, UploadRef};
use nodeyard_store::registry::{Attempt, Patience, Registry};
use nodeyard_store::{Result, TreePath, ext};

use super::calls::Answer;
use super::context::{Came, Context, Trouble, key, now};
use super::notes::Notes;
use crate::jobs::{DeleteJob, Failure, FailureKind, Function, UploadDeleteJob};

impl Context {
    /// From the cloud first, then the record.
    pub(super) async fn remove_upload(
        &self,
        image: &ImageName,
        upload: &UploadRef,
    ) -> Result<Came> {
        let images = self.registry.images();
        let key = UploadKey {
            build: key(image, upload.build),
            provider: upload.provider.clone(),
            upload: upload.upload,
        };
        let Attempt::Held(mut held) = images.lock_upload(&key, Patience::None).await? else {
            return Ok(Came::ToNothing);
        };
        let place = (upload.provider.clone(), upload.upload);
        let unlock = |picture: &mut ImageState| {
            let build = picture.builds.get_mut(&upload.build);
            if let Some(upload) = build.and_then(|build| build.uploads.get_mut(&place)) {
                upload.locked = false;
            }
        };
        let action = Action::RemoveUpload(upload.clone());
        let Some(picture) = self.confirm(image, &action, unlock).await? else {
            held.guard.release().await?;
            return Ok(Came::ToNothing);
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
        match gone(self.call(&function, &job, self.timing.cloud_call).await) {
            Ok(()) => {
                tracing::info!(%image, %upload, "upload is deleted");
                images.delete_upload(&key).await?;
                self.worked(image, &subject).await?;
            }
            Err(failure) => {
                let trouble = trouble(&picture, upload.build, subject, failure);
                self.failed(image, trouble).await?;
            }
        }
        held.guard.release().await?;
        Ok(Came::Through)
    }

    /// Its files first; then, unless uploads are left, the record.
    pub(super) async fn remove_build(&self, image: &ImageName, build: BuildId) -> Result<Came> {
        let images = self.registry.images();
        let key = key(image, build);
        let Attempt::Held(mut held) = images.lock_build(&key, Patience::None).await? else {
            return Ok(Came::ToNothing);
        };
        let action = Action::RemoveBuild { build };
        let confirmed = self.confirm(image, &action, unlock_build(build)).await?;
        let Some(picture) = confirmed else {
            held.guard.release().await?;
            return Ok(Came::ToNothing);
        };
        let tree = &**self.registry.tree();
        // If its worker has it after all, it can be taken over.
        let is_lost = held.value.state == BuildState::Failed
            && Notes::read(tree, image).await?.lost.contains_key(&build);
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
                    self.worked(image, &subject).await?;
                } else {
                    tracing::info!(%image, %build, "build is deleted");
                    images.delete_build(&key).await?;
                    let in_use = booted_builds(&self.registry, image).await?;
                    Notes::change(tree, image, |notes| notes.forget_build(build, &in_use)).await?;
                    let canary = TreePath::new(layout::image_canary(image))?;
                    ext::change_json(tree, &canary, |state: &mut CanaryState| {
                        state.forget(build);
                    })
                    .await?;
                }
            }
            Err(failure) => {
                let trouble = trouble(&picture, build, subject, failure);
                self.failed(image, trouble).await?;
            }
        }
        held.guard.release().await?;
        Ok(Came::Through)
    }

    /// Some of its files; the record stays.
    pub(super) async fn drop_files(
        &self,
        image: &ImageName,
        build: BuildId,
        formats: &BTreeSet<Box<str>>,
    ) -> Result<Came> {
        let images = self.registry.images();
        let attempt = images
            .lock_build(&key(image, build), Patience::None)
            .await?;
        let Attempt::Held(held) = attempt else {
            return Ok(Came::ToNothing);
        };
        let action = Action::DropFiles {
            build,
            formats: formats.clone(),
        };
        let confirmed = self.confirm(image, &action, unlock_build(build)).await?;
        let Some(picture) = confirmed else {
            held.guard.release().await?;
            return Ok(Came::ToNothing);
        };
        let job = DeleteJob {
            formats: formats.iter().cloned().collect(),
        };
        let subject = Subject::DropFiles { build };
        match self.delete_files(build, &job).await {
            Ok(()) => {
                tracing::info!(%image, %build, ?formats, "files are deleted after the upload");
                Notes::change(&**self.registry.tree(), image, |notes| {
                    notes.setbacks.remove(&subject);
                    let dropped = &mut notes.builds.entry(build).or_default().dropped;
                    dropped.extend(formats.iter().cloned());
                })
                .await?;
            }
            Err(failure) => {
                let trouble = trouble(&picture, build, subject, failure);
                self.failed(image, trouble).await?;
            }
        }
        held.guard.release().await?;
        Ok(Came::Through)
    }

    /// If nobody answers for the image, its files are gone, or their worker is away: when it returns, they are
    /// found as files without a record.
    pub(super) async fn delete_files(
        &self,
        build: BuildId,
        job: &DeleteJob,
    ) -> Result<(), Failure> {
        let function = Function::Delete(ImageId::from(build));
        let functions = self.directory.fresh().await;
        if functions.silence().is_none() && !functions.answers(&function) {
            return Ok(());
        }
        gone(self.call(&function, job, self.timing.call).await)
    }

    /// Forgets an image that there is nothing left of, unless nodes are.
    pub(super) async fn forget_image(&self, image: &ImageName) -> Result<()> {
        let tree = &**self.registry.tree();
        let notes = Notes::read(tree, image).await?;
        let gone = notes.builds.iter().filter(|(_, known)| known.gone);
        let gone: BTreeSet<BuildId> = gone.map(|(build, _)| *build).collect();
        if !gone.is_empty() && !gone.is_disjoint(&booted_builds(&self.registry, image).await?) {
            return Ok(());
        }
        Notes::remove(tree, image).await
    }

    async fn has_uploads(&self, image: &ImageName, build: BuildId) -> Result<bool> {
        let functions = self.directory.latest().borrow().clone();
        let picture = self.draw(image, &functions).await?;
        let build = picture.builds.get(&build);
        Ok(build.is_some_and(|build| !build.uploads.is_empty() || build.unreadable > 0))
    }
}

/// The builds of an image that nodes have booted from, as their records say.
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
    move |picture| {
        if let Some(build) = picture.builds.get_mut(&build) {
            build.locked = false;
        }
    }
}

fn trouble(picture: &ImageState, build: BuildId, subject: Subject, failure: Failure) -> Trouble {
    let order = picture.builds.get(&build).map_or(0, |build| build.order);
    Trouble {
        subject,
        build,
        order,
        counts: failure.kind != FailureKind::Interrupted,
        reason: failure.reason,
    }
}

/// What is not there is deleted.
fn gone(answer: Answer) -> Result<(), Failure> {
    match answer {
        Answer::Done(_) => Ok(()),
        Answer::Failed(failure) if failure.kind == FailureKind::Missing => Ok(()),
        Answer::Failed(failure) => Err(failure),
        Answer::Lost(reason) | Answer::Unsent(reason) => Err(Failure::unable(reason)),
    }
}
