//! The shared context of all tasks of a launcher.

use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use nodeyard_config::Config;
use nodeyard_driver::SystemId;
use nodeyard_model::{Clock, LauncherId};
use nodeyard_nodescan::Scanner;
use nodeyard_store::registry::{ImageShape, NodeShape, PoolShape, Registry, RequestShape};
use nodeyard_store::view::View;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::error;

use crate::events::LauncherEvents;
use crate::history::History;
use crate::launches::ActiveLaunches;
use crate::options::LauncherTiming;
use crate::report::TaskReport;

/// Before work that panicked is begun again.
const PANIC_PAUSE: Duration = Duration::from_secs(1);

/// Cloning is cheap.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub(crate) registry: Registry,
    pub(crate) requests: View<RequestShape>,
    pub(crate) nodes: View<NodeShape>,
    pub(crate) pools: View<PoolShape>,
    pub(crate) images: View<ImageShape>,
    pub(crate) system: SystemId,
    pub(crate) scanner: Arc<dyn Scanner>,
    pub(crate) events: Arc<dyn LauncherEvents>,
    pub(crate) history: Arc<History>,
    pub(crate) launches: ActiveLaunches,
    pub(crate) clock: Clock,
    pub(crate) timing: LauncherTiming,
    pub(crate) config: watch::Receiver<Arc<Config>>,
    /// Cancelled when nothing new is to be started.
    pub(crate) stop: CancellationToken,
    /// All running tasks.
    pub(crate) tasks: TaskTracker,
    reports: mpsc::UnboundedSender<TaskReport>,
}

impl Context {
    pub(crate) fn new(
        registry: Registry,
        system: SystemId,
        parts: &crate::LauncherParts,
        timing: LauncherTiming,
        history: Arc<History>,
        reports: mpsc::UnboundedSender<TaskReport>,
    ) -> Self {
        let views = parts.views.clone();
        Self {
            registry,
            requests: views.requests,
            nodes: views.nodes,
            pools: views.pools,
            images: views.images,
            system,
            scanner: Arc::clone(&parts.scanner),
            events: Arc::clone(&parts.events),
            history,
            launches: ActiveLaunches::default(),
            clock: parts.clock.clone(),
            timing,
            config: parts.config.clone(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            reports,
        }
    }

    /// Sends a report to the dispatcher. It is lost if the launcher stops.
    pub(crate) fn report(&self, report: TaskReport) {
        let _ = self.reports.send(report);
    }

    /// Spawns work that ends with a report. If it panics, most likely in a driver, `panicked` is sent instead.
    pub(crate) fn spawn(
        &self,
        on: impl Display + Send + 'static,
        work: impl Future<Output = ()> + Send + 'static,
        panicked: TaskReport,
    ) {
        let ctx = self.clone();
        self.tasks.spawn(async move {
            if AssertUnwindSafe(work).catch_unwind().await.is_err() {
                error!(%on, "task panicked, which is a bug in this program; retrying");
                ctx.report(panicked);
            }
        });
    }

    /// Spawns work that goes on until it returns. If it panics, most likely in a driver, it is begun again.
    pub(crate) fn supervise<F>(
        &self,
        on: impl Display + Send + 'static,
        mut work: impl FnMut() -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let ctx = self.clone();
        self.tasks.spawn(async move {
            while AssertUnwindSafe(work()).catch_unwind().await.is_err() {
                error!(%on, retry_in = ?PANIC_PAUSE, "task panicked, which is a bug in this program; restarting");
                if ctx.unless_stopped(sleep(PANIC_PAUSE)).await.is_none() {
                    return;
                }
            }
        });
    }

    /// Returns None if the launcher stops first.
    pub(crate) async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.stop.cancelled() => None,
        }
    }

    /// Returns the ids of all registered pools. All of them decline a request before it fails.
    pub(crate) fn registered(&self) -> Vec<LauncherId> {
        let mut ids = Vec::new();
        self.pools.for_each(|pool| ids.push(pool.value.id.clone()));
        ids
    }
}
