//! What an operation reports while it runs.

use std::sync::Arc;

use tokio::sync::watch;

use crate::ids::ExternalId;

/// The reporting side of one operation. Clones report to the same place.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<watch::Sender<ProgressState>>);

/// What an operation has reported so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProgressState {
    /// The cloud's id of what is being made. The caller stores it in the record.
    pub external_id: Option<ExternalId>,
    /// What the operation waits for, for `explain`.
    pub stage: Option<Arc<str>>,
    pub bytes: Bytes,
}

/// How much of a file was sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bytes {
    pub sent: u64,
    pub total: u64,
}

impl Progress {
    pub fn set_external_id(&self, id: impl Into<ExternalId>) {
        let id = Some(id.into());
        self.update(|state| replace(&mut state.external_id, id));
    }

    /// Withdraws the id of something that no longer exists.
    pub fn clear_external_id(&self) {
        self.update(|state| replace(&mut state.external_id, None));
    }

    pub fn set_stage(&self, stage: impl Into<Arc<str>>) {
        let stage = Some(stage.into());
        self.update(|state| replace(&mut state.stage, stage));
    }

    pub fn set_bytes(&self, sent: u64, total: u64) {
        self.update(|state| replace(&mut state.bytes, Bytes { sent, total }));
    }

    pub fn subscribe(&self) -> watch::Receiver<ProgressState> {
        self.0.subscribe()
    }

    pub fn external_id(&self) -> Option<ExternalId> {
        self.0.borrow().external_id.clone()
    }

    pub fn stage(&self) -> Option<Arc<str>> {
        self.0.borrow().stage.clone()
    }

    fn update(&self, change: impl FnOnce(&mut ProgressState) -> bool) {
        self.0.send_if_modified(change);
    }
}

/// Returns whether the value changed.
fn replace<T: PartialEq>(field: &mut T, value: T) -> bool {
    let changed = *field != value;
    *field = value;
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscribers_wake_up_for_changes_only() {
        let progress = Progress::default();
        let mut reported = progress.subscribe();
        progress.set_external_id("a");
        assert!(reported.has_changed().unwrap());
        reported.mark_unchanged();
        progress.clone().set_external_id("a");
        assert!(!reported.has_changed().unwrap());
        progress.set_stage("booting");
        let state = reported.borrow_and_update().clone();
        assert_eq!(state.external_id, Some("a".into()));
        assert_eq!(state.stage.as_deref(), Some("booting"));
    }
}
