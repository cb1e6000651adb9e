//! Panics in the tasks of a keeper.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use nodeyard_lease::{EndCause, ExplainFailure, LeasePhase};
use nodeyard_model::RequestId;

use crate::bed::{
    Keeping, PATIENCE, Store, Time, ask, caller, launcher, leases_with, logs, options, wait_settled,
};
use crate::cloud::{Clouds, small_and_large};

/// Panics at the first call.
#[derive(Debug, Default)]
struct PanicsOnce(AtomicBool);

#[async_trait]
impl ExplainFailure for PanicsOnce {
    async fn failure(&self, _: RequestId) -> Option<String> {
        assert!(self.0.swap(true, Ordering::SeqCst), "a defect");
        Some("explained in the end".to_owned())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_whose_task_panicked_is_looked_at_again() {
    logs();
    let (store, time, clouds) = (Store::embedded(), Time::default(), Clouds::new());
    let launcher = launcher(&store, &clouds, &small_and_large(1)).await;
    let tree = store.session().await;
    let leases = leases_with(&tree, &time, Arc::new(PanicsOnce::default()));
    let keeping = Keeping::start_with(tree, leases, options());
    let me = caller("acme");
    let spec = ask(&["unheard-of"]);
    let id = keeping.leases.create(&me, &spec, None).await.unwrap().id;
    let settled = tokio::time::timeout(PATIENCE, wait_settled(&keeping.leases, &me, id));
    let lease = settled.await.unwrap().lease;
    assert!(
        matches!(lease.phase, LeasePhase::Ending | LeasePhase::Ended),
        "{lease:?}"
    );
    let end = lease.end.as_ref().unwrap();
    assert_eq!(end.cause, EndCause::Failed);
    assert_eq!(end.text.as_deref(), Some("explained in the end"));
    keeping.service.stop().await;
    launcher.stop().await;
}
