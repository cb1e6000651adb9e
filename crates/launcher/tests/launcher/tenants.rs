//! Tenant limits across launchers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt as _;
use nodeyard_model::{NodeState, RequestId, RequestState, layout};
use nodeyard_store::testing::{Call, Fate, Staged};
use nodeyard_store::{Op, Tree};
use tokio::sync::Barrier;

use crate::bed::{Running, Store, eventually, logs, nodes, quick};
use crate::fake::{FakeCloud, PROVIDER, config, simulate};
use crate::zuul::Zuul;

/// A node becomes that of a request.
fn allocates(op: &Op) -> bool {
    let Op::Set { path, data, .. } = op else {
        return false;
    };
    let text = String::from_utf8_lossy(data);
    path.as_str().starts_with(layout::NODES) && text.contains("\"200-")
}

/// The first launcher to give a node away waits for the second.
fn at_once(tree: Arc<dyn Tree>, together: &Arc<Barrier>) -> Arc<dyn Tree> {
    let together = Arc::clone(together);
    let met = AtomicBool::new(false);
    Staged::new(tree, move |call| {
        let meant = matches!(call, Call::Write(ops) if ops.iter().any(allocates));
        let first = meant && !met.swap(true, Ordering::SeqCst);
        let together = Arc::clone(&together);
        async move {
            if first {
                together.wait().await;
            }
            Fate::Done
        }
        .boxed()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_gets_no_more_than_its_limit_from_two_launchers_with_ready_nodes() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let limits = "tenant-resource-limits:\n  - tenant-name: tenant\n    max-servers: 1\n";
    let small = limits.to_owned() + &config(4, "  - name: small\n    min-ready: 1\n");
    let large = small.replace("small", "large").replace(PROVIDER, "second");
    let together = Arc::new(Barrier::new(2));
    let mut launchers = Vec::new();
    for text in [small, large] {
        let tree = at_once(store.session().await, &together);
        let drivers = Arc::clone(&cloud) as _;
        launchers.push(Running::start_on(tree, drivers, &text, quick()).await);
    }
    let zuul = Zuul::new(store.session().await);
    let is_free = async |label: &str| {
        let nodes = nodes(&zuul.registry).await;
        nodes.iter().any(|(_, node)| {
            let ready = node.state == NodeState::Ready && node.allocated_to.is_none();
            ready && node.labels.contains(&label.into())
        })
    };
    eventually("both have a ready node", || async {
        (is_free("small").await && is_free("large").await).then_some(())
    })
    .await;

    let small = (zuul.submit(&["small"]).await, "small");
    let large = (zuul.submit(&["large"]).await, "large");
    let state = async |id: RequestId| {
        let request = zuul.registry.requests().get(id).await.unwrap();
        request.unwrap().value.state
    };
    let (first, (second, label)) = eventually("one is served", || async {
        if state(small.0).await == RequestState::Fulfilled {
            return Some((small.0, large));
        }
        (state(large.0).await == RequestState::Fulfilled).then_some((large.0, small))
    })
    .await;
    let mut nodeset = zuul.accept(first).await;
    zuul.set_state(&mut nodeset, NodeState::InUse).await;
    eventually("the other one waits, and has nothing", || async {
        let state = state(second).await;
        assert_ne!(state, RequestState::Fulfilled, "the tenant has two nodes");
        (state == RequestState::Pending && is_free(label).await).then_some(())
    })
    .await;
    zuul.set_state(&mut nodeset, NodeState::Used).await;
    zuul.unlock(nodeset).await;
    zuul.run_job(second).await;
    for launcher in launchers {
        launcher.stop().await;
    }
}
