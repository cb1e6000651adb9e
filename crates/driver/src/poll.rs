//! How often to look at something that takes its time.

use std::time::Duration;

/// Looks soon at first and ever less often: what is done in a moment is noticed in a moment, what takes
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
    /// When to look again at something that began `age` ago: after a quarter of that.
    pub fn after(self, age: Duration) -> Duration {
        (age / 4).min(self.most).max(self.least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_looks_grows_slowly() {
        let poll = Poll::default();
        let looks_until = |end: Duration| {
            let (mut age, mut looks) = (Duration::ZERO, 0);
            while age < end {
                age += poll.after(age);
                looks += 1;
            }
            (looks, age)
        };
        let (looks, seen) = looks_until(Duration::from_millis(100));
        assert!(
            looks <= 5 && seen <= Duration::from_millis(125),
            "{looks} {seen:?}"
        );
        assert!(looks_until(Duration::from_secs(60)).0 < 40);
    }
}
