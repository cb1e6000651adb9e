//! `image-build:<image>` and `image-import:<image>`: builds an image, or imports it from Zuul.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_config::{self as config, Config, ImageSource};
use nodeyard_gearman::worker::Job;
use nodeyard_image::{Draft, DraftRequest, Format, ImageId, Manifest, ManifestState};
use nodeyard_model::ImageName;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::WorkerContext;
use super::follow::BuildLog;
use super::functions::handles_image;
use super::import::ImportTask;
use super::info::{file_infos, provenance, to_manifest};
use super::provider;
use super::shared_tasks::{SharedTask, SharedTasks};
use super::task_error::{TaskError, blocking};
use crate::jobs::{BuildJob, BuildResult, ImportJob, from_payload, to_payload};
use crate::source::{self, BuildConsole, BuildOrder, SourceError};

/// The time limit for a source to stop before it is dropped; programs are killed long before.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// The running builds.
#[derive(Debug, Default)]
pub(super) struct RunningBuilds(SharedTasks<ImageId, RunningBuild, BuildResult>);

/// The log of a running build and its cancellation.
#[derive(Debug, Clone)]
struct RunningBuild {
    /// The log, once it is open.
    log: watch::Receiver<Option<BuildLog>>,
    cancel: CancellationToken,
}

impl RunningBuilds {
    pub(super) fn running(&self) -> Vec<ImageId> {
        self.0.keys()
    }

    /// Waits for the log of a running build.
    pub(super) async fn log(&self, id: &ImageId) -> Option<BuildLog> {
        let mut log = self.0.get(id)?.view.log;
        let log = log.wait_for(Option::is_some).await.ok()?;
        log.clone()
    }
}

/// Why a build was not started.
enum NotStarted {
    AlreadyDone(Box<BuildResult>),
    Failed(TaskError),
}

pub(super) async fn serve(
    context: &Arc<WorkerContext>,
    image: &ImageName,
    job: &Job,
) -> Result<Vec<u8>, TaskError> {
    let order: BuildJob = from_payload(job.function(), job.payload())?;
    let build = || BuildTask::of(context, image, &order);
    follow(context, image, job, (&order.image_id, order.stream), build).await
}

pub(super) async fn serve_import(
    context: &Arc<WorkerContext>,
    image: &ImageName,
    job: &Job,
) -> Result<Vec<u8>, TaskError> {
    let order: ImportJob = from_payload(job.function(), job.payload())?;
    let (id, stream) = (order.image_id.clone(), order.stream);
    let build = || BuildTask::of_import(context, image, order);
    follow(context, image, job, (&id, stream), build).await
}

/// Starts or joins a build and waits for its end.
async fn follow(
    context: &Arc<WorkerContext>,
    image: &ImageName,
    job: &Job,
    (id, stream): (&ImageId, bool),
    build: impl FnOnce() -> Result<BuildTask, TaskError>,
) -> Result<Vec<u8>, TaskError> {
    let work = match start(context, image, id, build) {
        Ok(work) => work,
        Err(NotStarted::AlreadyDone(result)) => return Ok(to_payload(&result)),
        Err(NotStarted::Failed(problem)) => return Err(problem),
    };
    let mut log = work.view.log.clone();
    let report = async {
        job.progress(0, 1).await;
        let log = match log.wait_for(Option::is_some).await {
            Ok(log) => log.clone(),
            Err(_) => None,
        };
        if let Some(log) = log {
            let stream = async {
                if stream {
                    log.send(job).await;
                }
            };
            tokio::join!(log.send_progress(job), stream);
        }
    };
    let ((), result) = tokio::join!(report, work.outcome());
    Ok(to_payload(&result?))
}

fn start(
    context: &Arc<WorkerContext>,
    image: &ImageName,
    id: &ImageId,
    build: impl FnOnce() -> Result<BuildTask, TaskError>,
) -> Result<SharedTask<RunningBuild, BuildResult>, NotStarted> {
    context
        .builds
        .0
        .get_or_start(id.clone(), &context.tasks, || {
            if let Some(known) = context.repository.get(id) {
                if known.image != *image {
                    let reason = format!(
                        "id {id} belongs to an image of {}; use another id",
                        known.image
                    );
                    return Err(NotStarted::Failed(TaskError::refused(reason)));
                }
                if known.state == ManifestState::Ready {
                    return Err(NotStarted::AlreadyDone(Box::new(result(context, &known))));
                }
            }
            let build = build().map_err(NotStarted::Failed)?;
            let (publish, log) = watch::channel(None);
            let cancel = build.cancel.clone();
            Ok((RunningBuild { log, cancel }, build.run(publish)))
        })
}

/// Cancels a build and waits for its end.
pub(super) async fn cancel(
    context: &Arc<WorkerContext>,
    id: &ImageId,
) -> Result<Vec<u8>, TaskError> {
    let build = context.builds.0.get(id);
    let build =
        build.ok_or_else(|| TaskError::missing(format!("image {id} is not being built")))?;
    tracing::info!(%id, "cancelling build");
    build.view.cancel.cancel();
    // The result does not matter.
    let _result = build.outcome().await;
    Ok(Vec::new())
}

/// A build or import to be run.
struct BuildTask {
    context: Arc<WorkerContext>,
    config: Arc<Config>,
    method: BuildMethod,
    draft_request: DraftRequest,
    formats: Vec<Format>,
    cancel: CancellationToken,
}

/// How the files are created.
enum BuildMethod {
    Build(config::BuildConfig),
    Import(ImportTask),
}

impl BuildMethod {
    fn time_limit(&self) -> (Duration, &'static str) {
        match self {
            Self::Build(build) => (*build.build_timeout, "build-timeout"),
            Self::Import(import) => (import.time_limit(), "download-timeout"),
        }
    }
}

impl BuildTask {
    fn of_import(
        context: &Arc<WorkerContext>,
        image: &ImageName,
        order: ImportJob,
    ) -> Result<Self, TaskError> {
        let config = context.config();
        let draft_request = DraftRequest {
            image: image.clone(),
            id: order.image_id.clone(),
            managed: provider::managed(order.managed.as_deref())?,
            // Downloads reserve space when their sizes are known.
            need: Some(0),
        };
        let import = ImportTask::of(&config, image, order)?;
        Ok(Self {
            context: Arc::clone(context),
            formats: import.formats(),
            method: BuildMethod::Import(import),
            draft_request,
            config,
            cancel: CancellationToken::new(),
        })
    }

    fn of(
        context: &Arc<WorkerContext>,
        image: &ImageName,
        order: &BuildJob,
    ) -> Result<Self, TaskError> {
        let config = context.config();
        let entry = config.images.get(image.as_str());
        let method = match entry.map(|entry| &entry.source) {
            Some(ImageSource::Build(build)) if handles_image(&config, image.as_str()) => {
                build.clone()
            }
            _ => {
                return Err(TaskError::refused(format!(
                    "image {image} is not built by this worker"
                )));
            }
        };
        let formats = if order.formats.is_empty() {
            provider::formats(&config, image.as_str())
        } else {
            order.formats.iter().map(ToString::to_string).collect()
        };
        let formats: Result<Vec<Format>, _> = formats.iter().map(|format| format.parse()).collect();
        let mut formats = formats.map_err(|error| TaskError::refused(error.to_string()))?;
        formats.sort_unstable();
        formats.dedup();
        if formats.is_empty() {
            return Err(TaskError::refused(format!(
                "image {image} has no formats: list some, or let a provider use it"
            )));
        }
        let draft_request = DraftRequest {
            image: image.clone(),
            id: order.image_id.clone(),
            managed: provider::managed(order.managed.as_deref())?,
            need: None,
        };
        Ok(Self {
            context: Arc::clone(context),
            method: BuildMethod::Build(method),
            draft_request,
            formats,
            config,
            cancel: CancellationToken::new(),
        })
    }

    async fn run(self, publish: watch::Sender<Option<BuildLog>>) -> Result<BuildResult, TaskError> {
        let (context, id) = (Arc::clone(&self.context), self.draft_request.id.clone());
        let repository = context.repository.clone();
        let draft_request = self.draft_request.clone();
        let mut draft = blocking(move || repository.create_draft(draft_request)).await?;
        context.register_image(&id);
        tracing::info!(image = %self.draft_request.image, %id, "started build");
        let started = Instant::now();
        let made = self.make(&mut draft, &publish).await;
        let formats = self.formats;
        let ended: Result<Arc<Manifest>, TaskError> = match made {
            Ok(()) => blocking(move || draft.commit(&formats)).await,
            Err(problem) => {
                let failure = to_manifest(&problem.clone().into_failure());
                let ended = tokio::task::spawn_blocking(move || draft.fail(failure)).await;
                ended.map_err(TaskError::from).and(Err(problem))
            }
        };
        context
            .events
            .built(&self.draft_request.image, started.elapsed(), ended.is_ok());
        match ended {
            Ok(manifest) => {
                tracing::info!(image = %self.draft_request.image, %id, "completed build");
                context.register_image_and_sync(&id).await;
                Ok(result(&context, &manifest))
            }
            Err(problem) => {
                context.register_image_and_sync(&id).await;
                context.delete_old_failures();
                Err(problem)
            }
        }
    }

    /// Opens the log and creates the files, with the time limit of the image.
    async fn make(
        &self,
        draft: &mut Draft,
        publish: &watch::Sender<Option<BuildLog>>,
    ) -> Result<(), TaskError> {
        let (image, id) = (&self.draft_request.image, &self.draft_request.id);
        let directory = PathBuf::from(&self.config.build_log_dir);
        self.prune_logs(directory.clone()).await;
        let path = BuildConsole::path(&directory, image, id);
        let mut console = BuildConsole::open(
            path.clone(),
            self.context.options.logs,
            self.context.redactor(),
        )
        .await
        .map_err(|error| {
            let log = path.display();
            TaskError::unable(format!("failed to create build log {log}: {error}"))
        })?;
        publish.send_replace(Some(BuildLog {
            path,
            state: console.state(),
        }));
        let stop = self.context.stopping.child_token();
        let (time, _) = self.method.time_limit();
        let forward_cancel = async {
            self.cancel.cancelled().await;
            stop.cancel();
            std::future::pending::<Infallible>().await
        };
        let made = tokio::select! {
            made = self.fill(draft, &mut console, &stop) => made,
            () = limit(time, &stop) => Err(self.stopped(None)),
            never = forward_cancel => match never {},
            // A download needs no cleanup.
            () = stop.cancelled(), if matches!(self.method, BuildMethod::Import(_)) => Err(self.stopped(None)),
        };
        console.end().await;
        made
    }

    /// Returns the error for a stopped build. `left` lists processes that are still running.
    fn stopped(&self, left: Option<&SourceError>) -> TaskError {
        let left = left.map(|left| format!("; {left}")).unwrap_or_default();
        if self.context.stopping.is_cancelled() {
            return TaskError::interrupted(format!("the worker stopped during the build{left}"));
        }
        if self.cancel.is_cancelled() {
            return TaskError::failed(format!("the build was cancelled{left}"));
        }
        let (time, setting) = self.method.time_limit();
        let reason = format!(
            "the build took longer than its {setting}, {} seconds{left}",
            time.as_secs()
        );
        match self.method {
            BuildMethod::Build(_) => TaskError::failed(reason),
            // The next attempt continues with what was downloaded.
            BuildMethod::Import(_) => TaskError::unable(reason),
        }
    }

    async fn fill(
        &self,
        draft: &mut Draft,
        console: &mut BuildConsole,
        stop: &CancellationToken,
    ) -> Result<(), TaskError> {
        let method = match &self.method {
            BuildMethod::Build(method) => method,
            BuildMethod::Import(import) => return import.make(&self.context, draft, console).await,
        };
        let (image, id) = (&self.draft_request.image, &self.draft_request.id);
        let order = BuildOrder {
            image: image.clone(),
            id: id.clone(),
            base: draft.output(),
            formats: self.formats.iter().map(|f| f.as_str().into()).collect(),
            elements_path: self.config.elements_dir.as_deref().map(Into::into),
        };
        let source = source::from_config(method);
        let made = source.make(&order, console, stop).await;
        made.map_err(|error| match error {
            SourceError::Stopped => self.stopped(None),
            left @ SourceError::StillRuns { .. } => self.stopped(Some(&left)),
            error => error.into(),
        })
    }

    async fn prune_logs(&self, directory: PathBuf) {
        let Some(keep) = self.config.build_log_retention else {
            return;
        };
        let image = self.draft_request.image.clone();
        let pruned =
            tokio::task::spawn_blocking(move || source::prune_logs(&directory, &image, keep));
        if let Ok(Err(error)) = pruned.await
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "failed to delete old build logs"
            );
        }
    }
}

/// Stops a build after its time limit. Returns if a stopped build does not end.
async fn limit(time: Duration, stop: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(time) => stop.cancel(),
        () = stop.cancelled() => {}
    }
    tokio::time::sleep(STOP_LIMIT).await;
}

fn result(context: &WorkerContext, manifest: &Manifest) -> BuildResult {
    BuildResult {
        image_id: manifest.id.clone(),
        builder: manifest.builder.clone(),
        builder_id: manifest.builder_id.clone(),
        formats: file_infos(manifest),
        provenance: provenance(context, manifest),
    }
}
