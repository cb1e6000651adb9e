//! How far a job of an image is, as stewards record it while it runs.

use nodeyard_model::{BuildId, ProviderName, Timestamp};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageJobProgress {
    pub build: BuildId,
    /// None for the build itself, otherwise where it is uploaded to.
    pub provider: Option<ProviderName>,
    pub since: Timestamp,
    /// Of how much; none as long as the worker has said nothing.
    pub done: Option<(u64, u64)>,
}

impl ImageJobProgress {
    /// Returns how much is done, in percent.
    pub fn percent(&self) -> Option<u8> {
        let (done, all) = self.done?;
        let percent = u128::from(done.min(all)) * 100 / u128::from(all.max(1));
        u8::try_from(percent).ok()
    }
}
