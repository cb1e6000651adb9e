//! Requests, as the launcher uses them.

use std::time::Duration;

use nodeyard_model::{NodeRequest, RequestState};
use nodeyard_store::registry::{Attempt, Lifetime, Patience, Registry};

use crate::registry::{at, bed, names};

#[tokio::test]
async fn requests_are_created_listed_and_deleted() {
    let bed = bed();
    let requests = bed.registry.requests();
    let request = NodeRequest::new(RequestState::Requested, at(1.0));
    let (ours, _) = requests
        .create(900, &request, Lifetime::Session)
        .await
        .unwrap();
    let (zuuls, _) = requests
        .create(99, &request, Lifetime::UntilDeleted)
        .await
        .unwrap();
    assert_eq!(
        (ours.to_string(), zuuls.to_string()),
        ("900-0000000000".into(), "099-0000000001".into())
    );
    assert_eq!(requests.get(ours).await.unwrap().unwrap().value, request);
    bed.registry.tree().close().await;
    let later = Registry::new(bed.store.session());
    let left: Vec<_> = later.requests().list().await.unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].0, zuuls);
    assert!(later.requests().delete(zuuls).await.unwrap());
    assert!(!later.requests().delete(zuuls).await.unwrap());
}

#[tokio::test]
async fn a_request_is_read_again_under_its_lock() {
    let bed = bed();
    let other = Registry::new(bed.store.session());
    let requests = bed.registry.requests();
    let mut request = NodeRequest::new(RequestState::Requested, at(1.0));
    let (id, _) = requests
        .create(200, &request, Lifetime::UntilDeleted)
        .await
        .unwrap();
    let held = other
        .requests()
        .lock(id, Patience::None)
        .await
        .unwrap()
        .held()
        .unwrap();
    assert!(matches!(
        requests.lock(id, Patience::None).await.unwrap(),
        Attempt::Busy
    ));
    let brief = Patience::For(Duration::from_millis(10));
    assert!(matches!(
        requests.lock(id, brief).await.unwrap(),
        Attempt::Busy
    ));
    request.relative_priority = 5;
    other
        .requests()
        .store(&held.guard, id, &request)
        .await
        .unwrap();
    held.guard.release().await.unwrap();
    let held = requests
        .lock(id, Patience::None)
        .await
        .unwrap()
        .held()
        .unwrap();
    assert_eq!(held.value.relative_priority, 5);
    // Zuul cancels without asking for the lock.
    other.requests().delete(id).await.unwrap();
    assert!(
        requests
            .store(&held.guard, id, &request)
            .await
            .unwrap_err()
            .is_no_node()
    );
    held.guard.release().await.unwrap();
    assert!(matches!(
        requests.lock(id, Patience::None).await.unwrap(),
        Attempt::Gone
    ));
    assert_eq!(
        names(&bed.registry, &format!("/nodepool/requests-lock/{id}")).await,
        [""; 0]
    );
    assert_eq!(names(&bed.registry, "/nodepool/requests").await, [""; 0]);
    let (dirs, edition) = requests.lock_dirs().await.unwrap();
    assert_eq!(dirs, [id]);
    assert_eq!(requests.lock_dirs_edition().await.unwrap(), edition);
    assert!(requests.lock_dir(id).await.unwrap().is_some());
    requests.delete_lock_dir(id).await.unwrap();
    assert_eq!(requests.lock_dir(id).await.unwrap(), None);
    let (dirs, later) = requests.lock_dirs().await.unwrap();
    assert_eq!(dirs, []);
    assert_ne!(later, edition);
}
