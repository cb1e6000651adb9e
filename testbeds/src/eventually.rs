//! Waiting for conditions instead of for times.
//!
//! A wait that fails panics with what it waited for and with the state of everything that the test has registered with
//! [`show_when_stuck`]. Registrations belong to the thread of the test, on which its own waits run as well.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::{sleep, timeout};

/// Long enough for a busy machine; reaching it means that something hangs.
const PATIENCE: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(5);
/// What hangs may be what is asked for its state.
const SHOW_PATIENCE: Duration = Duration::from_secs(10);

type Shown = Pin<Box<dyn Future<Output = String> + Send>>;

thread_local! {
    static STATES: RefCell<Vec<Box<dyn Fn() -> Shown>>> = const { RefCell::new(Vec::new()) };
}

/// Adds a state to the message of every wait of this test that fails from now on.
pub fn show_when_stuck<F>(state: impl Fn() -> F + 'static)
where
    F: Future<Output = String> + Send + 'static,
{
    STATES.with_borrow_mut(|states| states.push(Box::new(move || Box::pin(state()))));
}

/// Calls `look` again and again until it returns a value.
///
/// # Panics
///
/// If it has returned none after five minutes.
pub async fn eventually<T, F>(what: &str, look: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    within(PATIENCE, what, look).await
}

/// Calls `condition` again and again until it returns true.
///
/// # Panics
///
/// If it has not after five minutes.
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

#[expect(clippy::panic, reason = "that is how a test fails")]
async fn within<T, F>(patience: Duration, what: &str, mut look: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let mut looks = 0_u64;
    let looking = async {
        loop {
            looks += 1;
            if let Some(found) = look().await {
                return found;
            }
            sleep(PAUSE).await;
        }
    };
    if let Ok(found) = timeout(patience, looking).await {
        return found;
    }
    let seconds = patience.as_secs_f32();
    let mut message = format!("timed out after {seconds} s and {looks} looks: {what}");
    let states: Vec<Shown> =
        STATES.with_borrow(|states| states.iter().map(|state| state()).collect());
    for state in states {
        let state = timeout(SHOW_PATIENCE, state).await;
        message.push('\n');
        message.push_str(&state.unwrap_or_else(|_| "(a state that could not be read)".to_owned()));
    }
    panic!("{message}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    #[should_panic(expected = "looks: a node is ready\nnodes: none")]
    async fn a_wait_that_fails_shows_the_state() {
        show_when_stuck(|| async { "nodes: none".to_owned() });
        let never = || std::future::ready(None::<()>);
        within(Duration::from_millis(20), "a node is ready", never).await;
    }
}
