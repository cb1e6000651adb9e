//! The steward: looks after images from the wish for one to the deletion of the last trace of it.
//!
//! ```text
//!      store ──events──►  desk ──► plan (pure)
//!                          │
//!               per action │
//!                          ▼
//!    build · import · upload · settle · remove      each under the lock that belongs to it
//!            │                 │
//!          store            gearman ─────► workers
//! ```
//!
//! Every builder process that has a store has one, and any number may run beside each other and beside Python
//! builders: there is no election. What keeps them apart are the locks of the records. The desk looks at an image
//! when something about it has changed and starts what the plan asks for; whoever carries it out takes the lock,
//! draws the picture of the image again, and asks the plan again. So nothing is decided on an old picture.
//!
//! # Nothing is kept in memory that a restart would miss
//!
//! A record is written before its job is submitted. A job whose answer does not come (its worker, its job server or
//! its steward is gone, the answer is garbled) is asked after: from the start of a job its worker answers
//! `image-info:<id>`. Only when nobody has answered for a while is the work given up as lost. What a steward
//! leaves behind, in whatever state, another one finds as a record whose lock is free.
//!
//! What Nodepool's records have no room for (why something failed and how often, which files are gone) is in
//! [`notes`], how far a job is in [`progress`], and what launchers are told of an image in `report`, all below
//! `/nodeyard`.

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

/// How long a steward that ends may take to say so to the store.
const DEREGISTER_TIMEOUT: Duration = Duration::from_secs(5);

/// What a steward works with.
#[derive(Clone)]
pub struct StewardDependencies {
    pub tree: Arc<dyn Tree>,
    /// The configuration in force, and those that follow it.
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
    parts: StewardDependencies,
    ready: watch::Sender<bool>,
}

impl Steward {
    pub fn new(options: Options, parts: StewardDependencies) -> (Self, StewardHandle) {
        let (ready, is_ready) = watch::channel(false);
        let steward = Self {
            options,
            parts,
            ready,
        };
        (steward, StewardHandle { ready: is_ready })
    }

    /// Works until `shutdown`, or until the store is closed. The store stays open. Jobs under way are left to
    /// their workers and records; whoever comes next finds them.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let Self {
            options,
            parts,
            ready,
        } = self;
        let registry = Registry::new(Arc::clone(&parts.tree));
        let system = tokio::select! {
            system = prepare(&registry) => system?,
            () = shutdown.cancelled() => return Ok(()),
        };
        let mut component = Component::new(options.hostname.clone(), ComponentKind::Builder);
        component.state = ComponentState::Running;
        component.version = Some(options.version.clone());
        let registration = registry.components().register(&component)?;
        let directory = FunctionDirectory::start(options.servers.clone(), options.timing);
        let ctx = StewardContext::new(registry.clone(), system, directory, options, &parts);
        let result = ImageScheduler::new(ctx, parts.config, ready)
            .run(&shutdown)
            .await;
        let deregister = async {
            registration.end().await;
            registry.locks().settled().await;
        };
        // Without a connection both go with the session.
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
