//! The queue beside a model of one key that knows neither queues nor tasks.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;

use super::*;

const MILLI: Duration = Duration::from_millis(1);

/// An add of a key, so many seconds after the one before.
#[derive(Debug, Clone)]
struct Add {
    key: u8,
    wait: u64,
    delay: u64,
}

#[derive(Debug, Clone, Copy)]
struct Run {
    seconds: u64,
    end: End,
}

#[derive(Debug, Clone, Copy)]
enum End {
    Done,
    Again(u64),
    Fails,
    Panics,
}

fn adds() -> impl Strategy<Value = Vec<Add>> {
    let add = (0..3_u8, 0..5_u64, prop_oneof![Just(0), 0..20_u64]);
    let add = add.prop_map(|(key, wait, delay)| Add { key, wait, delay });
    prop::collection::vec(add, 1..20)
}

fn runs() -> impl Strategy<Value = Vec<Run>> {
    let end = prop_oneof![
        3 => Just(End::Done),
        2 => (0..20_u64).prop_map(End::Again),
        2 => Just(End::Fails),
        1 => Just(End::Panics),
    ];
    let run = (0..6_u64, end).prop_map(|(seconds, end)| Run { seconds, end });
    prop::collection::vec(run, 0..8)
}

/// The times at which a key is run, in milliseconds. `adds` are the times of its adds, and for when they were.
fn expected(adds: &[(u64, u64)], runs: &[Run]) -> Vec<u64> {
    let (mut adds, mut runs) = (adds.iter().peekable(), runs.iter());
    let (mut due, mut failures, mut starts) = (None, 0, Vec::new());
    loop {
        match (due, adds.peek()) {
            (None, None) => return starts,
            (None, Some((_, at))) => {
                due = Some(*at);
                adds.next();
            }
            (Some(start), Some((added, at))) if *added < start => {
                if failures == 0 {
                    due = Some(start.min(*at));
                }
                adds.next();
            }
            (Some(start), _) => {
                starts.push(start);
                let run = runs.next().copied().unwrap_or(Run {
                    seconds: 0,
                    end: End::Done,
                });
                let end = start + run.seconds * 1000;
                let mut again = None;
                while let Some((_, at)) = adds.next_if(|(added, _)| *added < end) {
                    again = Some(again.map_or(*at, |earlier: u64| earlier.min(*at)));
                }
                let next = match run.end {
                    End::Done => None,
                    End::Again(seconds) => Some(end + seconds * 1000),
                    End::Fails | End::Panics => {
                        failures += 1;
                        due = Some(end + BACKOFF.delay(failures).as_millis() as u64);
                        continue;
                    }
                };
                failures = 0;
                due = again.into_iter().chain(next).min().map(|at| at.max(end));
            }
        }
    }
}

/// What the tasks have done so far.
#[derive(Default)]
struct Tasks {
    runs: HashMap<u8, VecDeque<Run>>,
    starts: HashMap<u8, Vec<u64>>,
    running: Vec<u8>,
    most: usize,
    overlapped: bool,
}

/// Returns what the queue did, at its end.
async fn observed(adds: &[Add], runs: &[Vec<Run>], concurrency: usize) -> Tasks {
    let begin = Instant::now();
    let queue = queue(concurrency);
    let runs = runs.iter().map(|runs| VecDeque::from(runs.clone()));
    let tasks = Arc::new(Mutex::new(Tasks {
        runs: (0..).zip(runs).collect(),
        ..Tasks::default()
    }));
    let reconcile = |key: u8| {
        let tasks = Arc::clone(&tasks);
        async move {
            let run = {
                let tasks = &mut *tasks.lock().unwrap();
                tasks.overlapped |= tasks.running.contains(&key);
                tasks.running.push(key);
                tasks.most = tasks.most.max(tasks.running.len());
                let now = begin.elapsed().as_millis() as u64;
                tasks.starts.entry(key).or_default().push(now);
                tasks.runs.get_mut(&key).and_then(VecDeque::pop_front)
            };
            if let Some(run) = run {
                sleep(run.seconds as u32 * SECOND).await;
            }
            tasks.lock().unwrap().running.retain(|other| *other != key);
            match run.map(|run| run.end) {
                None | Some(End::Done) => Ok(None),
                Some(End::Again(seconds)) => Ok(Some(seconds as u32 * SECOND)),
                Some(End::Fails) => Err(Refused),
                Some(End::Panics) => resume_unwind(Box::new("as the test said")),
            }
        }
    };
    let script = async {
        for add in adds {
            // Each add is at a millisecond of its own, so that it never coincides with what came of another.
            sleep(add.wait as u32 * SECOND + MILLI).await;
            queue.add_after(add.key, add.delay as u32 * SECOND);
        }
        while !queue.statuses().is_empty() {
            sleep(SECOND).await;
        }
    };
    with(&queue, reconcile, script).await;
    Arc::into_inner(tasks).unwrap().into_inner().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn keys_are_run_when_the_model_says(
        adds in adds(),
        runs in prop::collection::vec(runs(), 3),
        concurrency in 1..4_usize,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let tasks = runtime.block_on(observed(&adds, &runs, concurrency));
        prop_assert!(tasks.most <= concurrency);
        prop_assert!(!tasks.overlapped, "one task per key at a time");
        let mut now = 0;
        let mut of_key: HashMap<u8, Vec<(u64, u64)>> = HashMap::new();
        for add in &adds {
            now += add.wait * 1000 + 1;
            of_key.entry(add.key).or_default().push((now, now + add.delay * 1000));
        }
        for (key, adds) in of_key {
            let starts = &tasks.starts[&key];
            if concurrency == 3 {
                prop_assert_eq!(starts, &expected(&adds, &runs[usize::from(key)]), "key {}", key);
            } else {
                // It may have waited for others, but no add is lost.
                prop_assert!(starts.last() >= adds.last().map(|(added, _)| added));
            }
        }
    }
}
