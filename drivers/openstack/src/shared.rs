//! Lists of the cloud that many steps look at.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// The last answer to a question, for all who ask it. Whoever needs a newer one asks the cloud, the others wait for
/// that answer and share it.
#[derive(Debug)]
pub(crate) struct Shared<T>(Mutex<Option<Answer<T>>>);

#[derive(Debug)]
struct Answer<T> {
    /// When the cloud was asked.
    asked: Instant,
    said: Arc<T>,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Shared<T> {
    /// What the cloud said when it was asked no longer than `age` ago. `ask` is not begun otherwise.
    pub(crate) async fn within<E>(
        &self,
        age: Duration,
        ask: impl Future<Output = Result<T, E>>,
    ) -> Result<Arc<T>, E> {
        let now = Instant::now();
        let earliest = now.checked_sub(age).unwrap_or(now);
        let mut last = self.0.lock().await;
        if let Some(answer) = &*last
            && answer.asked > earliest
        {
            return Ok(Arc::clone(&answer.said));
        }
        let asked = Instant::now();
        let said = Arc::new(ask.await?);
        *last = Some(Answer {
            asked,
            said: Arc::clone(&said),
        });
        Ok(said)
    }

    pub(crate) async fn forget(&self) {
        *self.0.lock().await = None;
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn those_who_ask_at_the_same_time_share_an_answer() {
        let (shared, asked) = (Shared::default(), AtomicUsize::new(0));
        let ask = |age| {
            shared.within(age, async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok::<_, Infallible>(asked.fetch_add(1, Ordering::SeqCst))
            })
        };
        // The first asks; the others came later than that question, and share the next one.
        let first = ask(Duration::ZERO);
        let later = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            tokio::join!(
                ask(Duration::ZERO),
                ask(Duration::ZERO),
                ask(Duration::ZERO)
            )
        };
        let (first, (a, b, c)) = tokio::join!(first, later);
        assert_eq!(*first.unwrap(), 0);
        assert_eq!([*a.unwrap(), *b.unwrap(), *c.unwrap()], [1, 1, 1]);
        assert_eq!(*ask(Duration::from_secs(5)).await.unwrap(), 1);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(*ask(Duration::from_secs(5)).await.unwrap(), 2);
    }
}
