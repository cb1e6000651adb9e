//! The worker: runs image jobs from gearman and holds the files of images.
//!
//! ```text
//!                         gearman servers
//!    image-build    │  image-upload   │  upload-delete  │  image-info
//!    image-import   │  image-delete   │                 │
//! ┌───────▼─────────────────▼───── handler ───▼────────────────▼──────┐
//! │ build, import     upload, delete    upload_delete        info     │
//! └────┬───────┬─────────┬───────┬─────────────┬───────────────┬──────┘
//!   source  download  drivers    │          drivers            │
//!      └───────┴───────────► repository ◄──────────────────────┘
//! ```
//!
//! Each column has its own slots.
//!
//! Builds, uploads and deletions from clouds are `shared_tasks`: they continue if the caller or the job server is lost, and a
//! repeated request joins the running task. Their results are recorded in the manifests of the repository and survive a
//! restart. The worker does not access the store and uses only its own credentials.

mod build;
pub mod cloud;
mod delete;
mod driver_cache;
mod events;
mod follow;
mod functions;
mod handler;
mod hook;
mod import;
mod info;
mod provider;
mod shared_tasks;
mod task_error;
mod upload;
mod upload_delete;
mod withheld;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use nodeyard_config::{Config, ImageSource};
use nodeyard_driver_common::DriverKinds;
use nodeyard_gearman::worker::{JobWorker, JobWorkerOptions};
use nodeyard_gearman::{GearmanEndpoint, ReconnectBackoff};
use nodeyard_image::{
    DiskLimits, ImageFailure, ImageId, Manifest, ManifestState, OpenError, Repository,
};
use nodeyard_model::{ImageName, ProviderName, now};
use tokio::sync::{Semaphore, watch};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::source::{self, LogLimits, Redactor};

pub use events::{NoopWorkerEvents, WorkerEvents};

use build::RunningBuilds;
use driver_cache::DriverCache;
use functions::OfferedFunctions;
use upload::RunningUploads;
use upload_delete::CloudDeletions;
use withheld::Withheld;

/// The time limit for builds to clean up when the worker stops; slightly longer than that of their programs.
const STOP_GRACE: Duration = Duration::from_secs(50);

/// How long the failure of a build that is not managed by a steward is kept.
const FAILURE_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// How long to wait for the repository lock of a killed predecessor.
const REPOSITORY_LOCK_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub struct Options {
    /// The name of this host, as in records.
    pub hostname: Box<str>,
    /// The maximum number of concurrent builds.
    pub build_workers: usize,
    /// The maximum number of concurrent uploads and file deletions, and of concurrent deletions from clouds.
    pub upload_workers: usize,
    /// The maximum number of concurrent `image-info` and `image-cancel` jobs.
    pub info_workers: usize,
    /// How long a single job follows a log; the client then submits another one.
    pub follow_limit: Duration,
    pub gearman: Vec<GearmanEndpoint>,
    pub backoff: ReconnectBackoff,
    pub logs: LogLimits,
    /// The interval between cleanups of stale downloads, failed deletions and remains of failed uploads in clouds.
    pub cleanup_interval: Duration,
    /// How long a build or import function is unregistered after this worker was unable to run it.
    pub unable_pause: Duration,
    /// The interval between checks of disk space.
    pub space_check_every: Duration,
}

impl Options {
    pub fn new(hostname: impl Into<Box<str>>, gearman: Vec<GearmanEndpoint>) -> Self {
        Self {
            hostname: hostname.into(),
            build_workers: 1,
            upload_workers: 4,
            info_workers: 6,
            follow_limit: Duration::from_secs(30),
            gearman,
            backoff: ReconnectBackoff::default(),
            logs: LogLimits::default(),
            cleanup_interval: Duration::from_secs(60 * 60),
            unable_pause: Duration::from_secs(30),
            space_check_every: Duration::from_secs(30),
        }
    }
}

/// The services that a worker uses.
#[derive(Clone)]
pub struct WorkerDependencies {
    /// The current configuration and its updates.
    pub config: watch::Receiver<Arc<Config>>,
    pub drivers: DriverKinds,
    pub events: Arc<dyn WorkerEvents>,
}

impl fmt::Debug for WorkerDependencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").finish_non_exhaustive()
    }
}

/// An error that ends a worker.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("`images-dir` is not set: a builder needs a directory for its images")]
    NoImagesDir,
    #[error("failed to open the image directory")]
    Repository(#[source] OpenError),
    #[error("internal error while opening the image directory")]
    Task(#[source] tokio::task::JoinError),
}

#[derive(Debug)]
pub struct Worker {
    options: Options,
    dependencies: WorkerDependencies,
    context: watch::Sender<Option<Weak<WorkerContext>>>,
}

/// Observes a running worker. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct ImageWorkerHandle {
    context: watch::Receiver<Option<Weak<WorkerContext>>>,
}

/// The status of a worker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageWorkerStatus {
    pub builder_id: Box<str>,
    /// The number of connections to job servers.
    pub connections: usize,
    pub building: Vec<ImageId>,
    pub uploading: Vec<(ImageId, ProviderName)>,
    /// The registered functions.
    pub functions: Vec<String>,
    /// The images that can be uploaded.
    pub held: BTreeMap<ImageName, HeldImages>,
}

/// The number and size of the files of an image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeldImages {
    pub images: usize,
    /// The space used on disk.
    pub bytes: u64,
}

/// State that is shared by all jobs of a worker.
#[derive(Debug)]
pub(crate) struct WorkerContext {
    options: Options,
    config: watch::Receiver<Arc<Config>>,
    repository: Repository,
    drivers: DriverCache,
    events: Arc<dyn WorkerEvents>,
    functions: OfferedFunctions,
    withheld: Withheld,
    builds: RunningBuilds,
    uploads: RunningUploads,
    deletions: CloudDeletions,
    /// Limits jobs that follow a log, to keep slots for short jobs.
    followers: Semaphore,
    tasks: TaskTracker,
    stopping: CancellationToken,
}

impl Worker {
    pub fn new(options: Options, dependencies: WorkerDependencies) -> (Self, ImageWorkerHandle) {
        let context = watch::Sender::new(None);
        let handle = ImageWorkerHandle {
            context: context.subscribe(),
        };
        let worker = Self {
            options,
            dependencies,
            context,
        };
        (worker, handle)
    }

    /// Runs until `shutdown`. Running builds are then stopped and fail; uploads can be requested again.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let Self {
            options,
            dependencies,
            context: publish,
        } = self;
        let WorkerDependencies {
            mut config,
            drivers,
            events,
        } = dependencies;
        let first = config.borrow_and_update().clone();
        let repository = open(&options, &first).await?;
        let workers = [
            ("Build Worker", options.build_workers),
            ("Upload Worker", options.upload_workers),
            ("Removal Worker", options.upload_workers),
            ("Info Worker", options.info_workers),
        ];
        let workers = workers.map(|(name, slots)| {
            let name = format!("Nodepool Builder {name}");
            let mut gearman = JobWorkerOptions::new(name, options.gearman.clone(), slots);
            gearman.backoff = options.backoff;
            gearman.stop_grace = STOP_GRACE;
            JobWorker::new(gearman)
        });
        let stopping = shutdown.child_token();
        let context = Arc::new(WorkerContext {
            functions: OfferedFunctions::new(workers.each_ref().map(JobWorker::handle)),
            followers: Semaphore::new(options.info_workers.saturating_sub(2).max(1)),
            options,
            config: config.clone(),
            repository,
            drivers: DriverCache::new(drivers),
            events,
            withheld: Withheld::default(),
            builds: RunningBuilds::default(),
            uploads: RunningUploads::default(),
            deletions: CloudDeletions::default(),
            tasks: TaskTracker::new(),
            stopping: stopping.clone(),
        });
        // Stops builds on every exit path.
        let _stop = stopping.clone().drop_guard();
        context.check_space().await;
        context.register_all();
        context.delete_old_failures();
        publish.send_replace(Some(Arc::downgrade(&context)));

        let follow_config = async {
            while config.changed().await.is_ok() {
                context.repository.set_limits(limits(&context.config()));
                context.register_configured();
                context.check_space().await;
            }
            std::future::pending::<()>().await;
        };
        // The first tick is immediate.
        let clean_up = async {
            let mut interval = tokio::time::interval(context.options.cleanup_interval);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                interval.tick().await;
                context.clean_up().await;
            }
        };
        let watch_space = async {
            loop {
                tokio::select! {
                    () = tokio::time::sleep(context.options.space_check_every) => {}
                    () = context.withheld.space_changed() => {}
                }
                context.check_space().await;
            }
        };
        let work = async {
            let [build, upload, deletion, info] = workers;
            tokio::join!(
                build.run(stopping.clone()),
                upload.run(stopping.clone()),
                deletion.run(stopping.clone()),
                info.run(stopping.clone()),
            );
        };
        tokio::select! {
            () = work => {}
            () = follow_config => {}
            () = clean_up => {}
            () = watch_space => {}
        }
        // Shared tasks outlive their jobs.
        stopping.cancel();
        context.tasks.close();
        if tokio::time::timeout(STOP_GRACE, context.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!("timed out waiting for image work to stop; aborting it");
        }
        Ok(())
    }
}

async fn open(options: &Options, config: &Config) -> Result<Repository, Error> {
    let open = nodeyard_image::Options {
        dir: PathBuf::from(config.images_dir.as_ref().ok_or(Error::NoImagesDir)?),
        builder: options.hostname.clone(),
        limits: limits(config),
    };
    let open = tokio::task::spawn_blocking(move || {
        let repository = open_with_retry(&open)?;
        // Builds of a killed worker may still be running.
        let interrupted = |image: &&Arc<Manifest>| {
            let failure = image.failure.as_ref();
            failure.is_some_and(|failure| failure.reason == ImageFailure::INTERRUPTED)
        };
        for image in repository.images().iter().filter(interrupted) {
            let base = repository
                .dir()
                .join(format!("{}-{}", image.image, image.id));
            let ended = source::kill_leftovers(&base);
            if ended > 0 {
                tracing::warn!(image = %image.image, id = %image.id, ended, "killed processes of interrupted build");
            }
        }
        Ok(repository)
    });
    open.await.map_err(Error::Task)?.map_err(Error::Repository)
}

fn limits(config: &Config) -> DiskLimits {
    DiskLimits {
        keep_free: config.images_dir_reserve.0,
        max_used: config.images_dir_limit.map(|limit| limit.0),
        first_build: config.image_size_estimate.0,
    }
}

impl WorkerContext {
    fn config(&self) -> Arc<Config> {
        self.config.borrow().clone()
    }

    /// Creates a redactor for all secrets of the configuration that may appear in output.
    fn redactor(&self) -> Redactor {
        let config = self.config();
        let builds = config
            .images
            .values()
            .filter_map(|image| match &image.source {
                ImageSource::Build(build) => Some(build),
                ImageSource::Zuul(_) => None,
            });
        let secrets = builds
            .flat_map(|build| build.env_vars.values())
            .filter(|value| value.secret)
            .map(|value| value.value.as_str());
        let tokens = config
            .images
            .values()
            .filter_map(|image| match &image.source {
                ImageSource::Zuul(zuul) => zuul.auth.token.as_ref().map(|token| token.0.as_str()),
                ImageSource::Build(_) => None,
            });
        Redactor::new(secrets.chain(tokens))
    }

    /// Removes stale downloads, failed deletions and remains of failed uploads.
    async fn clean_up(self: &Arc<Self>) {
        let context = Arc::clone(self);
        let on_disk = move || {
            // A download may have been continued on another host, or abandoned.
            import::remove_stale_downloads(&context.repository);
            match context.repository.finish_deletions() {
                Ok(gone) => gone
                    .iter()
                    .filter(|id| context.repository.get(id).is_none())
                    .for_each(|id| context.unregister_image(id)),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "failed to finish deletions; retrying later");
                }
            }
        };
        let _done = self.tasks.spawn_blocking(on_disk).await;
        upload::delete_lost_uploads(self, |_| true).await;
    }

    /// Deletes the manifests of old failed builds that are not managed by a steward.
    fn delete_old_failures(self: &Arc<Self>) {
        let context = Arc::clone(self);
        let old = move || {
            for image in context.repository.images() {
                let old = now().since(image.since) > FAILURE_RETENTION;
                if image.state != ManifestState::Failed || image.managed.is_some() || !old {
                    continue;
                }
                match context.repository.delete(&image.id) {
                    Ok(()) => context.unregister_image(&image.id),
                    Err(error) => {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(error, id = %image.id, "failed to delete manifest of failed build; retrying later");
                    }
                }
            }
        };
        self.tasks.spawn_blocking(old);
    }

    fn status(&self) -> ImageWorkerStatus {
        ImageWorkerStatus {
            builder_id: self.repository.builder_id().into(),
            connections: self.functions.connections(),
            building: self.builds.running(),
            uploading: self.uploads.running(),
            functions: self.functions.names(),
            held: self.held_images(),
        }
    }

    fn held_images(&self) -> BTreeMap<ImageName, HeldImages> {
        let mut held: BTreeMap<ImageName, HeldImages> = BTreeMap::new();
        let images = self.repository.images();
        let usable =
            |image: &&Arc<Manifest>| image.state == ManifestState::Ready && !image.files.is_empty();
        for image in images.iter().filter(usable) {
            let sum = held.entry(image.image.clone()).or_default();
            sum.images += 1;
            sum.bytes += image.files.values().map(|file| file.allocated).sum::<u64>();
        }
        held
    }
}

impl ImageWorkerHandle {
    /// Returns the status, or `None` before the worker has started and after it has ended.
    pub fn status(&self) -> Option<ImageWorkerStatus> {
        let context = self.context.borrow().as_ref().and_then(Weak::upgrade)?;
        Some(context.status())
    }

    /// Waits until functions are registered. Returns `false` if the worker ended before.
    pub async fn until_ready(&mut self) -> bool {
        self.context.wait_for(Option::is_some).await.is_ok()
    }
}

/// Opens the repository. Waits for the lock of a predecessor that was just killed. Blocks.
fn open_with_retry(options: &nodeyard_image::Options) -> Result<Repository, OpenError> {
    let deadline = std::time::Instant::now() + REPOSITORY_LOCK_TIMEOUT;
    loop {
        match Repository::open(options.clone()) {
            Err(OpenError::InUse { .. }) if std::time::Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(100));
            }
            opened => return opened,
        }
    }
}
