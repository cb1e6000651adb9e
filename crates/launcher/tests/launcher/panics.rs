//! Work that is no request's and no node's, and panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use nodeyard_launcher::LauncherTiming;
use nodeyard_model::layout;
use nodeyard_store::Tree;
use nodeyard_store::testing::{Call, Fate, Staged};

use crate::bed::{Drivers, Running, Store, eventually, logs, quick};
use crate::cloud::SMALL;
use crate::fake::{FakeCloud, config, simulate};
use crate::static_nodes;
use crate::zuul::Zuul;

/// The task that makes the first call below a path panics. The calls are counted.
fn panicking(tree: Arc<dyn Tree>, below: &'static str, calls: &Arc<AtomicUsize>) -> Arc<dyn Tree> {
    let calls = Arc::clone(calls);
    Staged::new(tree, move |call| {
        let is_meant = match call {
            Call::Read(path) => path.as_str().starts_with(below),
            Call::Write(ops) => ops.iter().any(|op| op.path().as_str().starts_with(below)),
            Call::Sync => false,
        };
        let before = if is_meant {
            calls.fetch_add(1, Ordering::SeqCst)
        } else {
            1
        };
        assert!(before > 0, "the first call below {below} panics");
        async { Fate::Done }.boxed()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_roster_is_kept_after_a_panic() {
    logs();
    let store = Store::embedded();
    let calls = Arc::default();
    let tree = panicking(store.session().await, "/nodeyard/rosters", &calls);
    let text = static_nodes::config(2, 1);
    let launcher = Running::start_on(tree, Arc::new(Drivers), &text, quick()).await;
    let zuul = Zuul::new(store.session().await);
    static_nodes::complete(&zuul.registry, 2).await;
    assert!(calls.load(Ordering::SeqCst) > 1);
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clean_up_goes_on_after_a_panic() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let calls = Arc::default();
    let tree = panicking(store.session().await, layout::REQUEST_LOCKS, &calls);
    let drivers = Arc::clone(&cloud) as _;
    let launcher = Running::start_on(tree, drivers, &config(1, SMALL), quick()).await;
    eventually("old locks are looked for again", || async {
        (calls.load(Ordering::SeqCst) > 2).then_some(())
    })
    .await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leaks_are_looked_for_while_old_locks_are_being_deleted() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let blocked = Arc::new(AtomicBool::new(false));
    let tree = Staged::new(store.session().await, {
        let blocked = Arc::clone(&blocked);
        move |call| {
            let is_meant =
                matches!(call, Call::Read(path) if path.as_str() == layout::REQUEST_LOCKS);
            if is_meant {
                blocked.store(true, Ordering::SeqCst);
            }
            async move {
                if is_meant {
                    std::future::pending::<()>().await;
                }
                Fate::Done
            }
            .boxed()
        }
    });
    // Only the clean-up looks for leaks.
    let timing = LauncherTiming {
        cloud_check: Duration::from_secs(24 * 3600),
        ..quick()
    };
    let drivers = Arc::clone(&cloud) as _;
    let launcher = Running::start_on(tree, drivers, &config(1, SMALL), timing).await;
    eventually("old locks are looked for", || async {
        blocked.load(Ordering::SeqCst).then_some(())
    })
    .await;
    cloud.listed_times(3).await;
    launcher.stop().await;
}
