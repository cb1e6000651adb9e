//! `upload-delete:<provider>`: deletes an image from a cloud, even if its files no longer exist.
//!
//! A deletion may take longer than a caller waits, so a repeated request joins the running deletion.

use std::sync::Arc;

use nodeyard_driver::{Driver, ExternalId, ImageTarget};
use nodeyard_gearman::worker::Job;
use nodeyard_image::ManifestState;
use nodeyard_model::{BuildKey, ProviderName, UploadId, UploadKey, with_causes};

use super::shared_tasks::{SharedTask, SharedTasks};
use super::task_error::{TaskError, blocking};
use super::upload::find_driver;
use super::{WorkerContext, cloud, provider};
use crate::jobs::{CLOUD_DELETION, UploadDeleteJob, from_payload};

/// The running deletions by provider and job.
#[derive(Debug, Default)]
pub(super) struct CloudDeletions(SharedTasks<(ProviderName, UploadDeleteJob), (), ()>);

pub(super) async fn serve(
    context: &Arc<WorkerContext>,
    provider: &ProviderName,
    job: &Job,
) -> Result<Vec<u8>, TaskError> {
    let order: UploadDeleteJob = from_payload(job.function(), job.payload())?;
    let id = &order.image_id;
    if context.uploads.is_running(id, provider, order.upload_id) {
        return Err(TaskError::unable(
            "the upload is still running; delete it after it has ended",
        ));
    }
    start(context, provider, order)?.outcome().await?;
    Ok(Vec::new())
}

pub(super) fn start(
    context: &Arc<WorkerContext>,
    provider: &ProviderName,
    order: UploadDeleteJob,
) -> Result<SharedTask<(), ()>, TaskError> {
    let key = (provider.clone(), order.clone());
    context.deletions.0.get_or_start(key, &context.tasks, || {
        let deletion = CloudDeletion::of(context, provider, order)?;
        Ok(((), deletion.run()))
    })
}

/// A deletion to be run.
struct CloudDeletion {
    context: Arc<WorkerContext>,
    order: UploadDeleteJob,
    driver: Arc<dyn Driver>,
    target: ImageTarget,
}

impl CloudDeletion {
    fn of(
        context: &Arc<WorkerContext>,
        provider: &ProviderName,
        order: UploadDeleteJob,
    ) -> Result<Self, TaskError> {
        let upload = match (order.upload_id, &order.external_id) {
            (Some(upload), _) => upload,
            (None, Some(_)) => no_upload()?,
            (None, None) => {
                let reason = "`external-id` or `upload-id` is required";
                return Err(TaskError::refused(reason));
            }
        };
        let config = context.config();
        let (driver, _) = find_driver(context, &config, order.managed.as_deref(), provider)?;
        let target = ImageTarget {
            upload: UploadKey {
                build: BuildKey {
                    image: order.image.clone(),
                    build: provider::build_id(&order.image_id),
                },
                provider: provider.clone(),
                upload,
            },
            external_id: order.external_id.as_deref().map(ExternalId::from),
        };
        Ok(Self {
            context: Arc::clone(context),
            order,
            driver,
            target,
        })
    }

    async fn run(self) -> Result<(), TaskError> {
        let Self {
            context,
            order,
            driver,
            target,
        } = self;
        let provider = target.upload.provider.clone();
        let deleted = cloud::delete_image(&*driver, &target);
        let deleted = tokio::select! {
            deleted = tokio::time::timeout(CLOUD_DELETION, deleted) => deleted,
            () = context.stopping.cancelled() => {
                return Err(TaskError::interrupted("the worker stopped"));
            }
        };
        match deleted {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = with_causes(&error);
                let reason = format!("failed to delete the image from {provider}: {error}");
                return Err(TaskError::failed(reason));
            }
            Err(_) => {
                let reason = format!("timed out deleting the image from {provider}");
                return Err(TaskError::failed(reason));
            }
        }
        let known = context.repository.get(&order.image_id);
        if order.upload_id.is_some()
            && known.is_some_and(|known| known.state == ManifestState::Ready)
        {
            let (repository, id) = (context.repository.clone(), order.image_id);
            blocking(move || repository.remove_upload(&id, &provider, order.upload_id)).await?;
        }
        Ok(())
    }
}

/// Returns the placeholder id for an upload of which only the image in the cloud is known.
fn no_upload() -> Result<UploadId, TaskError> {
    let id = "0000000000".parse();
    id.map_err(|_| TaskError::Internal("invalid upload id: 0000000000".to_owned()))
}
