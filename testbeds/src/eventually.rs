//! Waiting for conditions, not for times.

use std::future::Future;
use std::time::Duration;

use tokio::time::{sleep, timeout};

/// Long enough for a busy machine; reaching it means that something hangs.
const PATIENCE: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(5);

/// Looks again and again until there is something.
///
/// # Panics
///
/// When nothing comes.
#[expect(clippy::panic, reason = "that is how a test fails")]
pub async fn eventually<T, F>(what: &str, mut look: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let looking = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            sleep(PAUSE).await;
        }
    };
    let found = timeout(PATIENCE, looking).await;
    found.unwrap_or_else(|_| panic!("never happened: {what}"))
}

/// Looks again and again until the condition holds.
///
/// # Panics
///
/// When it never does.
pub async fn until<F>(what: &str, mut condition: impl FnMut() -> F)
where
    F: Future<Output = bool>,
{
    let holds = || {
        let holds = condition();
        async move { holds.await.then_some(()) }
    };
    eventually(what, holds).await;
}
