mod model;

use std::fmt;
use std::future::pending;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::{Backoff, CountKeys as _, KeyStatus, Options, QueueCounts, WorkQueue};

const SECOND: Duration = Duration::from_secs(1);
const BACKOFF: Backoff = Backoff {
    first: SECOND,
    max: Duration::from_secs(60),
};

#[derive(Debug)]
struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}

impl std::error::Error for Refused {}

type Outcome = Result<Option<Duration>, Refused>;

fn queue(concurrency: usize) -> WorkQueue<u8> {
    WorkQueue::new(Options {
        name: "test",
        concurrency,
        backoff: BACKOFF,
        grace: SECOND,
    })
}

/// The times at which tasks were started, in seconds since the start of the test.
#[derive(Clone)]
struct Starts {
    begin: Instant,
    seen: Arc<Mutex<Vec<u64>>>,
}

impl Starts {
    fn new() -> Self {
        Self {
            begin: Instant::now(),
            seen: Arc::default(),
        }
    }

    fn record(&self) -> usize {
        let mut seen = self.seen.lock().unwrap();
        seen.push(self.begin.elapsed().as_secs());
        seen.len()
    }

    fn seen(&self) -> Vec<u64> {
        self.seen.lock().unwrap().clone()
    }
}

/// Runs the queue beside `script`, and stops when that has ended.
async fn with<T>(
    queue: &WorkQueue<u8>,
    reconcile: impl FnMut(u8) -> T,
    script: impl Future<Output = ()>,
) where
    T: Future<Output = Outcome> + Send + 'static,
{
    let stop = CancellationToken::new();
    let script = async {
        script.await;
        stop.cancel();
    };
    tokio::join!(queue.run(&stop, reconcile), script);
}

#[test]
fn backoff_doubles_up_to_its_maximum() {
    let seconds = [1, 2, 3, 6, 7, 1000, u32::MAX].map(|failures| BACKOFF.delay(failures).as_secs());
    assert_eq!(seconds, [1, 2, 4, 32, 60, 60, 60]);
}

#[tokio::test(start_paused = true)]
async fn many_adds_are_one_run_and_one_more_while_it_runs() {
    let (queue, starts) = (queue(8), Starts::new());
    let reconcile = |_: u8| {
        let starts = starts.clone();
        async move {
            starts.record();
            sleep(5 * SECOND).await;
            Ok(None)
        }
    };
    let script = async {
        for _ in 0..3 {
            queue.add(1);
        }
        sleep(SECOND).await;
        for _ in 0..3 {
            queue.add(1);
        }
        sleep(60 * SECOND).await;
        assert_eq!(starts.seen(), [0, 5]);
        assert!(queue.statuses().is_empty(), "nothing is kept of it");
    };
    with(&queue, reconcile, script).await;
}

#[tokio::test(start_paused = true)]
async fn the_earliest_due_time_counts() {
    let (queue, starts) = (queue(8), Starts::new());
    let reconcile = |_: u8| {
        starts.record();
        async { Ok(None) }
    };
    let script = async {
        queue.add_after(1, 30 * SECOND);
        queue.add_after(1, 10 * SECOND);
        queue.add_after(1, Duration::MAX);
        sleep(60 * SECOND).await;
        assert_eq!(starts.seen(), [10]);
    };
    with(&queue, reconcile, script).await;
}

#[tokio::test(start_paused = true)]
async fn a_key_that_panics_is_run_again_after_a_backoff() {
    let (queue, starts) = (queue(8), Starts::new());
    let reconcile = |_: u8| {
        let starts = starts.clone();
        async move {
            match starts.record() {
                1 => resume_unwind(Box::new("out of order")),
                2 => Err(Refused),
                3 => Ok(Some(10 * SECOND)),
                _ => Ok(None),
            }
        }
    };
    let script = async {
        queue.add(1);
        sleep(SECOND / 2).await;
        let status = queue.status(&1).unwrap();
        assert_eq!(status.failures, 1);
        assert_eq!(status.last_error.as_deref(), Some("panicked: out of order"));
        let counts = QueueCounts {
            delayed: 1,
            failing: 1,
            ..QueueCounts::default()
        };
        assert_eq!(queue.counts(), counts);
        // Events do not cut the backoff short.
        queue.add(1);
        sleep(SECOND).await;
        let status = queue.status(&1).unwrap();
        assert_eq!(status.failures, 2);
        assert_eq!(status.last_error.as_deref(), Some("refused"));
        sleep(SECOND * 2).await;
        let healthy = KeyStatus {
            running_since: None,
            due: Some(starts.begin + 13 * SECOND),
            failures: 0,
            last_error: None,
        };
        assert_eq!(queue.status(&1), Some(healthy));
        sleep(60 * SECOND).await;
        assert_eq!(starts.seen(), [0, 1, 3, 13]);
    };
    with(&queue, reconcile, script).await;
}

#[tokio::test(start_paused = true)]
async fn an_endless_failure_does_not_hold_up_other_keys() {
    let (queue, starts) = (queue(1), Starts::new());
    let reconcile = |key: u8| {
        let starts = starts.clone();
        async move {
            if key == 1 {
                return Err(Refused);
            }
            starts.record();
            Ok(Some(10 * SECOND))
        }
    };
    let script = async {
        queue.add(1);
        queue.add(2);
        sleep(25 * SECOND).await;
        assert_eq!(starts.seen(), [0, 10, 20]);
    };
    with(&queue, reconcile, script).await;
}

#[tokio::test(start_paused = true)]
async fn so_many_run_at_once_in_the_order_of_their_due_times() {
    let queue = queue(2);
    let (allowed, order) = (
        Arc::new(Semaphore::new(0)),
        Arc::new(Mutex::new(Vec::new())),
    );
    let reconcile = |key: u8| {
        let (allowed, order) = (Arc::clone(&allowed), Arc::clone(&order));
        async move {
            order.lock().unwrap().push(key);
            allowed.acquire().await.unwrap().forget();
            Ok(None)
        }
    };
    let script = async {
        for key in [3, 1, 4, 5, 2] {
            queue.add(key);
        }
        sleep(SECOND).await;
        assert_eq!(*order.lock().unwrap(), [3, 1]);
        let mut running = queue.statuses();
        running.retain(|(_, status)| status.running_since.is_some());
        assert_eq!(running.len(), 2);
        let counts = QueueCounts {
            running: 2,
            ready: 3,
            ..QueueCounts::default()
        };
        assert_eq!(queue.counts(), counts);
        allowed.add_permits(5);
        sleep(SECOND).await;
        assert_eq!(*order.lock().unwrap(), [3, 1, 4, 5, 2]);
    };
    with(&queue, reconcile, script).await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_running_tasks_and_starts_no_more() {
    let (queue, starts) = (queue(1), Starts::new());
    let ended = Arc::new(Mutex::new(0));
    let reconcile = |_: u8| {
        let (starts, ended) = (starts.clone(), Arc::clone(&ended));
        async move {
            starts.record();
            sleep(SECOND * 3 / 2).await;
            *ended.lock().unwrap() += 1;
            Ok(None)
        }
    };
    let script = async {
        queue.add(1);
        queue.add(2);
        sleep(SECOND).await;
    };
    with(&queue, reconcile, script).await;
    assert_eq!((starts.seen(), *ended.lock().unwrap()), (vec![0], 1));
    assert!(queue.statuses().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_outlasts_the_grace_period_is_aborted() {
    let (queue, begin) = (queue(1), Instant::now());
    let script = async {
        queue.add(1);
        sleep(SECOND).await;
    };
    with(&queue, |_| pending(), script).await;
    assert_eq!(begin.elapsed(), 2 * SECOND);
    assert!(queue.statuses().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_is_dropped_leaves_nothing_to_the_next() {
    let (queue, starts) = (queue(1), Starts::new());
    let stop = CancellationToken::new();
    queue.add(1);
    queue.add(2);
    let run = queue.run(&stop, |_| pending::<Outcome>());
    assert!(tokio::time::timeout(SECOND, run).await.is_err());
    let reconcile = |_: u8| {
        starts.record();
        async { Ok(None) }
    };
    let script = async {
        sleep(SECOND).await;
        queue.add(1);
        sleep(SECOND).await;
        assert_eq!(starts.seen(), [2]);
    };
    with(&queue, reconcile, script).await;
}
