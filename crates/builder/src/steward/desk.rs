//! The desk: knows which images to look at, and starts what is to be done.
//!
//! An image is looked at when the store reports a change of anything about it, when a piece of work on it has ended,
//! when its plan said so, when the configuration or the set of workers has changed, and once in a while.

mod states;

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

use super::context::{Came, Context, now};
use super::error::Error;
use super::orphans::Sightings;
use super::picture;
use states::States;

/// Looks at once. Each is a few dozen reads.
const LOOKS: usize = 8;

/// The longest pause before an image is looked at again. Records and the configuration may say any number of seconds, and
/// the clock cannot represent all of them.
const LONGEST_PAUSE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

pub(super) struct Desk {
    ctx: Context,
    config: watch::Receiver<Arc<Config>>,
    ready: watch::Sender<bool>,
    /// To be looked at.
    dirty: BTreeSet<ImageName>,
    looking: HashSet<ImageName>,
    /// When to look without an event.
    due: BTreeMap<ImageName, Instant>,
    working: HashSet<(ImageName, Action)>,
    /// Not to be tried before.
    held_off: HashMap<(ImageName, Action), Instant>,
    /// Images that wait for a worker.
    waiting: HashSet<ImageName>,
    states: States,
    sightings: Sightings,
    surveying: bool,
    /// Something has changed since the survey that is under way began.
    survey_again: bool,
    tasks: JoinSet<Report>,
    /// What each task is about, in case it has nothing to tell in the end.
    errands: HashMap<task::Id, Errand>,
}

/// What a task does.
enum Errand {
    Look(ImageName),
    Work(ImageName, Action),
    Survey,
}

/// What a task has to tell when it ends.
enum Report {
    /// None if the store did not answer.
    Looked(ImageName, Option<Box<Plan>>),
    Worked(ImageName, Action, nodeyard_store::Result<Came>),
    /// All images there are, and what is left on workers without a record.
    Surveyed(Option<BTreeSet<ImageName>>, Option<Sightings>),
}

impl Desk {
    pub(super) fn new(
        ctx: Context,
        config: watch::Receiver<Arc<Config>>,
        ready: watch::Sender<bool>,
    ) -> Self {
        Self {
            states: States::new(Arc::clone(&ctx.events)),
            ctx,
            config,
            ready,
            dirty: BTreeSet::new(),
            looking: HashSet::new(),
            due: BTreeMap::new(),
            working: HashSet::new(),
            held_off: HashMap::new(),
            waiting: HashSet::new(),
            sightings: Sightings::default(),
            surveying: false,
            survey_again: false,
            tasks: JoinSet::new(),
            errands: HashMap::new(),
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
        let mut pass = tokio::time::interval(self.ctx.timing.pass);
        pass.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let result = loop {
            self.start_looks();
            let first_due = self.due.values().min().copied();
            tokio::select! {
                () = shutdown.cancelled() => break Ok(()),
                event = watcher.next() => match event {
                    Some(event) => self.take_events(event, &mut watcher),
                    None => break Err(Error::StoreClosed),
                },
                Some(ended) = self.tasks.join_next_with_id() => self.take_end(ended),
                () = until(first_due) => self.take_due(),
                Ok(()) = self.config.changed() => {
                    self.config.mark_unchanged();
                    pass.reset_immediately();
                }
                Ok(()) = functions.changed() => {
                    functions.mark_unchanged();
                    self.dirty.extend(self.waiting.drain());
                }
                _ = pass.tick() => self.survey(),
            }
        };
        // Whatever is under way goes on at the workers; its records and free locks tell the next steward.
        self.tasks.shutdown().await;
        result
    }

    /// Everything that is there by now belongs to one look.
    fn take_events(&mut self, first: WatchEvent, watcher: &mut Watcher) {
        let mut next = Some(first);
        while let Some(event) = next {
            match event {
                WatchEvent::Created(path)
                | WatchEvent::Changed(path)
                | WatchEvent::Deleted(path) => self.dirty.extend(image_of(&path)),
                WatchEvent::Gap => self.survey(),
            }
            next = watcher.try_next();
        }
    }

    fn take_due(&mut self) {
        let time = Instant::now();
        let due = self.due.extract_if(.., |_, at| *at <= time);
        self.dirty.extend(due.map(|(image, _)| image));
    }

    /// A look at everything.
    fn survey(&mut self) {
        self.survey_again = self.surveying;
        if self.surveying {
            return;
        }
        self.surveying = true;
        let ctx = self.ctx.clone();
        let before = std::mem::take(&mut self.sightings);
        self.send(Errand::Survey, async move {
            let images = picture::known_images(&ctx.registry, &ctx.config()).await;
            let sightings = match ctx.find_orphans(&before).await {
                Ok((orphans, sightings)) => {
                    for build in orphans {
                        if let Err(error) = ctx.settle_orphan(build).await {
                            let error = &error as &dyn std::error::Error;
                            tracing::debug!(%build, error, "an image without a record is left for later");
                        }
                    }
                    Some(sightings)
                }
                Err(_) => None,
            };
            Report::Surveyed(images.ok(), sightings)
        });
    }

    fn start_looks(&mut self) {
        let free = LOOKS.saturating_sub(self.looking.len());
        let next = self
            .dirty
            .iter()
            .filter(|image| !self.looking.contains(*image));
        let next: Vec<ImageName> = next.take(free).cloned().collect();
        for image in next {
            self.dirty.remove(&image);
            self.due.remove(&image);
            self.looking.insert(image.clone());
            let ctx = self.ctx.clone();
            self.send(Errand::Look(image.clone()), async move {
                let plan = look(&ctx, &image).await;
                let plan = plan.inspect_err(|error| {
                    let error = error as &dyn std::error::Error;
                    tracing::debug!(%image, error, "the image cannot be looked at now");
                });
                Report::Looked(image, plan.ok().map(Box::new))
            });
        }
    }

    fn send(&mut self, errand: Errand, task: impl Future<Output = Report> + Send + 'static) {
        let id = self.tasks.spawn(task).id();
        self.errands.insert(id, errand);
    }

    fn take_end(&mut self, ended: Result<(task::Id, Report), JoinError>) {
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let errand = self.errands.remove(&id);
        match ended {
            Ok((_, report)) => self.take(report),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(
                    error,
                    "a task of the steward has panicked; it is tried again"
                );
                match errand {
                    Some(Errand::Look(image)) => self.take(Report::Looked(image, None)),
                    Some(Errand::Work(image, action)) => {
                        self.take(Report::Worked(image, action, Ok(Came::ToNothing)));
                    }
                    Some(Errand::Survey) => self.take(Report::Surveyed(None, None)),
                    None => {}
                }
            }
        }
    }

    fn take(&mut self, report: Report) {
        match report {
            Report::Looked(image, plan) => {
                self.looking.remove(&image);
                match plan {
                    Some(plan) => self.start(&image, *plan),
                    None => self.look_in(image, self.ctx.timing.retry),
                }
            }
            Report::Worked(image, action, result) => {
                let work = (image.clone(), action);
                self.working.remove(&work);
                match result {
                    Ok(Came::Through) => {
                        self.dirty.insert(image);
                    }
                    Ok(Came::ToNothing) => self.hold_off(work),
                    Err(error) => {
                        let error = &error as &dyn std::error::Error;
                        tracing::info!(%image, action = ?work.1, error, "image work was interrupted");
                        self.hold_off(work);
                    }
                }
            }
            Report::Surveyed(images, sightings) => {
                self.surveying = false;
                self.sightings = sightings.unwrap_or_default();
                match images {
                    Some(images) => {
                        self.dirty.extend(images);
                        self.ready.send_replace(true);
                    }
                    None => tracing::debug!("the store does not answer now"),
                }
                if self.survey_again {
                    self.survey();
                }
            }
        }
    }

    fn start(&mut self, image: &ImageName, plan: Plan) {
        let Plan {
            actions,
            explanation,
        } = plan;
        self.states.tell(&explanation);
        if waits_for_worker(&explanation) {
            self.waiting.insert(image.clone());
        } else {
            self.waiting.remove(image);
        }
        self.ctx.directory.set_eager(!self.waiting.is_empty());
        if let Some(at) = explanation.again_at {
            self.look_in(image.clone(), from_now(at));
        }
        let time = Instant::now();
        self.held_off.retain(|_, until| *until > time);
        for action in actions {
            if !self.ctx.cleans && action.removes() {
                continue;
            }
            let work = (image.clone(), action);
            let is_new = !self.working.contains(&work) && !self.held_off.contains_key(&work);
            if is_new {
                self.working.insert(work.clone());
                let ctx = self.ctx.clone();
                let errand = Errand::Work(work.0.clone(), work.1.clone());
                self.send(errand, async move {
                    let (image, action) = work;
                    let result = carry_out(&ctx, &image, &action).await;
                    Report::Worked(image, action, result)
                });
            }
        }
    }

    /// Whoever got in the way needs a moment.
    fn hold_off(&mut self, work: (ImageName, Action)) {
        let pause = self.ctx.timing.retry;
        self.look_in(work.0.clone(), pause);
        self.held_off.insert(work, Instant::now() + pause);
    }

    fn look_in(&mut self, image: ImageName, pause: Duration) {
        let at = Instant::now() + pause.min(LONGEST_PAUSE);
        let due = self.due.entry(image).or_insert(at);
        *due = at.min(*due);
    }
}

async fn look(ctx: &Context, image: &ImageName) -> nodeyard_store::Result<Plan> {
    let latest = ctx.directory.latest().borrow().clone();
    let mut picture = ctx.draw(image, &latest).await?;
    let mut plan = ctx.decide(&picture);
    // What has come since the last question is worth another.
    if waits_for_worker(&plan.explanation) {
        let fresh = ctx.directory.fresh().await;
        if fresh != latest {
            picture = ctx.draw(image, &fresh).await?;
            plan = ctx.decide(&picture);
        }
    }
    let nothing_left = picture.policy.is_none() && picture.builds.is_empty();
    if nothing_left && !picture.building {
        ctx.forget_image(image).await?;
    } else {
        ctx.report(&picture, &plan.explanation).await;
    }
    Ok(plan)
}

async fn carry_out(
    ctx: &Context,
    image: &ImageName,
    action: &Action,
) -> nodeyard_store::Result<Came> {
    match action {
        Action::Build { formats } => ctx.build(image, formats).await,
        Action::AskZuul => ctx.ask_zuul(image).await,
        Action::Import {
            zuul_build,
            formats,
        } => ctx.import(image, zuul_build, formats).await,
        Action::ResumeBuild { build } => ctx.resume_build(image, *build).await,
        Action::ClearRequest { order } => ctx.clear_request(image, *order).await,
        Action::Upload { build, provider } => {
            // Closed never; if it were, the upload would only be one too many.
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

/// The image that a path below `/nodepool/images` is about.
fn image_of(path: &TreePath) -> Option<ImageName> {
    let below = path.as_str().strip_prefix(layout::IMAGES)?;
    let name = below.strip_prefix('/')?.split('/').next()?;
    name.parse().ok()
}

fn from_now(at: Timestamp) -> Duration {
    // A little later, since the clock that counts is not the one that wakes us.
    at.since(now()).saturating_add(Duration::from_millis(10))
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
