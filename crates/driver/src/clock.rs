//! The time of records and of simulated clouds.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use nodeyard_model::Timestamp;
use tokio::time::Instant;

/// Returns the current time: that of the system, or one that a test controls. Waiting is done with tokio's timers.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub fn system() -> Self {
        Self::new(|| SystemTime::now().into())
    }

    /// Starts at the system's time and advances with tokio's clock, which tests can pause.
    pub fn tokio() -> Self {
        let (system, started) = (SystemTime::now(), Instant::now());
        Self::new(move || (system + started.elapsed()).into())
    }

    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}
