//! Removes the locks of deleted requests.
//!
//! The lock of a request is a separate node, so that Zuul can delete the request without it, and nothing else deletes
//! it. It is kept for hours for its remaining contenders, so there are as many as there were requests in that time.
//! Each is checked when it is new and when it is due. In between, one read shows whether any were added or removed.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use nodeyard_model::{RequestId, Timestamp};
use nodeyard_store::registry::{Registry, Requests};
use nodeyard_store::{Error, Result};

/// So many are asked about, or deleted, at a time.
const AT_ONCE: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct OldLocks {
    /// Of the list that `made` agrees with.
    edition: Option<i64>,
    made: BTreeMap<RequestId, Timestamp>,
}

impl OldLocks {
    /// Removes those that are older than `age`, unless there is a request. `exists` knows most of those that there are.
    pub(crate) async fn remove(
        &mut self,
        registry: &Registry,
        exists: impl Fn(RequestId) -> bool,
        (now, age): (Timestamp, Duration),
    ) -> Result<()> {
        let requests = registry.requests();
        self.list(requests).await?;
        let is_old = |made: Timestamp| now.since(made) > age;
        let old = self.made.iter().filter(|(_, made)| is_old(**made));
        let old: Vec<RequestId> = old.map(|(id, _)| *id).collect();
        let old: Vec<RequestId> = old.into_iter().filter(|id| !exists(*id)).collect();
        for ids in old.chunks(AT_ONCE) {
            let removals = ids.iter().map(|id| remove_one(requests, *id, is_old));
            try_join_all(removals).await?;
        }
        Ok(())
    }

    async fn list(&mut self, requests: Requests<'_>) -> Result<()> {
        if self.edition.is_some() && self.edition == requests.lock_dirs_edition().await? {
            return Ok(());
        }
        let (ids, edition) = requests.lock_dirs().await?;
        let mut known = std::mem::take(&mut self.made);
        let mut new = Vec::new();
        for id in ids {
            match known.remove(&id) {
                Some(made) => drop(self.made.insert(id, made)),
                None => new.push(id),
            }
        }
        for ids in new.chunks(AT_ONCE) {
            let stats = join_all(ids.iter().map(|id| requests.lock_dir(*id))).await;
            for (id, stat) in ids.iter().zip(stats) {
                if let Some(stat) = stat? {
                    self.made.insert(*id, Timestamp::from_millis(stat.mtime));
                }
            }
        }
        self.edition = edition;
        Ok(())
    }
}

async fn remove_one(
    requests: Requests<'_>,
    id: RequestId,
    is_old: impl Fn(Timestamp) -> bool,
) -> Result<()> {
    match requests.get(id).await {
        Ok(None) => {}
        // Any reader may contend for the lock.
        Ok(Some(_)) | Err(Error::Malformed { .. }) => return Ok(()),
        Err(error) => return Err(error),
    }
    // It may have been removed and created again meanwhile.
    match requests.lock_dir(id).await? {
        Some(stat) if is_old(Timestamp::from_millis(stat.mtime)) => {
            requests.delete_lock_dir(id).await
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt as _;
    use nodeyard_model::{NodeRequest, RequestState};
    use nodeyard_store::embedded::Embedded;
    use nodeyard_store::registry::{Lifetime, Patience};
    use nodeyard_store::testing::{Call, Fate, Staged};
    use tokio::sync::Barrier;

    use super::*;

    const AGE: Duration = Duration::from_secs(3600);

    async fn locked_request(registry: &Registry, now: Timestamp) -> RequestId {
        let record = NodeRequest::new(RequestState::Requested, now);
        let requests = registry.requests();
        let created = requests.create(200, &record, Lifetime::UntilDeleted).await;
        let (id, _) = created.unwrap();
        let attempt = requests.lock(id, Patience::None).await.unwrap();
        attempt.held().unwrap().guard.release().await.unwrap();
        id
    }

    #[tokio::test]
    async fn a_lock_is_looked_at_when_it_is_new_and_when_it_is_old() {
        let directory = tempfile::tempdir().unwrap();
        let store = Embedded::open(directory.path()).unwrap();
        let now = nodeyard_model::now();
        let others = Registry::new(store.session());
        let mut ids = BTreeSet::new();
        for _ in 0..20 {
            ids.insert(locked_request(&others, now).await);
        }
        let reads = Arc::new(AtomicUsize::new(0));
        let staged = Staged::new(store.session(), {
            let reads = Arc::clone(&reads);
            move |call| {
                reads.fetch_add(usize::from(matches!(call, Call::Read(_))), Ordering::SeqCst);
                async { Fate::Done }.boxed()
            }
        });
        let registry = Registry::new(staged);
        let mut locks = OldLocks::default();
        let mut round = async |now| {
            reads.store(0, Ordering::SeqCst);
            locks
                .remove(&registry, |_| false, (now, AGE))
                .await
                .unwrap();
            reads.load(Ordering::SeqCst)
        };
        assert_eq!(round(now).await, 1 + 20, "the list, and each of them");
        assert_eq!(round(now).await, 1, "whether there are others");
        ids.insert(locked_request(&others, now).await);
        assert_eq!(round(now).await, 2 + 1, "the list again, and the new one");

        let (stays, gone) = (ids.pop_first().unwrap(), ids);
        for id in &gone {
            others.requests().delete(*id).await.unwrap();
        }
        assert_eq!(round(now).await, 1, "none is old");
        let later = now + AGE + Duration::from_secs(60);
        round(later).await;
        let (left, _) = others.requests().lock_dirs().await.unwrap();
        assert_eq!(left, [stays]);
    }

    #[tokio::test]
    async fn old_locks_are_deleted_at_the_same_time() {
        let directory = tempfile::tempdir().unwrap();
        let store = Embedded::open(directory.path()).unwrap();
        let now = nodeyard_model::now();
        let others = Registry::new(store.session());
        for _ in 0..20 {
            let id = locked_request(&others, now).await;
            others.requests().delete(id).await.unwrap();
        }
        // None goes before all are to go.
        let together = Arc::new(Barrier::new(20));
        let staged = Staged::new(store.session(), move |call| {
            let deletes = matches!(call, Call::Write(_));
            let together = Arc::clone(&together);
            async move {
                if deletes {
                    together.wait().await;
                }
                Fate::Done
            }
            .boxed()
        });
        let later = now + AGE + Duration::from_secs(60);
        let removed = OldLocks::default()
            .remove(&Registry::new(staged), |_| false, (later, AGE))
            .await;
        removed.unwrap();
        let (left, _) = others.requests().lock_dirs().await.unwrap();
        assert_eq!(left, []);
    }
}
