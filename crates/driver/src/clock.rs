//! What time it is, for whoever must not ask the system: records, and simulated clouds.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use nodeyard_model::Timestamp;

/// Tells the time, that of the system or one of a test's making. Waiting is tokio's business.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub fn system() -> Self {
        Self::new(|| SystemTime::now().into())
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
