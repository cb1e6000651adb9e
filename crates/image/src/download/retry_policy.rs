//! [`RetryPolicy`]: counts failures and delays retries.

use std::sync::{Mutex, PoisonError};

use nodeyard_fetch::Backoff;

use super::{DownloadError, TransferError};

/// Receiving this many bytes resets the failure count.
const RESET_AFTER: u64 = 1 << 20;

/// Shared by all connections of a download.
#[derive(Debug)]
pub(super) struct RetryPolicy {
    backoff: Backoff,
    retries: u32,
    /// The number of connections, which are likely to fail together.
    connections: u32,
    state: Mutex<FailureState>,
}

#[derive(Debug, Default)]
struct FailureState {
    failures: u32,
    /// Bytes received at the last failure.
    reached: u64,
}

impl RetryPolicy {
    pub(super) fn new(backoff: Backoff, retries: u32, connections: u32) -> Self {
        Self {
            backoff,
            retries,
            connections: connections.max(1),
            state: Mutex::default(),
        }
    }

    /// Waits before a retry after a transient error. Returns other errors, and every error after too many failures.
    pub(super) async fn wait_for_retry(
        &self,
        error: TransferError,
        reached: u64,
    ) -> Result<(), TransferError> {
        let TransferError::Transient { error, after } = error else {
            return Err(error);
        };
        let failures = self.count(reached);
        if failures > self.retries.saturating_mul(self.connections) {
            return Err(TransferError::Permanent(DownloadError::GaveUp {
                failures,
                source: error,
            }));
        }
        let round = failures.div_ceil(self.connections);
        tracing::debug!(
            failures,
            error = &*error as &dyn std::error::Error,
            "download failed; retrying"
        );
        tokio::time::sleep(self.backoff.delay(round, after)).await;
        Ok(())
    }

    fn count(&self, reached: u64) -> u32 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if reached >= state.reached.saturating_add(RESET_AFTER) {
            state.failures = 0;
        }
        state.failures += 1;
        state.reached = reached;
        state.failures
    }
}
