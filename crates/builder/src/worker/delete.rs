//! `image-delete:<id>`: deletes the files of an image from this host. Does not delete uploads.

use std::sync::Arc;

use nodeyard_gearman::worker::Job;
use nodeyard_image::{Format, ImageId};
use serde_json::Value;

use super::task_error::{TaskError, blocking};
use super::{WorkerContext, upload};
use crate::jobs::{DeleteJob, from_payload};

pub(super) async fn serve(
    context: &Arc<WorkerContext>,
    id: &ImageId,
    job: &Job,
) -> Result<Vec<u8>, TaskError> {
    // Old clients send arbitrary data. An object must be valid.
    let order: DeleteJob = match serde_json::from_slice(job.payload()) {
        Ok(Value::Object(_)) => from_payload(job.function(), job.payload())?,
        _ => DeleteJob::default(),
    };
    if context.repository.get(id).is_none() {
        context.unregister_image(id);
        return Err(TaskError::missing(format!(
            "image {id} does not exist on this worker"
        )));
    }
    let _upload_block = context.uploads.block(id).ok_or_else(|| {
        TaskError::unable(format!(
            "image {id} is being uploaded; delete it after the upload has ended"
        ))
    })?;
    let repository = context.repository.clone();
    let image = id.clone();
    if !order.formats.is_empty() {
        let formats = order.formats.iter().map(|format| format.parse());
        let formats: Vec<Format> =
            formats
                .collect::<Result<_, _>>()
                .map_err(|error: nodeyard_image::InvalidFormat| {
                    TaskError::refused(error.to_string())
                })?;
        let deleted = blocking(move || repository.delete_formats(&image, &formats)).await;
        let left = context.repository.get(id);
        if left.is_none_or(|left| left.files.is_empty()) {
            context.unregister_upload(id);
        }
        deleted?;
        return Ok(Vec::new());
    }
    check_lost_uploads(context, id)?;
    context.unregister_upload(id);
    let deleted = blocking(move || repository.delete(&image)).await;
    match context.repository.get(id) {
        None => context.unregister_image(id),
        // The deletion can be retried.
        Some(_) => context.register_image(id),
    }
    deleted?;
    tracing::info!(%id, "deleted image");
    Ok(Vec::new())
}

/// Refuses the deletion while remains of an upload without a record may be in a cloud, because only the manifest leads to them.
fn check_lost_uploads(context: &Arc<WorkerContext>, id: &ImageId) -> Result<(), TaskError> {
    let config = context.config();
    let (mut lost, unreachable): (Vec<_>, Vec<_>) = upload::lost_uploads(context, id)
        .into_iter()
        .partition(|lost| config.provider(lost.provider.as_str()).is_some());
    let Some(lost) = lost.pop() else {
        for lost in unreachable {
            tracing::warn!(%id, provider = %lost.provider, "failed to delete remains of upload: provider is not in the configuration");
        }
        return Ok(());
    };
    let (context, image) = (Arc::clone(context), id.clone());
    context.tasks.clone().spawn(async move {
        upload::delete_lost_uploads(&context, |id| *id == image).await;
    });
    Err(TaskError::unable(format!(
        "a failed upload of image {id} may have left resources in {}, which are being deleted: delete the image after that; \
         if it keeps failing, see the log of this worker",
        lost.provider
    )))
}
