//! The steward: reconciles the images of the configuration with their records, workers and clouds.
//!
//! ```text
//!      store ──events──► scheduler ──► plan (pure)
//!                          │
//!               per action │
//!                          ▼
//!    build · import · upload · recover · remove     each under its own lock
//!            │                 │
//!          store            gearman ─────► workers
//! ```
//!
//! Every builder process that has a store runs one. Any number of stewards and Python builders can run at the same time without
//! an election, because the locks of the records exclude each other. The scheduler evaluates an image when something about it
//! has changed and starts the actions of its plan. Each action takes its lock, reads the state of the image again and checks
//! that the plan still contains the action, so no decision is based on outdated state.
//!
//! # Recovery
//!
//! A record is written before its job is submitted. If the result of a job is lost, because its worker, job server or steward
//! failed, the steward queries `image-info:<id>`, which a worker serves from the start of a job. The work is considered lost
//! only if no worker has responded for a while. Work of a failed steward is found by another one as a record whose lock is
//! free.
//!
//! State that does not fit into Nodepool's records is stored below `/nodeyard`: failures and deleted files in [`notes`], the
//! progress of jobs in [`progress`], and the state of images for launchers in `report`.

mod build;
mod calls;
mod context;
mod error;
mod events;
mod functions;
mod handle;
mod image_state;
pub mod notes;
mod options;
mod orphans;
mod policy;
pub mod progress;
mod recovery;
mod remove;
mod renewable_lock;
mod report;
mod scheduler;
mod unused_functions;
mod upload;
mod zuul;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_config::Config;
use nodeyard_model::{Component, ComponentKind, ComponentState};
use nodeyard_store::registry::Registry;
use nodeyard_store::{Tree, ext};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use error::Error;
pub use events::{BuildEnded, NoopStewardEvents, StewardEvents, WorkState};
pub use functions::RegisteredFunctions;
pub use handle::StewardHandle;
pub use image_state::{known_images, load_image_state};
pub use options::{Options, StewardTiming};
pub use zuul::read_market;

use context::StewardContext;
use functions::FunctionDirectory;
use scheduler::ImageScheduler;

/// The time limit for deregistering from the store when the steward ends.
const DEREGISTER_TIMEOUT: Duration = Duration::from_secs(5);

/// The services that a steward uses.
#[derive(Clone)]
pub struct StewardDependencies {
    pub tree: Arc<dyn Tree>,
    /// The current configuration and its updates.
    pub config: watch::Receiver<Arc<Config>>,
    pub events: Arc<dyn StewardEvents>,
}

impl fmt::Debug for StewardDependencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts")
            .field("tree", &self.tree)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub struct Steward {
    options: Options,
    dependencies: StewardDependencies,
    ready: watch::Sender<bool>,
}

impl Steward {
    pub fn new(options: Options, dependencies: StewardDependencies) -> (Self, StewardHandle) {
        let (ready, is_ready) = watch::channel(false);
        let steward = Self {
            options,
            dependencies,
            ready,
        };
        (steward, StewardHandle { ready: is_ready })
    }

    /// Runs until `shutdown`, or until the store is closed. The store stays open. Running jobs continue at their workers and
    /// are resumed by the next steward.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let Self {
            options,
            dependencies,
            ready,
        } = self;
        let registry = Registry::new(Arc::clone(&dependencies.tree));
        let system = tokio::select! {
            system = prepare(&registry) => system?,
            () = shutdown.cancelled() => return Ok(()),
        };
        let mut component = Component::new(options.hostname.clone(), ComponentKind::Builder);
        component.state = ComponentState::Running;
        component.version = Some(options.version.clone());
        let registration = registry.components().register(&component)?;
        let directory = FunctionDirectory::start(options.servers.clone(), options.timing);
        let ctx = StewardContext::new(registry.clone(), system, directory, options, &dependencies);
        let result = ImageScheduler::new(ctx, dependencies.config, ready)
            .run(&shutdown)
            .await;
        let deregister = async {
            registration.end().await;
            registry.locks().settled().await;
        };
        // Without a connection both end with the session.
        let _ = tokio::time::timeout(DEREGISTER_TIMEOUT, deregister).await;
        result
    }
}

async fn prepare(registry: &Registry) -> nodeyard_store::Result<Box<str>> {
    let tree = &**registry.tree();
    let components = registry.components();
    ext::persist(tree, || components.prepare()).await?;
    ext::persist(tree, || registry.system_id()).await
}
