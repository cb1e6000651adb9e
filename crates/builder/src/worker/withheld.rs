//! Functions for builds and imports that are not registered for now, because there is too little disk space or the last job could not
//! be run. Another worker gets these jobs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nodeyard_image::{ByteSize, Error, Repository};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::WorkerContext;
use super::functions::configured;
use crate::jobs::Function;

#[derive(Debug, Default)]
pub(super) struct Withheld {
    state: Mutex<WithheldFunctions>,
    /// Notified when there may be more or less disk space.
    space_changed: Notify,
}

#[derive(Debug, Default)]
pub(super) struct WithheldFunctions {
    no_space: BTreeMap<Function, SpaceShortage>,
    /// The time at which they are registered again.
    paused: HashMap<Function, Instant>,
}

impl WithheldFunctions {
    pub(super) fn contains(&self, function: &Function) -> bool {
        self.no_space.contains_key(function) || self.paused.contains_key(function)
    }
}

impl Withheld {
    pub(super) fn lock(&self) -> MutexGuard<'_, WithheldFunctions> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note_space_changed(&self) {
        self.space_changed.notify_one();
    }

    pub(super) async fn space_changed(&self) {
        self.space_changed.notified().await;
    }
}

impl WorkerContext {
    /// Unregisters a function after this worker was unable to run its job, and registers it again after a pause. Returns when the
    /// job servers have been notified, so that a retry reaches another worker.
    pub(super) async fn pause_function(self: &Arc<Self>, function: &Function) {
        let until = Instant::now() + self.options.unable_pause;
        self.withheld.lock().paused.insert(function.clone(), until);
        self.register_configured();
        self.functions.builds_sent().await;
        let (context, function) = (Arc::clone(self), function.clone());
        self.tasks.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                () = context.stopping.cancelled() => return,
            }
            // It may have been paused again since.
            let mut withheld = context.withheld.lock();
            if withheld.paused.get(&function) == Some(&until) {
                withheld.paused.remove(&function);
            }
            drop(withheld);
            context.register_configured();
        });
    }

    /// Unregisters the builds and imports for which there is too little disk space, and registers those for which there is enough
    /// again. Does nothing during builds, because they free space when they end.
    pub(super) async fn check_space(self: &Arc<Self>) {
        if !self.builds.running().is_empty() {
            return;
        }
        let (repository, functions) = (self.repository.clone(), configured(&self.config()));
        let check = tokio::task::spawn_blocking(move || without_space(&repository, functions));
        let no_space = match check.await {
            Ok(Ok(no_space)) => no_space,
            Ok(Err(error)) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "failed to check disk space; offering all builds");
                BTreeMap::new()
            }
            // Only while the runtime shuts down.
            Err(_) => return,
        };
        let mut withheld = self.withheld.lock();
        for (function, (needed, available)) in &no_space {
            if !withheld.no_space.contains_key(function) {
                tracing::warn!(%function, %needed, %available, "unregistered function: insufficient disk space");
            }
        }
        for function in withheld.no_space.keys() {
            if !no_space.contains_key(function) {
                tracing::info!(%function, "registered function again: sufficient disk space");
            }
        }
        withheld.no_space = no_space;
        drop(withheld);
        self.register_configured();
    }
}

/// The disk space that a function needs, and that is available.
type SpaceShortage = (ByteSize, ByteSize);

/// Returns the functions whose jobs would be refused. Blocks.
fn without_space(
    repository: &Repository,
    functions: BTreeSet<Function>,
) -> Result<BTreeMap<Function, SpaceShortage>, Error> {
    let available = ByteSize(repository.available_space()?);
    let needed = |function: &Function| match function {
        Function::Build(image) => ByteSize(repository.estimate_build(image)),
        // How large it is, and how much of it is here already, is known when it is fetched.
        Function::Import(_) => ByteSize(1),
        _ => ByteSize(0),
    };
    let refused = functions.into_iter().filter_map(|function| {
        let needed = needed(&function);
        (needed > available).then_some((function, (needed, available)))
    });
    Ok(refused.collect())
}
