//! Schedules the evaluation of images and the actions of their plans.
//!
//! An image is evaluated when one of its records changes, when one of its actions ends, when its plan asks for it, when the
//! configuration or the registered functions change, and periodically.

mod work_states;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use nodeyard_config::Config;
use nodeyard_model::{ImageName, Timestamp, layout};
use nodeyard_plan::images::{
    Action, BuildVerdict, ImageExplanation, ImportVerdict, Plan, RetentionVerdict, UploadVerdict,
    WaitReason,
};
use nodeyard_store::{TreePath, WatchEvent, Watcher, ext};
use tokio::sync::watch;
use tokio::task::{self, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::context::{StewardContext, WorkOutcome, now};
use super::error::Error;
use super::image_state;
use super::orphans::OrphanCandidates;
use work_states::WorkStates;

/// The maximum number of concurrent evaluations. Each is a few dozen reads.
const MAX_EVALUATIONS: usize = 8;

/// The maximum pause before an image is evaluated again. Records and the configuration may contain any number of seconds, which
/// the clock cannot always represent.
const MAX_PAUSE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

pub(super) struct ImageScheduler {
    ctx: StewardContext,
    config: watch::Receiver<Arc<Config>>,
    ready: watch::Sender<bool>,
    /// Images to be evaluated.
    dirty: BTreeSet<ImageName>,
    evaluating: HashSet<ImageName>,
    /// When to evaluate images without an event.
    due: BTreeMap<ImageName, Instant>,
    executing: HashSet<(ImageName, Action)>,
    /// Actions that are not retried before this time.
    backing_off: HashMap<(ImageName, Action), Instant>,
    /// Images that wait for a worker.
    waiting: HashSet<ImageName>,
    states: WorkStates,
    orphan_candidates: OrphanCandidates,
    scanning: bool,
    /// Whether another scan is needed after the running one.
    scan_again: bool,
    tasks: JoinSet<TaskResult>,
    /// What each task does, in case it panics.
    task_kinds: HashMap<task::Id, SchedulerTask>,
}

/// What a task does.
enum SchedulerTask {
    Evaluate(ImageName),
    Execute(ImageName, Action),
    Scan,
}

/// The result of a task.
enum TaskResult {
    /// The plan, or `None` if the store could not be read.
    Evaluated(ImageName, Option<Box<Plan>>),
    Executed(ImageName, Action, nodeyard_store::Result<WorkOutcome>),
    /// All known images, and the candidates for orphans.
    Scanned(Option<BTreeSet<ImageName>>, Option<OrphanCandidates>),
}

impl ImageScheduler {
    pub(super) fn new(
        ctx: StewardContext,
        config: watch::Receiver<Arc<Config>>,
        ready: watch::Sender<bool>,
    ) -> Self {
        Self {
            states: WorkStates::new(Arc::clone(&ctx.events)),
            ctx,
            config,
            ready,
            dirty: BTreeSet::new(),
            evaluating: HashSet::new(),
            due: BTreeMap::new(),
            executing: HashSet::new(),
            backing_off: HashMap::new(),
            waiting: HashSet::new(),
            orphan_candidates: OrphanCandidates::default(),
            scanning: false,
            scan_again: false,
            tasks: JoinSet::new(),
            task_kinds: HashMap::new(),
        }
    }

    pub(super) async fn run(mut self, shutdown: &CancellationToken) -> Result<(), Error> {
        let root = TreePath::new(layout::IMAGES).map_err(nodeyard_store::Error::from)?;
        let tree = Arc::clone(self.ctx.registry.tree());
        let mut watcher = tokio::select! {
            watcher = ext::persist(&*tree, || tree.watch(&root)) => watcher?,
            () = shutdown.cancelled() => return Ok(()),
        };
        let mut functions = self.ctx.directory.latest();
        let mut scan_interval = tokio::time::interval(self.ctx.timing.full_scan);
        scan_interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let result = loop {
            self.start_evaluations();
            let first_due = self.due.values().min().copied();
            tokio::select! {
                () = shutdown.cancelled() => break Ok(()),
                event = watcher.next() => match event {
                    Some(event) => self.handle_events(event, &mut watcher),
                    None => break Err(Error::StoreClosed),
                },
                Some(ended) = self.tasks.join_next_with_id() => self.handle_task_end(ended),
                () = until(first_due) => self.queue_due(),
                Ok(()) = self.config.changed() => {
                    self.config.mark_unchanged();
                    scan_interval.reset_immediately();
                }
                Ok(()) = functions.changed() => {
                    functions.mark_unchanged();
                    self.dirty.extend(self.waiting.drain());
                }
                _ = scan_interval.tick() => self.start_scan(),
            }
        };
        // Running jobs continue at the workers; the next steward finds their records with free locks.
        self.tasks.shutdown().await;
        result
    }

    /// Handles all available events at once.
    fn handle_events(&mut self, first: WatchEvent, watcher: &mut Watcher) {
        let mut next = Some(first);
        while let Some(event) = next {
            match event {
                WatchEvent::Created(path)
                | WatchEvent::Changed(path)
                | WatchEvent::Deleted(path) => self.dirty.extend(image_of(&path)),
                WatchEvent::Gap => self.start_scan(),
            }
            next = watcher.try_next();
        }
    }

    fn queue_due(&mut self) {
        let time = Instant::now();
        let due = self.due.extract_if(.., |_, at| *at <= time);
        self.dirty.extend(due.map(|(image, _)| image));
    }

    /// Starts a scan of all images and orphans.
    fn start_scan(&mut self) {
        self.scan_again = self.scanning;
        if self.scanning {
            return;
        }
        self.scanning = true;
        let ctx = self.ctx.clone();
        let before = std::mem::take(&mut self.orphan_candidates);
        self.spawn(SchedulerTask::Scan, async move {
            let images = image_state::known_images(&ctx.registry, &ctx.config()).await;
            let orphan_candidates = match ctx.find_orphans(&before).await {
                Ok((orphans, orphan_candidates)) => {
                    for build in orphans {
                        if let Err(error) = ctx.handle_orphan(build).await {
                            let error = &error as &dyn std::error::Error;
                            tracing::debug!(%build, error, "failed to handle image without record; retrying later");
                        }
                    }
                    Some(orphan_candidates)
                }
                Err(_) => None,
            };
            TaskResult::Scanned(images.ok(), orphan_candidates)
        });
    }

    fn start_evaluations(&mut self) {
        let free = MAX_EVALUATIONS.saturating_sub(self.evaluating.len());
        let next = self
            .dirty
            .iter()
            .filter(|image| !self.evaluating.contains(*image));
        let next: Vec<ImageName> = next.take(free).cloned().collect();
        for image in next {
            self.dirty.remove(&image);
            self.due.remove(&image);
            self.evaluating.insert(image.clone());
            let ctx = self.ctx.clone();
            self.spawn(SchedulerTask::Evaluate(image.clone()), async move {
                let plan = evaluate(&ctx, &image).await;
                let plan = plan.inspect_err(|error| {
                    let error = error as &dyn std::error::Error;
                    tracing::debug!(%image, error, "failed to evaluate image; retrying later");
                });
                TaskResult::Evaluated(image, plan.ok().map(Box::new))
            });
        }
    }

    fn spawn(
        &mut self,
        task_kind: SchedulerTask,
        task: impl Future<Output = TaskResult> + Send + 'static,
    ) {
        let id = self.tasks.spawn(task).id();
        self.task_kinds.insert(id, task_kind);
    }

    fn handle_task_end(&mut self, ended: Result<(task::Id, TaskResult), JoinError>) {
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let task_kind = self.task_kinds.remove(&id);
        match ended {
            Ok((_, result)) => self.handle_result(result),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "steward task panicked; retrying");
                match task_kind {
                    Some(SchedulerTask::Evaluate(image)) => {
                        self.handle_result(TaskResult::Evaluated(image, None));
                    }
                    Some(SchedulerTask::Execute(image, action)) => {
                        self.handle_result(TaskResult::Executed(
                            image,
                            action,
                            Ok(WorkOutcome::Skipped),
                        ));
                    }
                    Some(SchedulerTask::Scan) => {
                        self.handle_result(TaskResult::Scanned(None, None));
                    }
                    None => {}
                }
            }
        }
    }

    fn handle_result(&mut self, result: TaskResult) {
        match result {
            TaskResult::Evaluated(image, plan) => {
                self.evaluating.remove(&image);
                match plan {
                    Some(plan) => self.apply_plan(&image, *plan),
                    None => self.evaluate_in(image, self.ctx.timing.retry_pause),
                }
            }
            TaskResult::Executed(image, action, result) => {
                let work = (image.clone(), action);
                self.executing.remove(&work);
                match result {
                    Ok(WorkOutcome::Done) => {
                        self.dirty.insert(image);
                    }
                    Ok(WorkOutcome::Skipped) => self.back_off(work),
                    Err(error) => {
                        let error = &error as &dyn std::error::Error;
                        tracing::info!(%image, action = ?work.1, error, "image work was interrupted");
                        self.back_off(work);
                    }
                }
            }
            TaskResult::Scanned(images, orphan_candidates) => {
                self.scanning = false;
                self.orphan_candidates = orphan_candidates.unwrap_or_default();
                match images {
                    Some(images) => {
                        self.dirty.extend(images);
                        self.ready.send_replace(true);
                    }
                    None => tracing::debug!("failed to list images; retrying later"),
                }
                if self.scan_again {
                    self.start_scan();
                }
            }
        }
    }

    fn apply_plan(&mut self, image: &ImageName, plan: Plan) {
        let Plan {
            actions,
            explanation,
        } = plan;
        self.states.update(&explanation);
        if waits_for_worker(&explanation) {
            self.waiting.insert(image.clone());
        } else {
            self.waiting.remove(image);
        }
        self.ctx.directory.set_eager(!self.waiting.is_empty());
        if let Some(at) = explanation.again_at {
            self.evaluate_in(image.clone(), from_now(at));
        }
        let time = Instant::now();
        self.backing_off.retain(|_, until| *until > time);
        for action in actions {
            if !self.ctx.cleans && action.removes() {
                continue;
            }
            let work = (image.clone(), action);
            let is_new = !self.executing.contains(&work) && !self.backing_off.contains_key(&work);
            if is_new {
                self.executing.insert(work.clone());
                let ctx = self.ctx.clone();
                let task_kind = SchedulerTask::Execute(work.0.clone(), work.1.clone());
                self.spawn(task_kind, async move {
                    let (image, action) = work;
                    let result = execute(&ctx, &image, &action).await;
                    TaskResult::Executed(image, action, result)
                });
            }
        }
    }

    /// Delays the next attempt of an action.
    fn back_off(&mut self, work: (ImageName, Action)) {
        let pause = self.ctx.timing.retry_pause;
        self.evaluate_in(work.0.clone(), pause);
        self.backing_off.insert(work, Instant::now() + pause);
    }

    fn evaluate_in(&mut self, image: ImageName, pause: Duration) {
        let at = Instant::now() + pause.min(MAX_PAUSE);
        let due = self.due.entry(image).or_insert(at);
        *due = at.min(*due);
    }
}

async fn evaluate(ctx: &StewardContext, image: &ImageName) -> nodeyard_store::Result<Plan> {
    let latest = ctx.directory.latest().borrow().clone();
    let mut image_state = ctx.load_image_state(image, &latest).await?;
    let mut plan = ctx.decide(&image_state);
    // A worker may have registered since the last poll.
    if waits_for_worker(&plan.explanation) {
        let fresh = ctx.directory.refresh().await;
        if fresh != latest {
            image_state = ctx.load_image_state(image, &fresh).await?;
            plan = ctx.decide(&image_state);
        }
    }
    let nothing_left = image_state.policy.is_none() && image_state.builds.is_empty();
    if nothing_left && !image_state.building {
        ctx.forget_image(image).await?;
    } else {
        ctx.report(&image_state, &plan.explanation).await;
    }
    Ok(plan)
}

async fn execute(
    ctx: &StewardContext,
    image: &ImageName,
    action: &Action,
) -> nodeyard_store::Result<WorkOutcome> {
    match action {
        Action::Build { formats } => ctx.build(image, formats).await,
        Action::AskZuul => ctx.poll_zuul(image).await,
        Action::Import {
            zuul_build,
            formats,
        } => ctx.import(image, zuul_build, formats).await,
        Action::ResumeBuild { build } => ctx.resume_build(image, *build).await,
        Action::ClearRequest { order } => ctx.clear_request(image, *order).await,
        Action::Upload { build, provider } => {
            // The semaphore is never closed; if it were, the limit would merely not apply.
            let _turn = ctx.uploads.acquire().await;
            ctx.upload(image, *build, provider).await
        }
        Action::SettleUpload(upload) => ctx.settle_upload(image, upload).await,
        Action::RemoveUpload(upload) => ctx.remove_upload(image, upload).await,
        Action::RemoveBuild { build } => ctx.remove_build(image, *build).await,
        Action::DropFiles { build, formats } => ctx.drop_files(image, *build, formats).await,
    }
}

fn waits_for_worker(explanation: &ImageExplanation) -> bool {
    let is_worker = |wait: &WaitReason| {
        matches!(
            wait,
            WaitReason::Worker { .. } | WaitReason::JobServer { .. }
        )
    };
    let fates = explanation.builds.iter().map(|report| &report.verdict);
    let mut fates = fates.chain(explanation.uploads.iter().map(|report| &report.verdict));
    let mut providers = explanation.providers.iter();
    let build = match &explanation.build {
        BuildVerdict::Waits { wait, .. } => Some(wait),
        BuildVerdict::Imported(report) => match &report.verdict {
            ImportVerdict::Waits { wait, .. } => Some(wait),
            _ => None,
        },
        _ => None,
    };
    build.is_some_and(is_worker)
        || providers.any(|report| {
            matches!(&report.verdict, UploadVerdict::Waits { wait, .. } if is_worker(wait))
        })
        || fates.any(|fate| matches!(fate, RetentionVerdict::Waits { wait, .. } if is_worker(wait)))
}

/// Returns the image that a path below `/nodepool/images` belongs to.
fn image_of(path: &TreePath) -> Option<ImageName> {
    let below = path.as_str().strip_prefix(layout::IMAGES)?;
    let name = below.strip_prefix('/')?.split('/').next()?;
    name.parse().ok()
}

fn from_now(at: Timestamp) -> Duration {
    // Slightly later, because the wall clock and the timer may differ.
    at.since(now()).saturating_add(Duration::from_millis(10))
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
