//! Abandoned requests and nodes whose locks are held.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use nodeyard_launcher::LauncherTiming;
use nodeyard_model::layout::{self, RecordPath};
use nodeyard_model::{LauncherId, RequestState};
use nodeyard_model::{Node, NodeId, NodeRequest, NodeState, ProviderName, RequestId};
use nodeyard_store::registry::{Held, Patience, Registry};
use nodeyard_store::testing::{Call, Fate, Staged};
use nodeyard_store::{Op, Tree};
use tokio::sync::mpsc;

use crate::bed::{Running, Store, eventually, logs, quick};
use crate::cloud::{SMALL, nothing_is_left};
use crate::fake::{FakeCloud, PROVIDER, config, simulate};
use crate::zuul::{Zuul, now};

const NEVER: Duration = Duration::from_secs(24 * 3600);

/// Nothing is tried again because time has passed.
fn without_timers() -> LauncherTiming {
    LauncherTiming {
        pass: NEVER,
        cleanup: NEVER,
        delete_retry: NEVER,
        cloud_check: NEVER,
        ..quick()
    }
}

async fn leave_node(registry: &Registry, state: NodeState, request: RequestId) -> NodeId {
    let mut node = Node::new(state, now());
    node.provider = Some(ProviderName::new(PROVIDER).unwrap());
    node.pool = Some("main".into());
    node.labels = vec!["small".into()];
    node.launcher = Some(LauncherId::new("dead"));
    node.allocated_to = Some(request.into());
    registry.nodes().create(&node).await.unwrap().0
}

async fn leave_pending(zuul: &Zuul) -> RequestId {
    let pending = |request: &mut NodeRequest| request.set_state(RequestState::Pending, now());
    zuul.submit_with(200, &["small"], pending).await
}

/// Waits until the request was locked and its lock is free again.
async fn was_tried(zuul: &Zuul, id: RequestId) {
    eventually("it was tried to recover the request", || async {
        let requests = zuul.registry.requests();
        let lock = requests.lock_dir(id).await.unwrap()?;
        (lock.cversion >= 2 && lock.num_children == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphaned_request_is_recovered_as_soon_as_the_lock_of_its_node_is_released() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let zuul = Zuul::new(store.session().await);
    let id = leave_pending(&zuul).await;
    let node = leave_node(&zuul.registry, NodeState::Ready, id).await;
    let lock = zuul.registry.nodes().lock(node, Patience::None).await;
    let held = lock.unwrap().held().unwrap();
    let drivers = Arc::clone(&cloud) as _;
    let tree = store.session().await;
    let launcher = Running::start_on(tree, drivers, &config(1, SMALL), without_timers()).await;
    was_tried(&zuul, id).await;
    held.guard.release().await.unwrap();
    zuul.run_job(id).await;
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphaned_request_is_recovered_as_soon_as_its_own_lock_is_released() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let zuul = Zuul::new(store.session().await);
    let id = leave_pending(&zuul).await;
    let lock = zuul.registry.requests().lock(id, Patience::None).await;
    let held = lock.unwrap().held().unwrap();
    let drivers = Arc::clone(&cloud) as _;
    let tree = store.session().await;
    let launcher = Running::start_on(tree, drivers, &config(1, SMALL), without_timers()).await;
    eventually("it was tried to recover the request", || async {
        let requests = zuul.registry.requests();
        let lock = requests.lock_dir(id).await.unwrap()?;
        (lock.cversion >= 3 && lock.num_children == 1).then_some(())
    })
    .await;
    held.guard.release().await.unwrap();
    zuul.run_job(id).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphaned_request_is_recovered_after_the_connection_was_lost() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let zuul = Zuul::new(store.session().await);
    let id = leave_pending(&zuul).await;
    let lost = AtomicBool::new(false);
    let tree = Staged::new(store.session().await, move |call| {
        let locks = |op: &Op| op.path().as_str().starts_with(layout::REQUEST_LOCKS);
        let meant = matches!(call, Call::Write(ops) if ops.iter().any(locks));
        let first = meant && !lost.swap(true, Ordering::SeqCst);
        async move { if first { Fate::Lost } else { Fate::Done } }.boxed()
    });
    let drivers = Arc::clone(&cloud) as _;
    let launcher = Running::start_on(tree, drivers, &config(1, SMALL), without_timers()).await;
    zuul.run_job(id).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pending_requests_of_another_launcher_are_left_to_it() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    cloud.hold_boots(true);
    let drivers = || Arc::clone(&cloud) as _;
    let text = config(2, SMALL);
    let first = Running::start(&store, drivers(), &text).await;
    let zuul = Zuul::new(store.session().await);
    let id = zuul.submit(&["small"]).await;
    cloud.created(1).await;
    let tree = store.session().await;
    let second = Running::start_on(tree, drivers(), &text, without_timers()).await;
    cloud.hold_boots(false);
    zuul.run_job(id).await;
    // It is free, so its lock has no contenders.
    eventually("the second has nothing to do", || async {
        let status = second.handle.status().await?;
        (status.requests == 0 && status.nodes == 0).then_some(())
    })
    .await;
    assert_eq!(cloud.creates(), 1);
    first.stop().await;
    second.stop().await;
}

/// Delays the first attempt to lock the node until another contender has the lock.
fn too_late(
    tree: Arc<dyn Tree>,
    others: Registry,
    locked: mpsc::UnboundedSender<Held<Node>>,
) -> Arc<dyn Tree> {
    let others = Arc::new(others);
    let first = AtomicBool::new(true);
    Staged::new(tree, move |call| {
        let lock_of = |op: &Op| match op {
            Op::Create { path, .. } => match RecordPath::parse(path.parent()?.as_str()) {
                Some(RecordPath::NodeLock(node)) => Some(node),
                _ => None,
            },
            _ => None,
        };
        let node = match call {
            Call::Write(ops) => ops.iter().find_map(lock_of),
            Call::Read(_) | Call::Sync => None,
        };
        let node = node.filter(|_| first.swap(false, Ordering::SeqCst));
        let (others, locked) = (Arc::clone(&others), locked.clone());
        async move {
            if let Some(node) = node {
                let attempt = others.nodes().lock(node, Patience::None).await.unwrap();
                locked.send(attempt.held().unwrap()).unwrap();
            }
            Fate::Done
        }
        .boxed()
    })
}

/// A request is seen to be gone before the lock of its node is seen to be taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_returned_node_is_deleted_at_once_although_its_lock_was_busy() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let zuul = Zuul::new(store.session().await);
    let gone = "200-0000000099".parse::<RequestId>().unwrap();
    let node = leave_node(&zuul.registry, NodeState::Ready, gone).await;
    let (sender, mut locked) = mpsc::unbounded_channel();
    let others = Registry::new(store.session().await);
    let tree = too_late(store.session().await, others, sender);
    let drivers = Arc::clone(&cloud) as _;
    let launcher = Running::start_on(tree, drivers, &config(1, SMALL), without_timers()).await;
    let mut held = locked.recv().await.unwrap();
    let lock = zuul.registry.nodes().lock_of(node).unwrap();
    eventually("the launcher has tried", || async {
        (lock.contenders().await.unwrap().len() == 1).then_some(())
    })
    .await;
    held.value.set_state(NodeState::Used, now());
    let nodes = zuul.registry.nodes();
    nodes.store(&held.guard, node, &held.value).await.unwrap();
    held.guard.release().await.unwrap();
    zuul.gone(node).await;
    launcher.stop().await;
}
