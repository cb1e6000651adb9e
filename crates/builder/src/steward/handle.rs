//! How others see a running steward.

use tokio::sync::watch;

/// Cloning is cheap.
#[derive(Debug, Clone)]
pub struct StewardHandle {
    pub(super) ready: watch::Receiver<bool>,
}

impl StewardHandle {
    /// True after the first look at everything.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Returns when the steward has looked at everything once; false if it has ended before.
    pub async fn until_ready(&mut self) -> bool {
        self.ready.wait_for(|ready| *ready).await.is_ok()
    }
}
