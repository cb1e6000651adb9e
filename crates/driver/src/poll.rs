//! How often to poll something that takes its time.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// Polls soon at first and ever less often: what is done in a moment is noticed in a moment, what takes
/// minutes costs a few dozen calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Poll {
    pub least: Duration,
    pub most: Duration,
}

impl Default for Poll {
    fn default() -> Self {
        Self {
            least: Duration::from_millis(20),
            most: Duration::from_secs(5),
        }
    }
}

impl Poll {
    /// Returns the pause before the next poll of something that began `age` ago: a quarter of its age.
    pub fn after(self, age: Duration) -> Duration {
        (age / 4).min(self.most).max(self.least)
    }

    /// Begins to poll something that starts now.
    pub fn start(self) -> PollTimer {
        PollTimer {
            poll: self,
            started: Instant::now(),
        }
    }
}

/// The pace at which one thing is polled.
#[derive(Debug, Clone, Copy)]
pub struct PollTimer {
    poll: Poll,
    started: Instant,
}

impl PollTimer {
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Waits until the next poll is due.
    pub async fn tick(&self) {
        sleep(self.poll.after(self.age())).await;
    }

    /// Waits until the next poll is due or `event` has happened.
    pub async fn tick_or(&self, event: impl Future<Output = ()>) {
        let _ = timeout(self.poll.after(self.age()), event).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_polls_grows_slowly() {
        let poll = Poll::default();
        let polls_until = |end: Duration| {
            let (mut age, mut polls) = (Duration::ZERO, 0);
            while age < end {
                age += poll.after(age);
                polls += 1;
            }
            (polls, age)
        };
        let (polls, seen) = polls_until(Duration::from_millis(100));
        assert!(
            polls <= 5 && seen <= Duration::from_millis(125),
            "{polls} {seen:?}"
        );
        assert!(polls_until(Duration::from_secs(60)).0 < 40);
    }
}
