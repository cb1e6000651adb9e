//! What time it is, for records.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use nodeyard_model::Timestamp;

/// Tells the time that is written to records. Waiting is tokio's business.
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
