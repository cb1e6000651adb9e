//! The lock of a machine with slots, when the answer to its creation is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt as _;
use nodeyard_model::layout::RecordPath;
use nodeyard_store::testing::{Call, Fate, Staged};
use nodeyard_store::{CreateMode, Op, Result, TreePath, Version};
use tokio::sync::{mpsc, watch};

use crate::bed::{Running, Store, logs, quick};
use crate::fake::{FakeCloud, simulate};
use crate::metastatic::{OWNER, carriers, slots};
use crate::zuul::Zuul;

fn is_contender(path: &TreePath) -> bool {
    let lock = path.parent();
    let lock = lock.and_then(|lock| RecordPath::parse(lock.as_str()));
    matches!(lock, Some(RecordPath::NodeLock(_)))
}

fn is_created(op: &Op) -> bool {
    matches!(op, Op::Create { path, mode: CreateMode::PersistentSequential, .. } if is_contender(path))
}

/// The persistent contender that a write would delete.
fn deleted(ops: &[Op], created: &AtomicBool) -> Option<(TreePath, Version)> {
    match ops {
        [Op::Delete { path, version }] if created.load(Ordering::SeqCst) && is_contender(path) => {
            Some((path.clone(), *version))
        }
        _ => None,
    }
}

/// The clean-up of an interrupted attempt would delete the lock of a machine that is in use.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_adopted_is_not_deleted_by_the_clean_up_of_the_attempt_before() {
    logs();
    let store = Store::embedded();
    let cloud = FakeCloud::new(simulate());
    let (in_use, is_in_use) = watch::channel(false);
    let (sender, mut cleaned_up) = mpsc::unbounded_channel::<Result<()>>();
    let others = store.session().await;
    let created = Arc::new(AtomicBool::new(false));
    // The clean-up goes on when the machine is in use. Only the first deletion is its own.
    let is_held = AtomicBool::new(false);
    let tree = Staged::new(store.session().await, move |call| {
        let Call::Write(ops) = call else {
            return async { Fate::Done }.boxed();
        };
        if ops.iter().any(is_created) && !created.swap(true, Ordering::SeqCst) {
            return async { Fate::AnswerLost }.boxed();
        }
        let Some((path, version)) = deleted(ops, &created) else {
            return async { Fate::Done }.boxed();
        };
        if is_held.swap(true, Ordering::SeqCst) {
            return async { Fate::Done }.boxed();
        }
        let (mut is_in_use, others) = (is_in_use.clone(), Arc::clone(&others));
        let sender = sender.clone();
        async move {
            is_in_use.wait_for(|is| *is).await.unwrap();
            let deleted = others.delete(&path, version).await;
            sender.send(deleted).unwrap();
            Fate::Done
        }
        .boxed()
    });
    let drivers = Arc::clone(&cloud) as _;
    let text = slots(4, "max-parallel-jobs: 2, grace-time: 3600");
    let launcher = Running::start_on(tree, drivers, &text, quick()).await;
    let zuul = Zuul::new(store.session().await);
    let id = zuul.submit(&["slot"]).await;
    zuul.run_job(id).await;
    in_use.send(true).unwrap();
    assert!(cleaned_up.recv().await.unwrap().is_err());
    let carriers = carriers(&zuul.registry).await;
    let [(carrier, ..)] = carriers.as_slice() else {
        panic!("there is one machine with slots")
    };
    let lock = zuul.registry.nodes().lock_of(*carrier).unwrap();
    let contenders = lock.contenders().await.unwrap();
    assert_eq!(contenders[0].identifier, OWNER);
    assert_eq!(contenders[0].session, None);
    launcher.stop().await;
}
