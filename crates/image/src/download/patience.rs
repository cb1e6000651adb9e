//! How often something may fail before it is given up.

use std::sync::{Mutex, PoisonError};

use nodeyard_fetch::Backoff;

use super::{DownloadError, Trouble};

/// Who has fetched so much since the last failure is on a good way.
const PROGRESS: u64 = 1 << 20;

/// Shared by all connections of a download.
#[derive(Debug)]
pub(super) struct Patience {
    backoff: Backoff,
    retries: u32,
    /// Connections that are likely to fail together.
    connections: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    failures: u32,
    /// Bytes that were there at the last failure.
    reached: u64,
}

impl Patience {
    pub(super) fn new(backoff: Backoff, retries: u32, connections: u32) -> Self {
        Self {
            backoff,
            retries,
            connections: connections.max(1),
            state: Mutex::default(),
        }
    }

    /// Waits a while after trouble that may pass; returns other trouble, and any when it was too often.
    pub(super) async fn bear(&self, trouble: Trouble, reached: u64) -> Result<(), Trouble> {
        let Trouble::Passing { error, after } = trouble else {
            return Err(trouble);
        };
        let failures = self.count(reached);
        if failures > self.retries.saturating_mul(self.connections) {
            return Err(Trouble::Final(DownloadError::GaveUp {
                failures,
                source: error,
            }));
        }
        let round = failures.div_ceil(self.connections);
        tracing::debug!(
            failures,
            error = &*error as &dyn std::error::Error,
            "a download is tried again"
        );
        tokio::time::sleep(self.backoff.delay(round, after)).await;
        Ok(())
    }

    fn count(&self, reached: u64) -> u32 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if reached >= state.reached.saturating_add(PROGRESS) {
            state.failures = 0;
        }
        state.failures += 1;
        state.reached = reached;
        state.failures
    }
}
