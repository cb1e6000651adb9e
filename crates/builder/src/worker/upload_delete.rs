//! `upload-delete:<provider>`: removes an image from a cloud, also when its file is long gone.
//!
//! A cloud may take as long as it likes to answer, and a caller that has waited long enough asks again: so whoever asks
//! for a deletion that is under way joins it.

use std::sync::Arc;

use nodeyard_driver::{Driver, ExternalId, ImageTarget};
use nodeyard_gearman::worker::Job;
use nodeyard_image::ManifestState;
use nodeyard_model::{BuildKey, ProviderName, UploadId, UploadKey, with_causes};

use super::problem::{Problem, blocking};
use super::upload::find_driver;
use super::works::{Work, Works};
use super::{Context, cloud, provider};
use crate::jobs::{CLOUD_DELETION, UploadDeleteJob, from_payload};

/// The deletions that run, each by its cloud and what was asked for.
#[derive(Debug, Default)]
pub(super) struct Removals(Works<(ProviderName, UploadDeleteJob), (), ()>);

pub(super) async fn serve(
    context: &Arc<Context>,
    provider: &ProviderName,
    job: &Job,
) -> Result<Vec<u8>, Problem> {
    let order: UploadDeleteJob = from_payload(job.function(), job.payload())?;
    let id = &order.image_id;
    if context.uploads.is_running(id, provider, order.upload_id) {
        return Err(Problem::unable(
            "it is being uploaded; delete it when that has ended",
        ));
    }
    start(context, provider, order)?.outcome().await?;
    Ok(Vec::new())
}

pub(super) fn start(
    context: &Arc<Context>,
    provider: &ProviderName,
    order: UploadDeleteJob,
) -> Result<Work<(), ()>, Problem> {
    let key = (provider.clone(), order.clone());
    context.removals.0.join(key, &context.tasks, || {
        let removal = Removal::of(context, provider, order)?;
        Ok(((), removal.run()))
    })
}

/// One deletion.
struct Removal {
    context: Arc<Context>,
    order: UploadDeleteJob,
    driver: Arc<dyn Driver>,
    target: ImageTarget,
}

impl Removal {
    fn of(
        context: &Arc<Context>,
        provider: &ProviderName,
        order: UploadDeleteJob,
    ) -> Result<Self, Problem> {
        let upload = match (order.upload_id, &order.external_id) {
            (Some(upload), _) => upload,
            (None, Some(_)) => no_upload()?,
            (None, None) => {
                let reason = "without `external-id` and `upload-id` nobody knows what to delete";
                return Err(Problem::refused(reason));
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

    async fn run(self) -> Result<(), Problem> {
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
                return Err(Problem::interrupted("the worker stopped"));
            }
        };
        match deleted {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = with_causes(&error);
                let reason = format!("deletion from {provider}: {error}");
                return Err(Problem::failed(reason));
            }
            Err(_) => {
                let reason = format!("{provider} did not delete it in time");
                return Err(Problem::failed(reason));
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

/// Stands for an upload of which only the image in the cloud is known.
fn no_upload() -> Result<UploadId, Problem> {
    let id = "0000000000".parse();
    id.map_err(|_| Problem::Surprise("zero is no upload id".to_owned()))
}
