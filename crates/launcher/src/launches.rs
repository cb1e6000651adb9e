//! The launches in progress in this process, with the progress that their drivers report.
//!
//! Used by `explain` only; not persistent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nodeyard_driver::Progress;
use nodeyard_model::NodeId;

/// Cloning is cheap; clones share the launches.
#[derive(Debug, Clone, Default)]
pub(crate) struct ActiveLaunches(Arc<Mutex<HashMap<NodeId, Progress>>>);

/// A launch under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct Launching {
    launches: ActiveLaunches,
    node: NodeId,
    progress: Progress,
}

impl ActiveLaunches {
    /// Adds the launch of a node, which no other launch is for.
    pub(crate) fn begin(&self, node: NodeId) -> Launching {
        let progress = Progress::default();
        self.lock().insert(node, progress.clone());
        Launching {
            launches: self.clone(),
            node,
            progress,
        }
    }

    /// Returns what the launch of a node waits for, if its driver has reported it.
    pub(crate) fn stage(&self, node: NodeId) -> Option<Arc<str>> {
        self.lock().get(&node)?.stage()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Progress>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Launching {
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }
}

impl Drop for Launching {
    fn drop(&mut self) {
        self.launches.lock().remove(&self.node);
    }
}
