//! `image-upload:<id>`: brings an image into a cloud.
//!
//! An upload has an id: that of its record when a steward asks, one made up here when somebody else does. The manifest
//! says what became of it, so whoever asks again for the same id gets the same answer, and one that a killed worker
//! left goes on.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nodeyard_config::Config;
use nodeyard_driver::{
    self as driver, Driver, ImageSource, ImageTarget, Owner, State, UploadOrder, UploadedImage,
};
use nodeyard_gearman::worker::Job;
use nodeyard_image::{Converter, Format, ImageId, Manifest, Outcome, Target};
use nodeyard_model::{BuildKey, ProviderName, UploadId, UploadKey};
use tokio::sync::watch;

use super::info::{from_manifest, to_manifest};
use super::problem::{Problem, blocking, with_causes};
use super::provider::{self, UploadSettings};
use super::works::{Work, Works};
use super::{Context, hook, machine, now};
use crate::jobs::{UploadJob, UploadResult, from_payload, to_payload};

/// Ids from here on are made up; those of records are counted from 0 and never get this far.
const MADE_UP: u64 = 5_000_000_000;

/// How long a cloud gets to remove what an upload has left in it.
const CLEANUP_LIMIT: Duration = Duration::from_secs(300);

/// A cloud may fetch or check what it got for hours, but not for ever.
const USUAL_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);

/// What is done in one upload: convert, upload, ask the hook.
const STEPS: u64 = 3;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    id: ImageId,
    provider: ProviderName,
    upload: UploadId,
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
        Ok(work) => work,
        Err(done) => return Ok(to_payload(&done)),
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

type Running = Work<watch::Receiver<u64>, UploadResult>;

/// The work, or what came of it earlier.
fn start(
    context: &Arc<Context>,
    id: &ImageId,
    order: &UploadJob,
) -> Result<Result<Running, UploadResult>, Problem> {
    let uploads = &context.uploads;
    let kept_away = uploads
        .kept_away
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let missing = || Problem::missing(format!("image {id} is not here, or not ready"));
    if kept_away.contains(id) {
        return Err(missing());
    }
    let manifest = context.repository.get(id).ok_or_else(missing)?;
    if manifest.state != nodeyard_image::State::Ready {
        return Err(missing());
    }
    let known = |upload: UploadId| {
        let mut known = manifest.uploads.iter();
        known.find(|one| one.provider == order.provider && one.upload_id == Some(upload))
    };
    let upload = match order.upload_id {
        Some(upload) => upload,
        None => made_up(context, &manifest, &order.provider)?,
    };
    let key = Key {
        id: id.clone(),
        provider: order.provider.clone(),
        upload,
    };
    if uploads.works.get(&key).is_none() {
        match known(upload).map(|known| &known.outcome) {
            Some(Outcome::Ready {
                external_id,
                external_name,
                format,
            }) => {
                return Ok(Err(UploadResult {
                    external_id: external_id.clone(),
                    external_name: external_name.clone(),
                    format: format.clone(),
                }));
            }
            Some(Outcome::Failed(failure)) => {
                return Err(Problem::Expected(from_manifest(failure)));
            }
            Some(Outcome::Pending) | None => {}
        }
    }
    let state = match known(upload) {
        Some(_) => State::default(),
        None => State::fresh(),
    };
    let work = uploads.works.join(key.clone(), &context.tasks, || {
        let upload = Upload::of(context, &manifest, order, key)?;
        let (publish, steps) = watch::channel(0);
        Ok::<_, Problem>((steps, upload.run(state, publish)))
    })?;
    Ok(Ok(work))
}

/// The id of an upload that has no record: that of one which runs, otherwise one that never was.
fn made_up(
    context: &Context,
    manifest: &Manifest,
    provider: &ProviderName,
) -> Result<UploadId, Problem> {
    let running = context.uploads.works.keys().into_iter().find(|key| {
        key.id == manifest.id && key.provider == *provider && key.upload.sequence() >= MADE_UP
    });
    if let Some(running) = running {
        return Ok(running.upload);
    }
    let fresh = MADE_UP + now().as_secs() as u64;
    let taken = manifest
        .uploads
        .iter()
        .filter_map(|upload| upload.upload_id);
    let taken = taken.map(UploadId::sequence).max().unwrap_or(0);
    let id = format!("{:010}", fresh.max(taken + 1));
    id.parse()
        .map_err(|_| Problem::Surprise("there are no upload ids left".to_owned()))
}

/// One upload.
struct Upload {
    context: Arc<Context>,
    manifest: Arc<Manifest>,
    key: Key,
    settings: UploadSettings,
    format: Format,
    driver: Arc<dyn Driver>,
    owner: Owner,
    name: Box<str>,
}

impl Upload {
    fn of(
        context: &Arc<Context>,
        manifest: &Arc<Manifest>,
        order: &UploadJob,
        key: Key,
    ) -> Result<Self, Problem> {
        let config = context.config();
        let image = &manifest.image;
        let asked = order.image_name.as_ref().unwrap_or(image);
        if asked != image {
            let id = &key.id;
            return Err(Problem::refused(format!(
                "{id} is an image of {image}, not of {asked}"
            )));
        }
        let (driver, owner) =
            find_driver(context, &config, order.managed.as_deref(), &key.provider)?;
        let provider = &key.provider;
        let settings = config
            .provider(provider.as_str())
            .and_then(|found| UploadSettings::of(&config, found, image.as_str()));
        let mut settings = settings.ok_or_else(|| {
            Problem::refused(format!(
                "provider {provider} does not use image {image} here"
            ))
        })?;
        settings.metadata.extend(order.metadata.clone());
        let format = settings.format.parse();
        let format = format
            .map_err(|error: nodeyard_image::BadFormat| Problem::refused(error.to_string()))?;
        let name = match &order.external_name {
            Some(name) => name.clone(),
            None => settings.external_name(image, key.upload, now())?,
        };
        Ok(Self {
            context: Arc::clone(context),
            manifest: Arc::clone(manifest),
            key,
            settings,
            format,
            driver,
            owner,
            name,
        })
    }

    async fn run(self, state: State, steps: watch::Sender<u64>) -> Result<UploadResult, Problem> {
        self.record(Outcome::Pending).await?;
        let outcome = self.bring(state, &steps).await;
        match &outcome {
            Ok(done) => {
                let ready = Outcome::Ready {
                    external_id: done.external_id.clone(),
                    external_name: done.external_name.clone(),
                    format: done.format.clone(),
                };
                if let Err(problem) = self.record(ready).await {
                    // It is there all the same, and the caller is told.
                    tracing::error!(id = %self.key.id, ?problem, "an upload cannot be noted");
                }
            }
            // It is noted as under way, and goes on when it is asked for again.
            Err(_) if self.context.stopping.is_cancelled() => {}
            Err(problem) => {
                let failure = to_manifest(&problem.clone().into_failure());
                self.record(Outcome::Failed(failure)).await?;
            }
        }
        outcome
    }

    async fn record(&self, outcome: Outcome) -> Result<(), Problem> {
        let (repository, key) = (self.context.repository.clone(), self.key.clone());
        blocking(move || {
            repository.record_upload(&key.id, &key.provider, Some(key.upload), outcome)
        })
        .await
    }

    async fn bring(
        &self,
        mut state: State,
        steps: &watch::Sender<u64>,
    ) -> Result<UploadResult, Problem> {
        let file = self.file().await?;
        steps.send_replace(1);
        let order = self.order(file.clone());
        let limit = self.settings.timeout.unwrap_or(USUAL_LIMIT);
        let uploaded = tokio::select! {
            uploaded = tokio::time::timeout(limit, machine::upload(&*self.driver, &order, &mut state)) => uploaded,
            () = self.context.stopping.cancelled() => return Err(stopped()),
        };
        let problem = match uploaded {
            Ok(Ok(image)) => {
                steps.send_replace(2);
                state.external_id = Some(image.external_id.clone());
                match self.agreed(&image, &file, limit).await {
                    Ok(()) => return self.result(image),
                    Err(problem) => problem,
                }
            }
            Ok(Err(error)) => {
                let provider = &self.key.provider;
                Problem::failed(format!("upload to {provider}: {}", with_causes(&error)))
            }
            Err(_) => Problem::failed(format!(
                "the upload took longer than {} allows, {} seconds",
                self.key.provider,
                limit.as_secs()
            )),
        };
        if !self.context.stopping.is_cancelled() {
            self.clean_up(state).await;
        }
        Err(problem)
    }

    /// The file in the provider's format, converted if need be.
    async fn file(&self) -> Result<PathBuf, Problem> {
        let (repository, id) = (self.context.repository.clone(), self.key.id.clone());
        if self.manifest.files.contains_key(&self.format) {
            return Ok(repository.path(&id, &self.format)?);
        }
        let target = Target {
            format: self.format.clone(),
            compression: self.settings.compression,
        };
        let converter = Converter::default();
        let converted = repository.convert(&id, &target, &converter, |_| {});
        tokio::select! {
            converted = converted => converted?,
            () = self.context.stopping.cancelled() => return Err(stopped()),
        };
        Ok(repository.path(&id, &self.format)?)
    }

    fn order(&self, file: PathBuf) -> UploadOrder {
        let current = self.context.repository.get(&self.key.id);
        let digests = current
            .as_ref()
            .and_then(|manifest| manifest.files.get(&self.format))
            .map(|file| file.digests.clone())
            .unwrap_or_default();
        let upload = self.upload_key();
        UploadOrder {
            tags: self.owner.upload_tags(upload.build.build, upload.upload),
            upload,
            name: self.name.clone(),
            source: ImageSource::File(file),
            format: self.format.as_str().into(),
            md5: digests.md5,
            sha256: digests.sha256,
            metadata: self.settings.metadata.clone(),
        }
    }

    fn upload_key(&self) -> UploadKey {
        upload_key(&self.manifest, &self.key)
    }

    /// Whether the hook has nothing against the upload.
    async fn agreed(
        &self,
        image: &UploadedImage,
        file: &std::path::Path,
        limit: Duration,
    ) -> Result<(), Problem> {
        let Some(hook) = &self.settings.hook else {
            return Ok(());
        };
        let stop = self.context.stopping.child_token();
        let late = async {
            tokio::time::sleep(limit).await;
            stop.cancel();
            std::future::pending::<()>().await;
        };
        let id = image.external_id.to_string();
        tokio::select! {
            agreed = hook::run(&self.context, hook, &self.key.provider, &id, file, &stop) => agreed,
            () = late => Err(Problem::failed("the post-upload hook never ended")),
        }
    }

    fn result(&self, image: UploadedImage) -> Result<UploadResult, Problem> {
        Ok(UploadResult {
            external_id: image.external_id.to_string().into(),
            external_name: image.external_name,
            format: self.format.as_str().into(),
        })
    }

    /// Removes from the cloud what is of no use.
    async fn clean_up(&self, state: State) {
        let target = ImageTarget {
            upload: self.upload_key(),
            external_id: state.external_id,
        };
        let removed = machine::delete(&*self.driver, &target);
        let removed = tokio::time::timeout(CLEANUP_LIMIT, removed).await;
        let error: Box<dyn std::error::Error> = match removed {
            Ok(Ok(())) => return,
            Ok(Err(error)) => Box::new(error),
            Err(late) => Box::new(late),
        };
        tracing::warn!(
            error = &*error, id = %self.key.id, provider = %self.key.provider, upload = %self.key.upload,
            "what a failed upload left in the cloud could not be removed"
        );
    }
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

fn stopped() -> Problem {
    Problem::unable("the worker stopped during the upload; ask for it again and it goes on")
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
            Problem::unable(format!("provider {name}: {}", with_causes(&error)))
        })?;
    if !driver.capabilities().manages_images {
        return Err(Problem::refused(format!(
            "provider {name} takes no uploads"
        )));
    }
    Ok((driver, owner))
}

/// What a killed worker left of uploads that have no record: nobody else looks after them.
pub(super) fn abandon_foreign(context: &Arc<Context>) {
    for manifest in context.repository.images() {
        let lost = manifest.uploads.iter().filter_map(|upload| {
            let id = upload.upload_id.filter(|id| id.sequence() >= MADE_UP)?;
            (upload.outcome == Outcome::Pending).then(|| Key {
                id: manifest.id.clone(),
                provider: upload.provider.clone(),
                upload: id,
            })
        });
        for key in lost {
            let (context, manifest) = (Arc::clone(context), Arc::clone(&manifest));
            context.tasks.clone().spawn(async move {
                let stop = context.stopping.clone();
                tokio::select! {
                    () = abandon(&context, &manifest, key) => {}
                    () = stop.cancelled() => {}
                }
            });
        }
    }
}

async fn abandon(context: &Context, manifest: &Manifest, key: Key) {
    let removed = async {
        let config = context.config();
        let (driver, _) = find_driver(context, &config, None, &key.provider)?;
        let target = ImageTarget {
            upload: upload_key(manifest, &key),
            external_id: None,
        };
        machine::delete(&*driver, &target)
            .await
            .map_err(|error| Problem::failed(with_causes(&error)))?;
        let (repository, key) = (context.repository.clone(), key.clone());
        blocking(move || repository.forget_upload(&key.id, &key.provider, Some(key.upload))).await
    };
    if let Err(problem) = removed.await {
        tracing::warn!(id = %key.id, provider = %key.provider, ?problem, "what an upload left is removed at the next start");
    }
}
