//! For counterparts that write down whole seconds.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[expect(
    clippy::disallowed_methods,
    reason = "counterparts go by the time of the system"
)]
/// Returns in another second than it was called in: what happens before and after it has different times.
pub fn next_second() {
    let second = || {
        let time = SystemTime::now().duration_since(UNIX_EPOCH);
        time.map_or(0, |time| time.as_secs())
    };
    let called = second();
    while second() == called {
        thread::sleep(Duration::from_millis(10));
    }
}
