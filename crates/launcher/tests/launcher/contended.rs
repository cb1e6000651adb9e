//! Locks that another contender holds for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use nodeyard_model::layout::{self, RecordPath};
use nodeyard_model::{Node, NodeId, NodeState, ProviderName, RequestId, RequestState};
use nodeyard_plan::explain::Next;
use nodeyard_store::registry::{Held, Patience, Registry};
use nodeyard_store::testing::{Call, Fate, Staged};
use nodeyard_store::{Op, Tree, TreePath};
use tokio::sync::{Mutex, mpsc};
use tokio::time::sleep;

use crate::bed::{Running, Store, eventually, logs, quick};
use crate::cloud::{SMALL, nothing_is_left};
use crate::fake::{FakeCloud, PROVIDER, config, simulate};
use crate::zuul::{Zuul, now};

/// Somebody's node, which takes the room of one. Nobody cleans up after those that are being tested.
async fn take_room(registry: &Registry) -> NodeId {
    let mut node = Node::new(NodeState::Testing, now());
    node.provider = Some(ProviderName::new(PROVIDER).unwrap());
    node.pool = Some("main".into());
    node.labels = vec!["small".into()];
    registry.nodes().create(&node).await.unwrap().0
}

async fn make_room(registry: &Registry, node: NodeId) {
    let attempt = registry.nodes().lock(node, Patience::None).await.unwrap();
    let held = attempt.held().unwrap();
    registry.nodes().delete(node, held, now()).await.unwrap();
}

async fn next(launcher: &Running, request: RequestId) -> Option<Next> {
    Some(launcher.handle.explain(request).await?.next)
}

/// While somebody has the lock, the request is held, accepted, and planned anew several times over. Whatever of that
/// comes late must not undo what is decided in the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_served_after_it_could_not_be_locked_for_long() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let zuul = Zuul::new(store.session().await);
    let registry = &zuul.registry;
    let taken = take_room(registry).await;
    let id = zuul.submit(&["small"]).await;
    let lock = registry.requests().lock(id, Patience::None).await.unwrap();
    let launcher = Running::start(&store, Arc::clone(&cloud) as _, &config(1, SMALL)).await;
    let attempts = TreePath::new(layout::request_lock(id)).unwrap();
    eventually("it was tried so often that the pauses are long", || async {
        let stat = zuul.tree.stat(&attempts).await.unwrap()?;
        (stat.cversion > 20).then_some(())
    })
    .await;
    make_room(registry, taken).await;
    eventually("it would be served", || async {
        matches!(next(&launcher, id).await?, Next::NodesAreLaunched { .. }).then_some(())
    })
    .await;
    let taken = take_room(registry).await;
    eventually("it would be held again", || async {
        matches!(next(&launcher, id).await?, Next::Room { .. }).then_some(())
    })
    .await;
    lock.held().unwrap().guard.release().await.unwrap();
    eventually("it is held", || async {
        let request = registry.requests().get(id).await.unwrap()?;
        (request.value.state == RequestState::Pending).then_some(())
    })
    .await;
    // What comes late shows nowhere. This is longer than any pause.
    sleep(Duration::from_secs(3)).await;
    make_room(registry, taken).await;
    zuul.run_job(id).await;
    nothing_is_left(registry, &cloud).await;
    launcher.stop().await;
}

/// The node whose lock is stood in line for.
fn contended(op: &Op) -> Option<NodeId> {
    match op {
        Op::Create { path, .. } => locked_node(&path.parent()?),
        _ => None,
    }
}

fn locked_node(path: &TreePath) -> Option<NodeId> {
    match RecordPath::parse(path.as_str()) {
        Some(RecordPath::NodeLock(node)) => Some(node),
        _ => None,
    }
}

type Locked = mpsc::UnboundedSender<(NodeId, Held<Node>)>;

/// Delays the first attempt to lock a node until another contender has that lock.
fn too_late(tree: Arc<dyn Tree>, others: Registry, locked: Locked) -> Arc<dyn Tree> {
    let others = Arc::new(others);
    let first = AtomicBool::new(true);
    // What is sent after a call must not overtake it.
    let in_order = Arc::new(Mutex::new(()));
    Staged::new(tree, move |call| {
        let (attempt, node) = match call {
            Call::Write(ops) => (true, ops.iter().find_map(contended)),
            Call::Read(path) => (false, locked_node(path)),
            Call::Sync => (false, None),
        };
        let first = attempt && node.is_some() && first.swap(false, Ordering::SeqCst);
        let (others, locked, in_order) =
            (Arc::clone(&others), locked.clone(), Arc::clone(&in_order));
        async move {
            let Some(node) = node else {
                return Fate::Done;
            };
            let _turn = in_order.lock().await;
            if first {
                let attempt = others.nodes().lock(node, Patience::None).await.unwrap();
                locked.send((node, attempt.held().unwrap())).unwrap();
            }
            Fate::Done
        }
        .boxed()
    })
}

/// Another launcher may look after a node whose request it does not know yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_launched_although_another_locks_it_first() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let zuul = Zuul::new(store.session().await);
    let (sender, mut locked) = mpsc::unbounded_channel();
    let others = Registry::new(store.session().await);
    let tree = too_late(store.session().await, others, sender);
    let drivers = Arc::clone(&cloud) as _;
    let launcher = Running::start_on(tree, drivers, &config(2, SMALL), quick()).await;
    let id = zuul.submit(&["small", "small"]).await;
    let (node, held) = locked.recv().await.unwrap();
    let lock = TreePath::new(layout::node_lock(node)).unwrap();
    eventually("the launcher stands in line", || async {
        (zuul.tree.children(&lock).await.unwrap().names.len() == 2).then_some(())
    })
    .await;
    held.guard.release().await.unwrap();
    zuul.run_job(id).await;
    nothing_is_left(&zuul.registry, &cloud).await;
    launcher.stop().await;
}
