//! Loads, and what came of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::timeout;

use super::zuul::{Fulfilled, Zuul};

const NORMAL: u16 = 200;
const URGENT: u16 = 100;
const URGENT_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) completed: usize,
    pub(crate) elapsed: Duration,
    /// Sorted.
    pub(crate) fulfilled_after: Vec<Duration>,
    /// Of those that were submitted in front of a queue: sorted times, and how many others came first.
    pub(crate) urgent_after: Vec<Duration>,
    pub(crate) overtaken_by: Vec<usize>,
    pub(crate) urgent_submitted: usize,
}

impl Outcome {
    pub(crate) fn rate(&self) -> f64 {
        self.completed as f64 / self.elapsed.as_secs_f64()
    }
}

/// Three of ten requests want two nodes.
fn labels(number: usize) -> &'static [&'static str] {
    match number % 10 {
        0 | 3 | 6 => &["small", "small"],
        _ => &["small"],
    }
}

/// So many requests, `window` of them at a time, each node in use for `use_time`. What is not done by `limit` is not
/// waited for.
pub(crate) async fn closed(
    zuul: &Arc<Zuul>,
    count: usize,
    window: usize,
    use_time: Duration,
    limit: Duration,
) -> anyhow::Result<Outcome> {
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let mut workers = JoinSet::new();
    for _ in 0..window {
        let (zuul, next) = (Arc::clone(zuul), Arc::clone(&next));
        workers.spawn(async move {
            let mut times = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let left = limit.saturating_sub(started.elapsed());
                if number >= count || left.is_zero() {
                    return anyhow::Ok(times);
                }
                let submitted = zuul.submit(NORMAL, labels(number)).await?;
                let id = submitted.id;
                let Ok(fulfilled) = timeout(left, zuul.fulfilled(submitted)).await else {
                    zuul.registry.requests().delete(id).await?;
                    return Ok(times);
                };
                let Fulfilled { id, after, .. } = fulfilled?;
                zuul.run_job(id, use_time).await?;
                times.push(after);
            }
        });
    }
    let mut outcome = Outcome::default();
    while let Some(times) = workers.join_next().await {
        outcome.fulfilled_after.extend(times??);
    }
    outcome.elapsed = started.elapsed();
    outcome.completed = outcome.fulfilled_after.len();
    outcome.fulfilled_after.sort();
    Ok(outcome)
}

/// So many requests at once, and urgent requests that come while it is worked off.
pub(crate) async fn queue(
    zuul: &Arc<Zuul>,
    count: usize,
    use_time: Duration,
    limit: Duration,
) -> anyhow::Result<Outcome> {
    let completed = Arc::new(AtomicUsize::new(0));
    let mut jobs = JoinSet::new();
    let started = Instant::now();
    for _ in 0..count {
        let (zuul, completed) = (Arc::clone(zuul), Arc::clone(&completed));
        jobs.spawn(async move {
            let submitted = zuul.submit(NORMAL, &["small"]).await?;
            let fulfilled = zuul.fulfilled(submitted).await?;
            zuul.run_job(fulfilled.id, use_time).await?;
            completed.fetch_add(1, Ordering::Relaxed);
            anyhow::Ok(())
        });
    }
    let mut urgent = JoinSet::new();
    let mut outcome = Outcome::default();
    // The first comes when the queue is there.
    let mut pulse =
        tokio::time::interval_at(tokio::time::Instant::now() + URGENT_EVERY, URGENT_EVERY);
    let deadline = tokio::time::Instant::from_std(started + limit);
    loop {
        tokio::select! {
            job = jobs.join_next() => match job {
                Some(job) => job??,
                None => break,
            },
            // Towards the end there is no queue to be in front of.
            _ = pulse.tick(), if completed.load(Ordering::Relaxed) < count * 3 / 4 => {
                let submitted = zuul.submit(URGENT, &["small"]).await?;
                outcome.urgent_submitted += 1;
                let zuul = Arc::clone(zuul);
                urgent.spawn(async move {
                    let fulfilled = zuul.fulfilled(submitted).await?;
                    zuul.run_job(fulfilled.id, use_time).await?;
                    anyhow::Ok(fulfilled)
                });
            }
            () = tokio::time::sleep_until(deadline) => break,
        }
    }
    outcome.elapsed = started.elapsed();
    outcome.completed = completed.load(Ordering::Relaxed);
    while let Ok(Some(done)) = timeout(Duration::from_secs(1), urgent.join_next()).await {
        let fulfilled = done??;
        outcome.urgent_after.push(fulfilled.after);
        outcome.overtaken_by.push(fulfilled.overtaken_by);
    }
    outcome.urgent_after.sort();
    outcome.overtaken_by.sort_unstable();
    Ok(outcome)
}
