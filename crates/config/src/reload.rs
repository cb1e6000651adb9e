//! Reloads the configuration when its files change.
//!
//! The directories of the files are watched, because editors and Kubernetes replace files by renaming. An event only
//! triggers a check of the modification times; a periodic check covers missing events (network file systems, symbolic
//! links). A file with errors is rejected: the current configuration stays, and the errors can be queried.

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
use crate::load::{ConfigSource, ConfigStamp, Loaded, load};
use crate::render::summary;

/// The pause after an event, because editors write in several steps.
const DEBOUNCE: Duration = Duration::from_millis(100);
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// The interval if file events are not available.
const POLL_INTERVAL_WITHOUT_EVENTS: Duration = Duration::from_secs(1);

/// Reloads a configuration when its files change.
#[derive(Debug)]
pub struct Reloader {
    source: ConfigSource,
    stamp: ConfigStamp,
    current: watch::Sender<Arc<Config>>,
    rejected: watch::Sender<Option<Arc<Diagnostics>>>,
}

/// Gives access to the current configuration.
#[derive(Debug, Clone)]
pub struct ConfigHandle {
    current: watch::Receiver<Arc<Config>>,
    rejected: watch::Receiver<Option<Arc<Diagnostics>>>,
}

impl ConfigHandle {
    /// Returns the current configuration.
    pub fn config(&self) -> Arc<Config> {
        self.current.borrow().clone()
    }

    /// Waits for a new configuration; returns `None` once the reloader has stopped.
    pub async fn changed(&mut self) -> Option<Arc<Config>> {
        self.current.changed().await.ok()?;
        Some(self.current.borrow_and_update().clone())
    }

    /// Returns the errors of the files if these were rejected.
    pub fn rejected(&self) -> Option<Arc<Diagnostics>> {
        self.rejected.borrow().clone()
    }
}

impl Reloader {
    /// Creates a reloader for a configuration that was loaded from `source` with this `stamp`.
    pub fn new(
        source: ConfigSource,
        config: Arc<Config>,
        stamp: ConfigStamp,
    ) -> (Self, ConfigHandle) {
        let (current, current_receiver) = watch::channel(config);
        let (rejected, rejected_receiver) = watch::channel(None);
        let handle = ConfigHandle {
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

    /// Watches the files until the future is dropped.
    pub async fn run(mut self) {
        let events = Arc::new(Notify::new());
        // Dropping the watcher would stop the events.
        let watcher = watch_directories(&self.source, Arc::clone(&events));
        let pause = if watcher.is_some() {
            POLL_INTERVAL
        } else {
            POLL_INTERVAL_WITHOUT_EVENTS
        };
        loop {
            self.check_files().await;
            tokio::select! {
                () = events.notified() => tokio::time::sleep(DEBOUNCE).await,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn check_files(&mut self) {
        let source = self.source.clone();
        let known = self.stamp;
        let check_files =
            move || (ConfigStamp::of(&source) != known).then(|| load(&source, Mode::Daemon));
        match tokio::task::spawn_blocking(check_files).await {
            Ok(Some(loaded)) => self.take(loaded),
            Ok(None) => {}
            Err(error) => warn!(%error, "failed to read the configuration"),
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
                warn!(%file, "configuration rejected; keeping the current one: {}", summary(&loaded.diagnostics));
                self.rejected
                    .send_replace(Some(Arc::new(loaded.diagnostics)));
            }
        }
    }
}

fn watch_directories(source: &ConfigSource, events: Arc<Notify>) -> Option<RecommendedWatcher> {
    let wake = move |_event| events.notify_one();
    let watcher = notify::recommended_watcher(wake).and_then(|mut watcher| {
        for directory in directories(source) {
            watcher.watch(&directory, RecursiveMode::NonRecursive)?;
        }
        Ok(watcher)
    });
    watcher
        .inspect_err(
            |error| warn!(%error, "failed to watch the configuration files; polling every second"),
        )
        .ok()
}

/// Returns the directories of the files, and of the targets of symbolic links.
fn directories(source: &ConfigSource) -> BTreeSet<PathBuf> {
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
