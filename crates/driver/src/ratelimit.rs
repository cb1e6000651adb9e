//! Limits how often a provider is called, and decides who calls next.
//!
//! A turn is assigned when it is due, to a caller that still waits then: one that gives up leaves no gap. It goes to the
//! [`CallClass`] that has used the least of its share, so that a burst of one class does not delay the others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// What a call is for. Earlier classes have precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallClass {
    /// Lists and status polls.
    Read,
    Delete,
    /// Creations and changes.
    Create,
}

impl CallClass {
    /// Returns the reciprocal of the share: while all classes wait, four of seven turns are reads, two deletions and
    /// one a creation.
    fn stride(self) -> u64 {
        match self {
            Self::Read => 1,
            Self::Delete => 2,
            Self::Create => 4,
        }
    }
}

/// Spaces calls evenly. One for each provider.
#[derive(Debug)]
pub struct RateLimiter {
    interval: Duration,
    queue: Mutex<Queue>,
}

impl RateLimiter {
    /// Permits one call in each `interval`; zero is without limit.
    pub fn every(interval: Duration) -> Self {
        Self {
            interval,
            queue: Mutex::default(),
        }
    }

    pub fn unlimited() -> Self {
        Self::every(Duration::ZERO)
    }

    /// Waits for a turn. A caller that drops the future leaves the queue.
    pub async fn turn(&self, class: CallClass) {
        if self.interval.is_zero() {
            return;
        }
        let waiter = Waiter::enqueue(self, class);
        loop {
            match waiter.try_take() {
                Turn::Taken => return,
                Turn::At(due) => sleep_until(due).await,
                Turn::BehindOthers => waiter.is_next.notified().await,
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Queue {
    /// When the next turn is due; None before the first.
    due: Option<Instant>,
    classes: BTreeMap<CallClass, ClassQueue>,
    next_number: u64,
}

/// The callers of one class, in the order of their arrival.
#[derive(Debug, Default)]
struct ClassQueue {
    waiting: BTreeMap<u64, Arc<Notify>>,
    /// Grows by the stride with each turn.
    used: u64,
}

impl Queue {
    /// Adds a caller and returns its number.
    fn add(&mut self, class: CallClass, is_next: Arc<Notify>) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        let least_used = self.next_class().map(|class| class.used);
        if least_used.is_none() {
            self.classes.clear();
        }
        let class = self.classes.entry(class).or_default();
        if class.waiting.is_empty() {
            // A class does not save up its share while it is idle.
            class.used = class.used.max(least_used.unwrap_or(0));
        }
        class.waiting.insert(number, is_next);
        number
    }

    fn next_class(&self) -> Option<&ClassQueue> {
        let classes = self.classes.values();
        let waiting = classes.filter(|class| !class.waiting.is_empty());
        waiting.min_by_key(|class| class.used)
    }

    /// Returns the caller that gets the next turn.
    fn next(&self) -> Option<(u64, &Notify)> {
        let (number, caller) = self.next_class()?.waiting.first_key_value()?;
        Some((*number, caller))
    }
}

enum Turn {
    Taken,
    /// The caller is the next one, and has to wait until then.
    At(Instant),
    BehindOthers,
}

/// A place in the queue, given up when dropped.
struct Waiter<'a> {
    limiter: &'a RateLimiter,
    class: CallClass,
    number: u64,
    arrived: Instant,
    /// Notified when all before it have gone.
    is_next: Arc<Notify>,
}

impl<'a> Waiter<'a> {
    fn enqueue(limiter: &'a RateLimiter, class: CallClass) -> Self {
        let is_next = Arc::new(Notify::new());
        Self {
            limiter,
            class,
            number: limiter.queue().add(class, Arc::clone(&is_next)),
            arrived: Instant::now(),
            is_next,
        }
    }

    fn try_take(&self) -> Turn {
        let interval = self.limiter.interval;
        let now = Instant::now();
        let mut queue = self.limiter.queue();
        if queue.next().is_none_or(|(next, _)| next != self.number) {
            return Turn::BehindOthers;
        }
        let due = queue.due.unwrap_or(now);
        if now < due {
            return Turn::At(due);
        }
        // A timer that fires late does not slow down the calls behind it, but idle time is not saved up.
        let start = if self.arrived <= due {
            now.checked_sub(interval)
                .map_or(due, |earliest| due.max(earliest))
        } else {
            now
        };
        queue.due = start.checked_add(interval).or(Some(start));
        if let Some(class) = queue.classes.get_mut(&self.class) {
            class.used += self.class.stride();
        }
        Turn::Taken
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut queue = self.limiter.queue();
        if let Some(class) = queue.classes.get_mut(&self.class) {
            class.waiting.remove(&self.number);
        }
        if let Some((_, next)) = queue.next() {
            next.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::task::JoinSet;
    use tokio::time::{sleep, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Lets callers wait at the same time, in this order, and returns the classes in the order of their turns.
    async fn burst(classes: impl IntoIterator<Item = CallClass>) -> Vec<CallClass> {
        let limiter = Arc::new(RateLimiter::every(SECOND));
        limiter.turn(CallClass::Read).await;
        let turns = Arc::new(Mutex::new(Vec::new()));
        let mut callers = JoinSet::new();
        for class in classes {
            let (limiter, turns) = (Arc::clone(&limiter), Arc::clone(&turns));
            callers.spawn(async move {
                limiter.turn(class).await;
                turns.lock().unwrap().push(class);
            });
        }
        callers.join_all().await;
        turns.lock().unwrap().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn calls_are_spaced_and_idle_time_is_not_saved_up() {
        let limiter = RateLimiter::every(SECOND);
        let start = Instant::now();
        let turns = |count| {
            let limiter = &limiter;
            async move {
                let mut seen = Vec::new();
                for _ in 0..count {
                    limiter.turn(CallClass::Read).await;
                    seen.push(start.elapsed().as_secs());
                }
                seen
            }
        };
        assert_eq!(turns(3).await, [0, 1, 2]);
        sleep(10 * SECOND).await;
        assert_eq!(turns(3).await, [12, 13, 14]);
    }

    #[tokio::test(start_paused = true)]
    async fn without_limit_nobody_waits() {
        let start = Instant::now();
        for _ in 0..1000 {
            RateLimiter::unlimited().turn(CallClass::Create).await;
        }
        assert!(start.elapsed().is_zero());
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_gives_up_leaves_its_turn_to_others() {
        let limiter = Arc::new(RateLimiter::every(SECOND));
        let start = Instant::now();
        let mut callers = JoinSet::new();
        for _ in 0..5000 {
            let limiter = Arc::clone(&limiter);
            callers.spawn(async move {
                let turn = limiter.turn(CallClass::Delete);
                timeout(600 * SECOND, turn).await.is_ok()
            });
        }
        let served = callers.join_all().await;
        assert_eq!(served.iter().filter(|served| **served).count(), 601);
        limiter.turn(CallClass::Delete).await;
        assert_eq!(start.elapsed(), 601 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn reads_go_before_deletions_before_creations() {
        use CallClass::{Create, Delete, Read};
        let turns = burst([Create, Delete, Read]).await;
        assert_eq!(turns, [Read, Delete, Create]);
    }

    #[tokio::test(start_paused = true)]
    async fn no_class_starves() {
        use CallClass::{Create, Delete, Read};
        let all = [[Create; 70], [Delete; 70], [Read; 70]];
        let turns = burst(all.into_iter().flatten()).await;
        let (first, _) = turns.split_at(70);
        let count = |class| first.iter().filter(|turn| **turn == class).count();
        let counts = [Read, Delete, Create].map(count);
        assert!(
            counts[0] >= 38 && counts[1] >= 19 && counts[2] >= 9,
            "{counts:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_of_creations_does_not_delay_a_list() {
        let limiter = Arc::new(RateLimiter::every(SECOND));
        let mut callers = JoinSet::new();
        for _ in 0..100 {
            let limiter = Arc::clone(&limiter);
            callers.spawn(async move { limiter.turn(CallClass::Create).await });
        }
        sleep(10 * SECOND + SECOND / 2).await;
        let start = Instant::now();
        limiter.turn(CallClass::Read).await;
        assert_eq!(start.elapsed(), SECOND / 2);
    }

    fn class() -> impl Strategy<Value = CallClass> {
        prop_oneof![
            Just(CallClass::Read),
            Just(CallClass::Delete),
            Just(CallClass::Create)
        ]
    }

    proptest! {
        /// Callers with an arrival time and a patience, both in milliseconds.
        #[test]
        fn turns_are_spaced_and_none_is_wasted(
            callers in prop::collection::vec((class(), 0_u64..5000, 0_u64..5000), 1..40)
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .unwrap();
            let (turns, gave_up) = runtime.block_on(async {
                let limiter = Arc::new(RateLimiter::every(SECOND));
                let start = Instant::now();
                let mut tasks = JoinSet::new();
                for (class, arrival, patience) in callers {
                    let limiter = Arc::clone(&limiter);
                    tasks.spawn(async move {
                        sleep(Duration::from_millis(arrival)).await;
                        let arrived = start.elapsed();
                        let turn = timeout(Duration::from_millis(patience), limiter.turn(class));
                        let served = turn.await.is_ok();
                        (served, arrived, start.elapsed())
                    });
                }
                let ends = tasks.join_all().await;
                let (mut turns, gave_up): (Vec<_>, Vec<_>) =
                    ends.into_iter().partition(|(served, ..)| *served);
                turns.sort_by_key(|(.., at)| *at);
                (turns, gave_up)
            });
            for pair in turns.windows(2) {
                prop_assert!(pair[1].2 >= pair[0].2 + SECOND, "{pair:?}");
            }
            // Whoever gave up saw a turn taken in each interval that it waited.
            for (_, arrived, end) in gave_up {
                let taken = turns.iter().filter(|(.., at)| *at + SECOND > arrived && *at <= end);
                let waited = u64::try_from((end - arrived).as_millis()).unwrap();
                prop_assert!(taken.count() as u64 >= waited / 1000, "{arrived:?} {end:?}");
            }
        }
    }
}
