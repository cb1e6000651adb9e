//! Nodes that are kept ready, whatever gets lost on the way to the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt as _;
use nodeyard_model::{NodeState, layout};
use nodeyard_store::testing::{Call, Fate, Staged};
use nodeyard_store::{Op, Tree};

use crate::bed::{Running, Store, eventually, logs, nodes, parse, quick};
use crate::fake::{FakeCloud, config, simulate};
use crate::zuul::Zuul;

const TWO: &str = "  - name: small\n    min-ready: 2\n";

fn is_request(op: &Op) -> bool {
    let (dir, _) = op.path().as_str().rsplit_once('/').unwrap();
    dir == layout::REQUESTS
}

fn asks(op: &Op) -> bool {
    matches!(op, Op::Create { .. }) && is_request(op)
}

fn ends(op: &Op) -> bool {
    matches!(op, Op::Delete { .. }) && is_request(op)
}

/// The first write of a kind gets lost; the session outlives that.
fn losing_first(tree: Arc<dyn Tree>, kind: fn(&Op) -> bool, fate: Fate) -> Arc<dyn Tree> {
    let lost = AtomicBool::new(false);
    Staged::new(tree, move |call| {
        let meant = matches!(call, Call::Write(ops) if ops.iter().any(kind));
        let first = meant && !lost.swap(true, Ordering::SeqCst);
        async move { if first { fate } else { Fate::Done } }.boxed()
    })
}

/// Exactly the wanted number of nodes is free, and no more are requested.
async fn are_ready(zuul: &Zuul, wanted: usize) {
    eventually("the nodes are ready", || async {
        let nodes = nodes(&zuul.registry).await;
        let free = nodes
            .iter()
            .filter(|(_, node)| node.state == NodeState::Ready && node.allocated_to.is_none());
        let requests = zuul.registry.requests().list().await.unwrap();
        (free.count() == wanted && nodes.len() == wanted && requests.is_empty()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_kept_ready_when_a_write_or_its_answer_is_lost() {
    logs();
    for fate in [Fate::Lost, Fate::AnswerLost] {
        // The first request is fulfilled, or fails; what gets lost is its creation or its end.
        for (kind, fails) in [
            (asks as fn(&Op) -> bool, false),
            (ends, false),
            (ends, true),
        ] {
            let store = Store::embedded();
            let cloud = FakeCloud::new(simulate());
            if fails {
                cloud.refuse(&["the cloud is upset"; 2]);
            }
            let tree = losing_first(store.session().await, kind, fate);
            let drivers = Arc::clone(&cloud) as _;
            let launcher = Running::start_on(tree, drivers, &config(4, TWO), quick()).await;
            let zuul = Zuul::new(store.session().await);
            are_ready(&zuul, 2).await;
            launcher.stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_asked_for_before_the_label_changed_becomes_free() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let drivers = Arc::clone(&cloud) as _;
    let launcher = Running::start(&store, drivers, &config(4, TWO)).await;
    let zuul = Zuul::new(store.session().await);
    cloud.hold_boots(true);
    cloud.created(2).await;
    let none = TWO.replace("min-ready: 2", "min-ready: 0");
    launcher.config.send(parse(&config(4, &none))).unwrap();
    cloud.hold_boots(false);
    are_ready(&zuul, 2).await;
    launcher.stop().await;
}
