//! State that is shared by all work of a steward.

use std::sync::Arc;

use nodeyard_config::{Config, ImageDefinition};
pub(super) use nodeyard_model::now;
use nodeyard_model::{BuildId, BuildKey, ImageName};
use nodeyard_plan::images::{self, Action, BackoffState, ImageState, Pace, Plan, Subject};
use nodeyard_store::Result;
use nodeyard_store::registry::Registry;
use tokio::sync::{Semaphore, watch};
use uuid::Uuid;

use super::events::StewardEvents;
use super::functions::{FunctionDirectory, RegisteredFunctions};
use super::notes::ImageNotes;
use super::options::{Options, StewardTiming};
use super::zuul::ZuulSources;
use super::{StewardDependencies, image_state};

/// The shared state of a steward. Cloning is cheap.
#[derive(Debug, Clone)]
pub(super) struct StewardContext {
    pub(super) registry: Registry,
    config: watch::Receiver<Arc<Config>>,
    pub(super) directory: FunctionDirectory,
    pub(super) system: Arc<str>,
    pub(super) hostname: Arc<str>,
    /// The name of this steward in its reports to launchers.
    pub(super) name: Arc<str>,
    pub(super) cleans: bool,
    pub(super) timing: StewardTiming,
    pub(super) pace: Pace,
    pub(super) events: Arc<dyn StewardEvents>,
    pub(super) zuul_sources: Arc<ZuulSources>,
    /// Limits concurrent uploads.
    pub(super) uploads: Arc<Semaphore>,
}

/// The result of one unit of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkOutcome {
    /// The work was done, or it failed and the failure was recorded.
    Done,
    /// The lock is held by another process, or there is nothing left to do.
    Skipped,
}

/// A failure to be recorded in the notes.
pub(super) struct WorkFailure {
    pub(super) subject: Subject,
    pub(super) build: BuildId,
    pub(super) order: i64,
    pub(super) reason: String,
    /// Whether the failure counts towards backoff. It does not if the worker was stopped or another worker can do the work.
    pub(super) counts: bool,
}

impl StewardContext {
    pub(super) fn new(
        registry: Registry,
        system: Box<str>,
        directory: FunctionDirectory,
        options: Options,
        dependencies: &StewardDependencies,
    ) -> Self {
        Self {
            registry,
            config: dependencies.config.clone(),
            directory,
            system: system.into(),
            hostname: options.hostname.into(),
            name: Uuid::new_v4().simple().to_string().into(),
            cleans: options.cleans,
            timing: options.timing,
            pace: options.pace,
            events: Arc::clone(&dependencies.events),
            zuul_sources: Arc::default(),
            uploads: Arc::new(Semaphore::new(options.uploads)),
        }
    }

    pub(super) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.borrow())
    }

    /// Returns the configuration of an image, if there is one.
    pub(super) fn image(&self, image: &ImageName) -> Option<ImageDefinition> {
        self.config.borrow().images.get(image.as_str()).cloned()
    }

    pub(super) async fn load_image_state(
        &self,
        image: &ImageName,
        functions: &RegisteredFunctions,
    ) -> Result<ImageState> {
        image_state::load_image_state(&self.registry, &self.config(), functions, image).await
    }

    pub(super) fn decide(&self, image_state: &ImageState) -> Plan {
        images::decide(image_state, &self.pace, now())
    }

    /// Checks, while its lock is held, that an action is still part of the plan, and returns the state of the image if so.
    /// `unlock` removes our own lock from the state.
    pub(super) async fn confirm(
        &self,
        image: &ImageName,
        action: &Action,
        unlock: impl FnOnce(&mut ImageState),
    ) -> Result<Option<ImageState>> {
        let functions = self.directory.refresh().await;
        let mut image_state = self.load_image_state(image, &functions).await?;
        unlock(&mut image_state);
        let plan = self.decide(&image_state);
        Ok(plan.actions.contains(action).then_some(image_state))
    }

    /// Records a failure, which delays the next attempt.
    pub(super) async fn record_failure(
        &self,
        image: &ImageName,
        work_failure: WorkFailure,
    ) -> Result<()> {
        let WorkFailure {
            subject,
            build,
            order,
            reason,
            counts,
        } = work_failure;
        if counts {
            tracing::warn!(%image, %build, ?subject, reason, "image work failed");
        } else {
            tracing::info!(%image, %build, ?subject, reason, "image work was interrupted; retrying at once");
        }
        // A new build request resets the count.
        let request = match subject {
            Subject::Build => self.registry.images().build_request(image).await?,
            _ => None,
        };
        let latest = BackoffState {
            failures: u32::from(counts),
            uncounted: u32::from(!counts),
            at: now(),
            build,
            order,
            reason,
        };
        ImageNotes::change(&**self.registry.tree(), image, |notes| {
            let last = notes.setbacks.get(&subject);
            let anew = request.is_some_and(|request| {
                last.is_some_and(|last| last.order < request.czxid && request.czxid < order)
            });
            notes.record_failure(subject.clone(), latest.clone(), anew);
        })
        .await
    }

    /// Removes the recorded failures of a subject.
    pub(super) async fn clear_failures(&self, image: &ImageName, subject: &Subject) -> Result<()> {
        ImageNotes::change(&**self.registry.tree(), image, |notes| {
            notes.setbacks.remove(subject);
        })
        .await
    }
}

pub(super) fn key(image: &ImageName, build: BuildId) -> BuildKey {
    BuildKey {
        image: image.clone(),
        build,
    }
}
