//! What every piece of work has at hand.

use std::sync::Arc;

use nodeyard_config::{Config, ImageDefinition};
pub(super) use nodeyard_model::now;
use nodeyard_model::{BuildId, BuildKey, ImageName};
use nodeyard_plan::images::{self, Action, BackoffState, ImageState, Pace, Plan, Subject};
use nodeyard_store::Result;
use nodeyard_store::registry::Registry;
use tokio::sync::{Semaphore, watch};
use uuid::Uuid;

use super::events::Events;
use super::functions::{Directory, Functions};
use super::notes::Notes;
use super::options::{Options, Timing};
use super::zuul::Zuuls;
use super::{Parts, picture};

/// Cloning is cheap.
#[derive(Debug, Clone)]
pub(super) struct Context {
    pub(super) registry: Registry,
    config: watch::Receiver<Arc<Config>>,
    pub(super) directory: Directory,
    pub(super) system: Arc<str>,
    pub(super) hostname: Arc<str>,
    /// The name under which this steward reports to launchers.
    pub(super) name: Arc<str>,
    pub(super) cleans: bool,
    pub(super) timing: Timing,
    pub(super) pace: Pace,
    pub(super) events: Arc<dyn Events>,
    pub(super) zuuls: Arc<Zuuls>,
    /// Most uploads at once.
    pub(super) uploads: Arc<Semaphore>,
}

/// What a piece of work came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Came {
    /// Something was done, or failed and has been noted.
    Through,
    /// Somebody else has the lock, or there is nothing to do any more.
    ToNothing,
}

/// What failed, for the notes.
pub(super) struct Trouble {
    pub(super) subject: Subject,
    pub(super) build: BuildId,
    pub(super) order: i64,
    pub(super) reason: String,
    /// Whether the next attempt waits. Otherwise nothing is wrong with what was attempted: the worker was stopped, or another
    /// one can do it.
    pub(super) counts: bool,
}

impl Context {
    pub(super) fn new(
        registry: Registry,
        system: Box<str>,
        directory: Directory,
        options: Options,
        parts: &Parts,
    ) -> Self {
        Self {
            registry,
            config: parts.config.clone(),
            directory,
            system: system.into(),
            hostname: options.hostname.into(),
            name: Uuid::new_v4().simple().to_string().into(),
            cleans: options.cleans,
            timing: options.timing,
            pace: options.pace,
            events: Arc::clone(&parts.events),
            zuuls: Arc::default(),
            uploads: Arc::new(Semaphore::new(options.uploads)),
        }
    }

    pub(super) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.borrow())
    }

    /// What the configuration says of an image, if it still has it.
    pub(super) fn image(&self, image: &ImageName) -> Option<ImageDefinition> {
        self.config.borrow().images.get(image.as_str()).cloned()
    }

    pub(super) async fn draw(
        &self,
        image: &ImageName,
        functions: &Functions,
    ) -> Result<ImageState> {
        picture::draw(&self.registry, &self.config(), functions, image).await
    }

    pub(super) fn decide(&self, picture: &ImageState) -> Plan {
        images::decide(picture, &self.pace, now())
    }

    /// Whether an action is still what the plan wants, now that its lock is ours; with the picture that says so.
    /// `unlock` takes our own lock out of the picture.
    pub(super) async fn confirm(
        &self,
        image: &ImageName,
        action: &Action,
        unlock: impl FnOnce(&mut ImageState),
    ) -> Result<Option<ImageState>> {
        let functions = self.directory.fresh().await;
        let mut picture = self.draw(image, &functions).await?;
        unlock(&mut picture);
        let plan = self.decide(&picture);
        Ok(plan.actions.contains(action).then_some(picture))
    }

    /// Remembers a failure, so that it is not repeated at once.
    pub(super) async fn failed(&self, image: &ImageName, trouble: Trouble) -> Result<()> {
        let Trouble {
            subject,
            build,
            order,
            reason,
            counts,
        } = trouble;
        if counts {
            tracing::warn!(%image, %build, ?subject, reason, "image work failed");
        } else {
            tracing::info!(%image, %build, ?subject, reason, "image work was not completed; retrying at once");
        }
        // Whoever asks for a build starts the count anew.
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
        Notes::change(&**self.registry.tree(), image, |notes| {
            let last = notes.setbacks.get(&subject);
            let anew = request.is_some_and(|request| {
                last.is_some_and(|last| last.order < request.czxid && request.czxid < order)
            });
            notes.fail(subject.clone(), latest.clone(), anew);
        })
        .await
    }

    /// Forgets failures of what has worked by now.
    pub(super) async fn worked(&self, image: &ImageName, subject: &Subject) -> Result<()> {
        Notes::change(&**self.registry.tree(), image, |notes| {
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
