//! The clock of simulated clouds.

use std::time::SystemTime;

use tokio::time::Instant;

use crate::clock::Clock;

/// Returns a clock that starts at the system's time and advances with that of tokio, which tests can pause. Drivers wait
/// with tokio's timers, so a simulated cloud needs it to be in step with them.
pub fn tokio_clock() -> Clock {
    let (system, started) = (SystemTime::now(), Instant::now());
    Clock::new(move || (system + started.elapsed()).into())
}
