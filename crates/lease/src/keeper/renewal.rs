//! Measures how long owners have been able to renew their leases.

use std::time::Duration;

use nodeyard_model::Clock;
use nodeyard_model::Timestamp;
use nodeyard_store::Session;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::info;

/// A larger difference between the clock and the elapsed time is a step of the clock.
const MAX_DRIFT: Duration = Duration::from_secs(5);

/// Measures the time since the last interruption: a start, a loss of the store, or a step of the clock.
#[derive(Debug)]
pub(super) struct RenewalWatch {
    clock: Clock,
    session: watch::Receiver<Session>,
    since: Instant,
    last: (Timestamp, Instant),
}

impl RenewalWatch {
    pub(super) fn start(clock: Clock, mut session: watch::Receiver<Session>) -> Self {
        session.mark_unchanged();
        let now = Instant::now();
        Self {
            last: (clock.now(), now),
            clock,
            session,
            since: now,
        }
    }

    /// Returns the time since the last interruption. Notices an interruption when it is called.
    pub(super) fn possible_for(&mut self) -> Duration {
        let (time, now) = (self.clock.now(), Instant::now());
        let (last_time, last) = std::mem::replace(&mut self.last, (time, now));
        let passed = (now - last).as_secs_f64();
        let stepped =
            (time.as_secs() - last_time.as_secs() - passed).abs() > MAX_DRIFT.as_secs_f64();
        // An error means that the store is closed, which stops the keeper.
        let lost = self.session.has_changed().unwrap_or(false);
        if stepped || lost {
            info!(
                stepped,
                lost, "renewals were interrupted; keeping overdue leases for a while"
            );
            self.session.mark_unchanged();
            self.since = now;
        }
        now - self.since
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use nodeyard_store::SessionId;
    use tokio::time::sleep;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn the_store_and_the_clock_interrupt_it() {
        let begin = Instant::now();
        let ahead = Arc::new(Mutex::new(1000.0));
        let offset = Arc::clone(&ahead);
        let clock = Clock::new(move || {
            let seconds = begin.elapsed().as_secs_f64() + *offset.lock().unwrap();
            Timestamp::from_secs(seconds).unwrap()
        });
        let connected = Session::Connected(SessionId(1));
        let (session, sessions) = watch::channel(connected);
        let mut watch = RenewalWatch::start(clock, sessions);
        sleep(MINUTE).await;
        // Slewed, as a clock is.
        *ahead.lock().unwrap() += 1.0;
        assert_eq!(watch.possible_for(), MINUTE);
        for step in [3600.0, -7200.0] {
            *ahead.lock().unwrap() += step;
            assert_eq!(watch.possible_for(), Duration::ZERO);
            sleep(MINUTE).await;
            assert_eq!(watch.possible_for(), MINUTE);
        }
        session.send_replace(Session::Suspended(SessionId(1)));
        session.send_replace(connected);
        assert_eq!(watch.possible_for(), Duration::ZERO);
        sleep(MINUTE).await;
        assert_eq!(watch.possible_for(), MINUTE);
    }
}
