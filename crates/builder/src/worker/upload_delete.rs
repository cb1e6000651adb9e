//! `upload-delete:<provider>`: removes an image from a cloud, also when its file is long gone.

use std::sync::Arc;
use std::time::Duration;

use nodeyard_driver::{ExternalId, ImageTarget};
use nodeyard_gearman::worker::Job;
use nodeyard_model::{BuildKey, ProviderName, UploadId, UploadKey, with_causes};

use super::problem::{Problem, blocking};
use super::upload::find_driver;
use super::{Context, machine, provider};
use crate::jobs::{UploadDeleteJob, from_payload};

/// How long a cloud may take.
const LIMIT: Duration = Duration::from_secs(60 * 60);

pub(super) async fn serve(
    context: &Arc<Context>,
    provider: &ProviderName,
    job: &Job,
) -> Result<Vec<u8>, Problem> {
    let order: UploadDeleteJob = from_payload(job.function(), job.payload())?;
    let id = &order.image_id;
    let upload = match (order.upload_id, &order.external_id) {
        (Some(upload), _) => upload,
        (None, Some(_)) => no_upload()?,
        (None, None) => {
            let reason = "without `external-id` and `upload-id` nobody knows what to delete";
            return Err(Problem::refused(reason));
        }
    };
    if context.uploads.is_running(id, provider, order.upload_id) {
        return Err(Problem::unable(
            "it is being uploaded; delete it when that has ended",
        ));
    }
    let (driver, _) = find_driver(
        context,
        &context.config(),
        order.managed.as_deref(),
        provider,
    )?;
    let target = ImageTarget {
        upload: UploadKey {
            build: BuildKey {
                image: order.image.clone(),
                build: provider::build_id(id),
            },
            provider: provider.clone(),
            upload,
        },
        external_id: order.external_id.as_deref().map(ExternalId::from),
    };
    let deleted = tokio::select! {
        deleted = tokio::time::timeout(LIMIT, machine::delete(&*driver, &target)) => deleted,
        () = context.stopping.cancelled() => return Err(Problem::unable("the worker stopped")),
    };
    match deleted {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            let error = with_causes(&error);
            return Err(Problem::failed(format!(
                "deletion from {provider}: {error}"
            )));
        }
        Err(_) => {
            return Err(Problem::failed(format!(
                "{provider} did not delete it in time"
            )));
        }
    }
    if order.upload_id.is_some() && context.repository.get(id).is_some() {
        let (repository, id) = (context.repository.clone(), id.clone());
        let (provider, upload) = (provider.clone(), order.upload_id);
        blocking(move || repository.forget_upload(&id, &provider, upload)).await?;
    }
    Ok(Vec::new())
}

/// Stands for an upload of which only the image in the cloud is known.
fn no_upload() -> Result<UploadId, Problem> {
    let id = "0000000000".parse();
    id.map_err(|_| Problem::Surprise("zero is no upload id".to_owned()))
}
