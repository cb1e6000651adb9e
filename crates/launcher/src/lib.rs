//! The launcher: serves node requests, manages nodes from launch to deletion, and cleans up.
//!
//! ```text
//!             store ──views──►  dispatcher ──► plan (pure)
//!                                │    ▲
//!                        orders  │    │  reports
//!                                ▼    │
//!        serve a request · settle a node · recover a request · keep a roster · poll a cloud
//!                │                 │                                │
//!              store            drivers ────────────────────────► clouds
//! ```
//!
//! The dispatcher owns the scheduler and decides; everything else is a task with private state. What a task may
//! write to a record is decided by [`nodeyard_plan::protocol`], on the record as it was read under its lock.
//! No state in memory has to survive a restart.
//!
//! The launcher knows the traits of stores, drivers and scanners, never a concrete one.

mod declined;
pub mod history;

mod background;
mod backing;
pub mod canary;
mod commit;
mod context;
mod dispatcher;
mod error;
mod events;
mod handle;
mod image_work;
mod launch;
mod launcher_id;
mod launches;
mod old_locks;
mod options;
mod provider;
mod recover;
mod removal;
mod report;
mod roster;
mod serve;
mod settle;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_config::Config;
use nodeyard_driver_common::DriverKinds;
use nodeyard_model::{Clock, Component, ComponentKind, ComponentState, layout};
use nodeyard_nodescan::Scanner;
use nodeyard_operations::drain::DrainShape;
use nodeyard_store::registry::{Registry, Views};
use nodeyard_store::view::View;
use nodeyard_store::{Tree, TreePath, ext};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::debug;

pub use error::{Error, StartError};
pub use events::{LaunchAttempt, LaunchResult, LauncherEvents, NoLauncherEvents};
pub use handle::{DrainStatus, LauncherHandle, LauncherStatus, PoolStatus};
pub use launch::AttemptError;
pub use options::{LauncherTiming, Options};
pub use removal::delete_machine;

use context::Context;
use dispatcher::{Dispatcher, Followed, Inputs};
use history::{Archive, History};
use image_work::ImageWorkShape;

/// How long each part of an orderly end may take, if the store does not answer.
const END_LIMIT: Duration = Duration::from_secs(5);

/// What a launcher works with.
#[derive(Clone)]
pub struct LauncherParts {
    pub tree: Arc<dyn Tree>,
    /// Views of the same store, which may be shared.
    pub views: Views,
    /// The configuration in force, and those that follow it.
    pub config: watch::Receiver<Arc<Config>>,
    pub drivers: DriverKinds,
    pub scanner: Arc<dyn Scanner>,
    pub events: Arc<dyn LauncherEvents>,
    pub clock: Clock,
}

impl fmt::Debug for LauncherParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LauncherParts")
            .field("tree", &self.tree)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub struct Launcher {
    options: Options,
    parts: LauncherParts,
    queries: mpsc::UnboundedReceiver<handle::Query>,
    ready: watch::Sender<bool>,
    history: Arc<History>,
    archive: Archive,
}

impl Launcher {
    pub fn new(options: Options, parts: LauncherParts) -> (Self, LauncherHandle) {
        let (sender, queries) = mpsc::unbounded_channel();
        let (ready, is_ready) = watch::channel(false);
        let (history, archive) = History::new();
        let history = Arc::new(history);
        let handle = LauncherHandle {
            ready: is_ready,
            queries: sender,
            history: Arc::clone(&history),
        };
        let launcher = Self {
            options,
            parts,
            queries,
            ready,
            history,
            archive,
        };
        (launcher, handle)
    }

    /// Runs until `shutdown`, or until the store is closed. The store is not closed here: closing it ends the
    /// remaining locks and registrations.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let Self {
            options,
            parts,
            queries,
            ready,
            history,
            archive,
        } = self;
        let registry = Registry::new(Arc::clone(&parts.tree));
        let system = tokio::select! {
            system = prepare(&registry) => system?,
            () = shutdown.cancelled() => return Ok(()),
        };
        let drains = TreePath::new(layout::DRAINS).map_err(nodeyard_store::Error::from)?;
        let image_work =
            TreePath::new(layout::IMAGE_STATUS).map_err(nodeyard_store::Error::from)?;
        let followed = Followed {
            drains: View::open(Arc::clone(&parts.tree), drains, DrainShape),
            image_work: View::open(Arc::clone(&parts.tree), image_work, ImageWorkShape),
        };
        let mut component = Component::new(options.hostname.clone(), ComponentKind::Launcher);
        component.state = ComponentState::Running;
        component.version = Some(options.version.clone());
        let registration = registry.components().register(&component)?;
        let (sender, reports) = mpsc::unbounded_channel();
        let ctx = Context::new(registry, system, &parts, options.timing, history, sender);
        let ended = CancellationToken::new();
        let archive = archive.run(Arc::clone(&parts.tree), ctx.clock.clone(), ended.clone());
        let archived = async {
            let limit = async {
                ended.cancelled().await;
                sleep(END_LIMIT).await;
            };
            tokio::select! {
                () = archive => {}
                () = limit => {}
            }
        };
        let dispatcher =
            Dispatcher::new(ctx, options, parts.drivers, parts.config, followed, ready);
        let inputs = Inputs { reports, queries };
        let working = async {
            let result = dispatcher.run(inputs, shutdown).await;
            ended.cancel();
            result
        };
        let (result, ()) = tokio::join!(working, archived);
        if timeout(END_LIMIT, registration.end()).await.is_err() {
            debug!("timed out leaving the registry; the registration ends with the session");
        }
        result
    }
}

async fn prepare(registry: &Registry) -> Result<nodeyard_driver::SystemId, Error> {
    let tree = &**registry.tree();
    let components = registry.components();
    ext::persist(tree, || components.prepare()).await?;
    let system = ext::persist(tree, || registry.system_id()).await?;
    Ok(nodeyard_driver::SystemId::new(&*system))
}
