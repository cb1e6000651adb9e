//! The dispatcher: owns the [`RequestScheduler`], and starts and supervises all tasks.
//!
//! Changes in the store arrive through the views and are put into the scheduler. Its decisions are executed by tasks,
//! which report back. The dispatcher itself never waits for the store or a cloud, so it reacts to an event at once.
//! Timers start retries, and periodic full checks in case an event was missed.

mod cloud_polls;
mod decide;
mod explain;
mod feed;
mod images;
mod missing_uploads;
mod progress;
mod providers;
mod ready_nodes;
mod timers;
mod upkeep;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use nodeyard_config::Config;
use nodeyard_driver_common::DriverKinds;
use nodeyard_model::{Label, NodeId, ProviderName, RequestId};
use nodeyard_plan::leaks::LeakSightings;
use nodeyard_plan::{LabelPolicy, PoolKey, RequestScheduler};
use nodeyard_store::registry::ImageId;
use nodeyard_store::view::{Changes, View};
use nodeyard_store::{Session, SessionId};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::warn;

use crate::END_LIMIT;
use crate::context::Context;
use crate::error::Error;
use crate::handle::Query;
use crate::image_work::{ImageWorkId, ImageWorkShape, reported_images};
use crate::old_locks::OldLocks;
use crate::options::Options;
use crate::provider::{Provider, changed_uploads};
use crate::report::TaskReport;
use crate::serve::ServeCommand;
use images::Unattended;
use nodeyard_operations::drain::{DrainScope, DrainShape};
use providers::RunningProvider;
use ready_nodes::ReadyNodes;
use timers::{Timer, Timers};

pub(crate) struct Dispatcher {
    ctx: Context,
    options: Options,
    kinds: DriverKinds,
    scheduler: RequestScheduler,
    config: watch::Receiver<Arc<Config>>,
    labels: BTreeMap<Label, LabelPolicy>,
    providers: BTreeMap<ProviderName, RunningProvider>,
    /// Providers that are being started, with the number of the attempt.
    starting: BTreeMap<ProviderName, u64>,
    starts: u64,
    failed_providers: BTreeMap<ProviderName, String>,
    serving: HashMap<RequestId, ServingTask>,
    /// How often serving each request has been retried.
    retries: HashMap<RequestId, u32>,
    /// The pools whose clouds were polled again for a request.
    clouds_asked_for: HashMap<RequestId, BTreeSet<PoolKey>>,
    settling: HashSet<NodeId>,
    /// How often the deletion of a node has failed.
    failed_deletions: HashMap<NodeId, u32>,
    /// Requests that are being recovered, until the guard is dropped. None waits for [`Timer::Recover`].
    recovering: HashMap<RequestId, Option<DropGuard>>,
    ready_nodes: ReadyNodes,
    /// None while they are being deleted.
    old_locks: Option<OldLocks>,
    sightings: LeakSightings,
    drains: View<DrainShape>,
    image_work: View<ImageWorkShape>,
    unattended: Unattended,
    /// The registry names of the known pools.
    pool_entries: BTreeSet<String>,
    /// Pools that are due for a pass because time has passed.
    deferred: BTreeSet<PoolKey>,
    /// A sample of the waiting requests is scheduled.
    sample_scheduled: bool,
    /// The last request of the previous sample.
    last_sampled: Option<RequestId>,
    timers: Timers,
    session: Option<SessionId>,
    ready: watch::Sender<bool>,
}

/// The task that serves a request, for one of our pools at a time.
struct ServingTask {
    pool: PoolKey,
    /// The provider when the task started.
    provider: Arc<Provider>,
    orders: mpsc::UnboundedSender<ServeCommand>,
    gone: CancellationToken,
    /// The commands to execute when this task has ended.
    next: VecDeque<(PoolKey, ServeCommand)>,
}

impl ServingTask {
    /// Returns whether a pool serves the request, or will next.
    fn concerns(&self, pool: &PoolKey) -> bool {
        self.pool == *pool || self.next.iter().any(|(next, _)| next == pool)
    }
}

/// The channels that the dispatcher receives from.
pub(crate) struct Inputs {
    pub(crate) reports: mpsc::UnboundedReceiver<TaskReport>,
    pub(crate) queries: mpsc::UnboundedReceiver<Query>,
}

/// The views that only the dispatcher reads.
pub(crate) struct Followed {
    pub(crate) drains: View<DrainShape>,
    pub(crate) image_work: View<ImageWorkShape>,
}

/// The changes of the views.
struct ViewChanges {
    requests: Changes<RequestId>,
    nodes: Changes<NodeId>,
    pools: Changes<String>,
    images: Changes<ImageId>,
    drains: Changes<DrainScope>,
    image_work: Changes<ImageWorkId>,
}

impl Dispatcher {
    pub(crate) fn new(
        ctx: Context,
        options: Options,
        kinds: DriverKinds,
        config: watch::Receiver<Arc<Config>>,
        followed: Followed,
        ready: watch::Sender<bool>,
    ) -> Self {
        Self {
            scheduler: RequestScheduler::new(options.policy),
            ctx,
            options,
            kinds,
            config,
            labels: BTreeMap::new(),
            providers: BTreeMap::new(),
            starting: BTreeMap::new(),
            starts: 0,
            failed_providers: BTreeMap::new(),
            serving: HashMap::new(),
            retries: HashMap::new(),
            clouds_asked_for: HashMap::new(),
            settling: HashSet::new(),
            failed_deletions: HashMap::new(),
            recovering: HashMap::new(),
            ready_nodes: ReadyNodes::default(),
            old_locks: Some(OldLocks::default()),
            sightings: LeakSightings::default(),
            drains: followed.drains,
            image_work: followed.image_work,
            unattended: Unattended::new(),
            pool_entries: BTreeSet::new(),
            deferred: BTreeSet::new(),
            sample_scheduled: false,
            last_sampled: None,
            timers: Timers::default(),
            session: None,
            ready,
        }
    }

    /// Runs until `shutdown`, then stops all tasks in order.
    pub(crate) async fn run(
        mut self,
        mut inputs: Inputs,
        shutdown: CancellationToken,
    ) -> Result<(), Error> {
        let mut changes = ViewChanges {
            requests: self.ctx.requests.changes(),
            nodes: self.ctx.nodes.changes(),
            pools: self.ctx.pools.changes(),
            images: self.ctx.images.changes(),
            drains: self.drains.changes(),
            image_work: self.image_work.changes(),
        };
        let loaded = tokio::select! {
            loaded = self.load() => loaded.map(|()| true),
            () = shutdown.cancelled() => Ok(false),
        };
        let result = match loaded {
            Ok(true) => self.work(&mut changes, &mut inputs, &shutdown).await,
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        self.end(inputs).await;
        result
    }

    /// Loads everything before the first decision: a node whose request was not read yet looks abandoned.
    async fn load(&mut self) -> Result<(), Error> {
        self.drains.synced().await?;
        self.ctx.images.synced().await?;
        self.image_work.synced().await?;
        self.ctx.pools.synced().await?;
        // Requests last: the request of each known node must be known, unless it was deleted.
        self.ctx.nodes.synced().await?;
        self.ctx.requests.synced().await?;
        self.feed_everything();
        self.apply_config();
        self.begin_rounds();
        Ok(())
    }

    async fn work(
        &mut self,
        changes: &mut ViewChanges,
        inputs: &mut Inputs,
        shutdown: &CancellationToken,
    ) -> Result<(), Error> {
        let mut sessions = self.ctx.registry.tree().session();
        self.session = sessions.borrow_and_update().id();
        // Until the configuration channel is closed.
        let mut followed = true;
        loop {
            let more = self.decide();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                Some(report) = inputs.reports.recv() => self.handle_report(report, changes),
                // A closed channel must not be polled in a loop.
                Some(query) = inputs.queries.recv() => self.answer(query),
                change = changes.nodes.next() => self.nodes_changed(change.ok_or(Error::StoreClosed)?),
                change = changes.requests.next() => {
                    self.requests_changed(change.ok_or(Error::StoreClosed)?);
                }
                change = changes.pools.next() => self.pools_changed(change.ok_or(Error::StoreClosed)?),
                change = changes.images.next() => {
                    self.images_changed(&changed_uploads(change.ok_or(Error::StoreClosed)?));
                }
                change = changes.image_work.next() => {
                    self.images_changed(&reported_images(change.ok_or(Error::StoreClosed)?));
                }
                change = changes.drains.next() => {
                    change.ok_or(Error::StoreClosed)?;
                    self.drains_changed();
                }
                changed = self.config.changed(), if followed => {
                    followed = changed.is_ok();
                    if followed {
                        self.apply_config();
                    }
                }
                changed = sessions.changed() => {
                    changed.map_err(|_| Error::StoreClosed)?;
                    let session = *sessions.borrow_and_update();
                    self.session_changed(session)?;
                }
                timer = self.timers.next() => self.timer(timer),
                () = std::future::ready(()), if more => {}
            }
            self.catch_up(changes);
        }
    }

    /// Processes all pending changes, so that one decision covers them.
    ///
    /// Requests before nodes: a request that is fulfilled or deleted releases its nodes, and their new state must be
    /// known before a decision. Otherwise they look free and are allocated again.
    fn catch_up(&mut self, changes: &mut ViewChanges) {
        while let Some(Some(change)) = changes.requests.next().now_or_never() {
            self.requests_changed(change);
        }
        while let Some(Some(change)) = changes.nodes.next().now_or_never() {
            self.nodes_changed(change);
        }
    }

    fn session_changed(&mut self, session: Session) -> Result<(), Error> {
        if session == Session::Closed {
            return Err(Error::StoreClosed);
        }
        if session.id().is_some() && session.id() != self.session {
            self.session = session.id();
            // All locks of the old session were released, ours included.
            self.recover_all_again();
        }
        Ok(())
    }

    /// Accepts nothing new, leaves what is under way to its records, releases the locks. Not for longer than
    /// [`END_LIMIT`]: without the store nothing can be released, and locks and registrations end with the session.
    async fn end(mut self, inputs: Inputs) {
        self.ready.send_replace(false);
        drop(inputs);
        self.ctx.stop.cancel();
        let providers = std::mem::take(&mut self.providers).into_values();
        let ending = async {
            join_all(providers.map(RunningProvider::end)).await;
            self.ctx.tasks.close();
            self.ctx.tasks.wait().await;
            self.ctx.registry.locks().settled().await;
        };
        if timeout(END_LIMIT, ending).await.is_err() {
            warn!("timed out stopping; locks and registrations end with the store's session");
        }
    }
}
