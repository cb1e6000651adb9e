//! `image-upload:<id>`: brings an image into a cloud.
//!
//! An upload has an id: that of its record when a steward asks, one made up here when somebody else does. The manifest
//! says what became of it, so whoever asks again for the same id gets the same answer, and one that a killed worker
//! left goes on.

mod bring;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::join_all;
use nodeyard_config::Config;
use nodeyard_driver::{self as driver, Driver, Owner};
use nodeyard_gearman::worker::Job;
use nodeyard_image::{ImageId, Manifest, ManifestState, UploadOutcome};
use nodeyard_model::{BuildKey, ImageName, ProviderName, UploadId, UploadKey, coded, now};
use tokio::sync::watch;

use self::bring::Upload;
use super::info::from_manifest;
use super::problem::Problem;
use super::works::{Work, Works};
use super::{Context, provider, upload_delete};
use crate::jobs::{UploadDeleteJob, UploadJob, UploadResult, from_payload, to_payload};

/// Ids from here on are made up; those of records are counted from 0 and never get this far.
const MADE_UP: u64 = 5_000_000_000;

/// What is done in one upload: convert, upload, ask the hook.
const STEPS: u64 = 3 * STEP;

/// As fine as a single step is told.
const STEP: u64 = 1000;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    id: ImageId,
    provider: ProviderName,
    upload: UploadId,
}

impl Key {
    /// Nobody but this worker knows of an upload without a record.
    fn has_record(&self) -> bool {
        self.upload.sequence() < MADE_UP
    }
}

/// The uploads that run, and the images that must have none.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    works: Works<Key, watch::Receiver<u64>, UploadResult>,
    kept_away: Mutex<HashSet<ImageId>>,
}

/// Keeps uploads away from an image.
#[derive(Debug)]
pub(super) struct KeptAway<'u> {
    uploads: &'u Uploads,
    id: ImageId,
}

impl Uploads {
    pub(super) fn running(&self) -> Vec<(ImageId, ProviderName)> {
        let keys = self.works.keys().into_iter();
        keys.map(|key| (key.id, key.provider)).collect()
    }

    pub(super) fn is_running(
        &self,
        id: &ImageId,
        provider: &ProviderName,
        upload: Option<UploadId>,
    ) -> bool {
        upload.is_some_and(|upload| {
            let key = Key {
                id: id.clone(),
                provider: provider.clone(),
                upload,
            };
            self.works.get(&key).is_some()
        })
    }

    /// None while one is under way, or somebody else does the same.
    pub(super) fn keep_away(&self, id: &ImageId) -> Option<KeptAway<'_>> {
        let mut kept_away = self
            .kept_away
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let busy = self.works.keys().iter().any(|key| key.id == *id);
        (!busy && kept_away.insert(id.clone())).then(|| KeptAway {
            uploads: self,
            id: id.clone(),
        })
    }
}

impl Drop for KeptAway<'_> {
    fn drop(&mut self) {
        let kept_away = &self.uploads.kept_away;
        kept_away
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.id);
    }
}

pub(super) async fn serve(
    context: &Arc<Context>,
    id: &ImageId,
    job: &Job,
) -> Result<Vec<u8>, Problem> {
    let order: UploadJob = from_payload(job.function(), job.payload())?;
    let work = match start(context, id, &order)? {
        Asked::Runs(work) => work,
        Asked::Done(result) => return Ok(to_payload(&result)),
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

/// What is asked for runs, or has come to something earlier.
enum Asked {
    Runs(Work<watch::Receiver<u64>, UploadResult>),
    Done(UploadResult),
}

fn start(context: &Arc<Context>, id: &ImageId, order: &UploadJob) -> Result<Asked, Problem> {
    let uploads = &context.uploads;
    // Held to the end: nobody else starts or forbids one meanwhile.
    let kept_away = uploads
        .kept_away
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let upload = match order.upload_id {
        Some(upload) if order.managed.is_some() && upload.sequence() < MADE_UP => upload,
        Some(_) => {
            return Err(Problem::refused(
                "`upload-id` is that of a record, and comes with `managed`",
            ));
        }
        None if order.managed.is_some() => {
            return Err(Problem::refused(
                "`managed` comes with `upload-id`, that of a record",
            ));
        }
        None => made_up(context, id, &order.provider)?,
    };
    let key = Key {
        id: id.clone(),
        provider: order.provider.clone(),
        upload,
    };
    if let Some(work) = uploads.works.get(&key) {
        return Ok(Asked::Runs(work));
    }
    // What came of a work is noted before it ends, so this is not outdated.
    let manifest = context.repository.get(id);
    let manifest = manifest
        .filter(|manifest| manifest.state == ManifestState::Ready && !kept_away.contains(id))
        .ok_or_else(|| Problem::missing(format!("image {id} is not here, or not ready")))?;
    let mut known = manifest.uploads.iter();
    let known = known.find(|one| one.provider == key.provider && one.upload_id == Some(upload));
    match known.map(|known| &known.outcome) {
        Some(UploadOutcome::Ready {
            external_id,
            external_name,
            format,
        }) => {
            return Ok(Asked::Done(UploadResult {
                external_id: external_id.clone(),
                external_name: external_name.clone(),
                format: format.clone(),
            }));
        }
        Some(UploadOutcome::Failed(failure)) => {
            return Err(Problem::Expected(from_manifest(failure)));
        }
        Some(UploadOutcome::Pending | UploadOutcome::Interrupted) | None => {}
    }
    if manifest.files.is_empty() {
        let reason = format!("image {id} has no files here any more");
        return Err(Problem::missing(reason));
    }
    let work = uploads.works.join(key.clone(), &context.tasks, || {
        let upload = Upload::of(context, &manifest, order, key, known.is_some())?;
        let (publish, steps) = watch::channel(0);
        Ok::<_, Problem>((steps, upload.run(publish)))
    });
    work.map(Asked::Runs)
}

/// The id of an upload that has no record: that of one which runs, otherwise one that never was.
fn made_up(context: &Context, id: &ImageId, provider: &ProviderName) -> Result<UploadId, Problem> {
    let running = context
        .uploads
        .works
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
    let fresh = MADE_UP + now().as_secs() as u64;
    let made_up = format!("{:010}", fresh.max(taken + 1));
    made_up
        .parse()
        .map_err(|_| Problem::Surprise("there are no upload ids left".to_owned()))
}

fn upload_key(manifest: &Manifest, key: &Key) -> UploadKey {
    UploadKey {
        build: BuildKey {
            image: manifest.image.clone(),
            build: provider::build_id(&key.id),
        },
        provider: key.provider.clone(),
        upload: key.upload,
    }
}

/// The driver of a provider, for whoever asks.
pub(super) fn find_driver(
    context: &Context,
    config: &Config,
    managed: Option<&str>,
    name: &ProviderName,
) -> Result<(Arc<dyn Driver>, Owner), Problem> {
    let found = config.provider(name.as_str());
    let found = found.ok_or_else(|| {
        Problem::refused(format!(
            "provider {name} is not in the configuration of this worker"
        ))
    })?;
    let managed = provider::managed(managed)?;
    let owner = provider::owner(managed.as_deref(), context.repository.builder_id(), name);
    let driver = context
        .drivers
        .get(found, &owner)
        .map_err(|error: driver::Error| {
            Problem::unable(format!("provider {name}: {}", coded(&error)))
        })?;
    if driver.images().is_none() {
        return Err(Problem::refused(format!(
            "provider {name} takes no uploads"
        )));
    }
    Ok((driver, owner))
}

/// Whether it is that of an upload without a record.
pub(super) fn is_made_up(id: UploadId) -> bool {
    id.sequence() >= MADE_UP
}

/// Uploads of an image that have no record, came to nothing, and may have left something in a cloud: nobody but this
/// worker looks after that.
pub(super) fn lost(context: &Context, id: &ImageId) -> Vec<Lost> {
    let pending = || {
        let image = context.repository.get(id);
        let uploads = image.iter().flat_map(|image| {
            image
                .uploads
                .iter()
                .map(move |upload| (&image.image, upload))
        });
        let lost = uploads.filter_map(|(image, upload)| {
            let id = upload.upload_id.filter(|id| is_made_up(*id))?;
            (upload.outcome == UploadOutcome::Pending).then(|| Lost {
                image: image.clone(),
                provider: upload.provider.clone(),
                upload: id,
            })
        });
        lost.collect::<Vec<Lost>>()
    };
    let mut lost = pending();
    lost.retain(|lost| {
        !context
            .uploads
            .is_running(id, &lost.provider, Some(lost.upload))
    });
    // One that was just ending has noted by now what came of it.
    if !lost.is_empty() {
        let still = pending();
        lost.retain(|lost| still.contains(lost));
    }
    lost
}

/// An upload that nobody knows the end of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lost {
    image: ImageName,
    pub(super) provider: ProviderName,
    upload: UploadId,
}

/// Removes from the clouds what lost uploads of some images have left there.
pub(super) async fn abandon_lost(context: &Arc<Context>, of: impl Fn(&ImageId) -> bool) {
    let images = context.repository.images();
    let images = images.iter().filter(|image| of(&image.id));
    let removals = images.flat_map(|image| {
        let id = &image.id;
        let lost = lost(context, id).into_iter();
        lost.map(move |lost| abandon(context, id, lost))
    });
    join_all(removals).await;
}

async fn abandon(context: &Arc<Context>, id: &ImageId, lost: Lost) {
    let Lost {
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
        Ok(removal) => removal.outcome().await,
        Err(problem) => Err(problem),
    };
    if let Err(problem) = removed {
        let failure = problem.into_failure();
        let reason = context.redactor().mask(&failure.reason);
        tracing::warn!(%id, %provider, reason, "what an upload left in a cloud cannot be removed now; it is tried again");
    }
}
