//! The handle of a running steward.

use tokio::sync::watch;

/// Observes a running steward. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct StewardHandle {
    pub(super) ready: watch::Receiver<bool>,
}

impl StewardHandle {
    /// Returns whether the first scan of all images is complete.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Waits for the first scan of all images. Returns `false` if the steward ended before.
    pub async fn until_ready(&mut self) -> bool {
        self.ready.wait_for(|ready| *ready).await.is_ok()
    }
}
