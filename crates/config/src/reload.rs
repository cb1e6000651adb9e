//! Taking over a changed file while running.
//!
//! The directories of the files are watched, since editors and Kubernetes replace files by renaming;
//! any event there only causes a look at the modification times, and a look every few seconds
//! catches what events miss (network file systems, a symbolic link whose target is edited). A file
//! with errors changes nothing: the configuration in force stays, and the errors can be asked for.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::{Notify, watch};
use tracing::{info, warn};

use crate::config::Config;
use crate::decode::Mode;
use crate::diagnostic::Diagnostics;
use crate::load::{Loaded, Source, Stamp, load};
use crate::render::summary;

/// Editors write in several steps; this is how long they may take.
const SETTLE: Duration = Duration::from_millis(100);
const SAFETY_NET: Duration = Duration::from_secs(5);
/// Without events the look at the files is all there is.
const WITHOUT_EVENTS: Duration = Duration::from_secs(1);

/// Follows the files of a configuration.
#[derive(Debug)]
pub struct Reloader {
    source: Source,
    stamp: Stamp,
    current: watch::Sender<Arc<Config>>,
    rejected: watch::Sender<Option<Arc<Diagnostics>>>,
}

/// The configuration in force, wherever it is needed.
#[derive(Debug, Clone)]
pub struct Handle {
    current: watch::Receiver<Arc<Config>>,
    rejected: watch::Receiver<Option<Arc<Diagnostics>>>,
}

impl Handle {
    /// The configuration in force.
    pub fn config(&self) -> Arc<Config> {
        self.current.borrow().clone()
    }

    /// Waits for another configuration and gives it; `None` once nobody follows the files any more.
    pub async fn changed(&mut self) -> Option<Arc<Config>> {
        self.current.changed().await.ok()?;
        Some(self.current.borrow_and_update().clone())
    }

    /// Why the files as they are now are not in force; `None` if they are.
    pub fn rejected(&self) -> Option<Arc<Diagnostics>> {
        self.rejected.borrow().clone()
    }
}

impl Reloader {
    /// Starts from a configuration that was loaded from `source` with this `stamp`.
    pub fn new(source: Source, config: Arc<Config>, stamp: Stamp) -> (Self, Handle) {
        let (current, current_receiver) = watch::channel(config);
        let (rejected, rejected_receiver) = watch::channel(None);
        let handle = Handle {
            current: current_receiver,
            rejected: rejected_receiver,
        };
        (
            Self {
                source,
                stamp,
                current,
                rejected,
            },
            handle,
        )
    }

    /// Follows the files until the future is dropped.
    pub async fn run(mut self) {
        let events = Arc::new(Notify::new());
        // Kept alive: dropping the watcher ends the events.
        let watcher = watch_directories(&self.source, Arc::clone(&events));
        let pause = if watcher.is_some() {
            SAFETY_NET
        } else {
            WITHOUT_EVENTS
        };
        loop {
            self.look().await;
            tokio::select! {
                () = events.notified() => tokio::time::sleep(SETTLE).await,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn look(&mut self) {
        let source = self.source.clone();
        let known = self.stamp;
        let look = move || (Stamp::of(&source) != known).then(|| load(&source, Mode::Daemon));
        match tokio::task::spawn_blocking(look).await {
            Ok(Some(loaded)) => self.take(loaded),
            Ok(None) => {}
            Err(error) => warn!(%error, "reading the configuration failed"),
        }
    }

    fn take(&mut self, loaded: Loaded) {
        self.stamp = loaded.stamp;
        let file = self.source.main.display();
        match loaded.config {
            Some(config) => {
                self.rejected
                    .send_if_modified(|rejected| rejected.take().is_some());
                let changed = self.current.send_if_modified(|current| {
                    let changed = **current != config;
                    if changed {
                        *current = Arc::new(config);
                    }
                    changed
                });
                if changed {
                    info!(%file, warnings = loaded.diagnostics.warnings, "configuration reloaded");
                }
            }
            None => {
                for diagnostic in &loaded.diagnostics {
                    let line = diagnostic.place.as_ref().map(|place| place.line);
                    let file = diagnostic.file.display();
                    warn!(code = diagnostic.code, %file, line, "{}", diagnostic.message);
                }
                warn!(%file, "configuration rejected, the one before stays in force: {}", summary(&loaded.diagnostics));
                self.rejected
                    .send_replace(Some(Arc::new(loaded.diagnostics)));
            }
        }
    }
}

fn watch_directories(source: &Source, events: Arc<Notify>) -> Option<RecommendedWatcher> {
    let wake = move |_event| events.notify_one();
    let watcher = notify::recommended_watcher(wake).and_then(|mut watcher| {
        for directory in directories(source) {
            watcher.watch(&directory, RecursiveMode::NonRecursive)?;
        }
        Ok(watcher)
    });
    watcher
        .inspect_err(
            |error| warn!(%error, "changes of the configuration are seen by looking every second"),
        )
        .ok()
}

/// Where the files are, and where they are really.
fn directories(source: &Source) -> BTreeSet<PathBuf> {
    let parent = |path: &Path| match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let files = std::iter::once(&source.main).chain(&source.secure);
    files
        .flat_map(|file| [Some(file.clone()), file.canonicalize().ok()])
        .flatten()
        .map(|file| parent(&file))
        .collect()
}
