//! The current time. Everything else takes it as a parameter or from a [`Clock`].

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use crate::Timestamp;

/// Returns the time of the system. What can be given a [`Clock`] asks that instead.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the time of the system"
)]
pub fn now() -> Timestamp {
    SystemTime::now().into()
}

/// A source of the current time: the system, or a test. Waiting is the business of the runtime.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub fn system() -> Self {
        Self::new(now)
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
