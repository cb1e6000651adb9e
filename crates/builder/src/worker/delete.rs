//! `image-delete:<id>`: removes an image from this host, and never one from a cloud.

use std::sync::Arc;

use nodeyard_gearman::worker::Job;
use nodeyard_image::{Format, ImageId};
use serde_json::Value;

use super::Context;
use super::problem::{Problem, blocking};
use crate::jobs::{DeleteJob, from_payload};

pub(super) async fn serve(
    context: &Arc<Context>,
    id: &ImageId,
    job: &Job,
) -> Result<Vec<u8>, Problem> {
    // The first clients sent anything at all; but who says something about files is to be understood.
    let order: DeleteJob = match serde_json::from_slice(job.payload()) {
        Ok(Value::Object(_)) => from_payload(job.function(), job.payload())?,
        _ => DeleteJob::default(),
    };
    if context.repository.get(id).is_none() {
        context.withdraw_image(id);
        return Err(Problem::missing(format!("image {id} is not here")));
    }
    let _keeps_uploads_away = context.uploads.keep_away(id).ok_or_else(|| {
        Problem::unable(format!(
            "image {id} is being uploaded; delete it when that has ended"
        ))
    })?;
    let repository = context.repository.clone();
    let image = id.clone();
    if !order.formats.is_empty() {
        let formats = order.formats.iter().map(|format| format.parse());
        let formats: Vec<Format> = formats
            .collect::<Result<_, _>>()
            .map_err(|error: nodeyard_image::BadFormat| Problem::refused(error.to_string()))?;
        blocking(move || repository.delete_formats(&image, &formats)).await?;
        return Ok(Vec::new());
    }
    context.withdraw_upload(id);
    let deleted = blocking(move || repository.delete(&image)).await;
    match (&deleted, context.repository.get(id)) {
        // Also after an error: what is left goes at the next start.
        (_, None) => context.withdraw_image(id),
        (_, Some(manifest)) => context.offer_image(id, manifest.state),
    }
    deleted?;
    tracing::info!(%id, "an image is deleted");
    Ok(Vec::new())
}
