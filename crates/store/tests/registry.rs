//! Requests, nodes, images and components, as the launcher and the builder use them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nodeyard_model::{
    BuildId, BuildKey, BuildState, Component, ComponentKind, ComponentState, ImageBuild, ImageName,
    ImageUpload, Node, NodeId, NodeRequest, NodeState, PoolComponent, ProviderName, RequestState,
    Timestamp, UploadKey, UploadState,
};
use nodeyard_store::embedded::Embedded;
use nodeyard_store::registry::{Attempt, ImageId, ImageRecord, Lifetime, Patience, Registry};
use nodeyard_store::{CreateMode, Error, TreePath, Version, ext};
use tempfile::TempDir;

struct Bed {
    store: Arc<Embedded>,
    registry: Registry,
    _directory: TempDir,
}

fn bed() -> Bed {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(directory.path()).unwrap();
    let registry = Registry::new(store.session());
    Bed {
        store,
        registry,
        _directory: directory,
    }
}

fn p(path: &str) -> TreePath {
    TreePath::new(path).unwrap()
}

fn at(seconds: f64) -> Timestamp {
    Timestamp::from_secs(seconds).unwrap()
}

fn node() -> Node {
    let mut node = Node::init(at(1.0));
    node.provider = Some(ProviderName::new("cloud").unwrap());
    node
}

fn image() -> ImageName {
    ImageName::new("debian").unwrap()
}

fn build_key(number: u128) -> BuildKey {
    BuildKey {
        image: image(),
        build: BuildId::from_u128(number),
    }
}

async fn names(registry: &Registry, path: &str) -> Vec<String> {
    nodeyard_store::ext::child_names(&**registry.tree(), &p(path))
        .await
        .unwrap()
}

#[tokio::test]
async fn requests_have_their_place_and_their_end() {
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

#[tokio::test]
async fn a_write_after_the_lock_is_lost_has_no_effect() {
    let bed = bed();
    let losing = Registry::new(bed.store.session());
    let (id, _) = losing.nodes().create(&node()).await.unwrap();
    let held = losing
        .nodes()
        .lock(id, Patience::None)
        .await
        .unwrap()
        .held()
        .unwrap();
    losing.tree().close().await;
    losing
        .nodes()
        .store(&held.guard, id, &held.value)
        .await
        .unwrap_err();
    let taken = bed
        .registry
        .nodes()
        .lock(id, Patience::None)
        .await
        .unwrap()
        .held()
        .unwrap();
    assert_eq!(taken.stat.version, 0);
}

#[tokio::test]
async fn a_node_goes_through_its_life() {
    let bed = bed();
    let nodes = bed.registry.nodes();
    let view = nodes.view().unwrap();
    let (id, stat) = nodes.create(&node()).await.unwrap();
    assert_eq!(id.to_string(), "0000000000");
    view.wrote(id, Arc::new(node()), stat);
    assert_eq!(view.get(&id).unwrap().value.state, NodeState::Init);
    let mut held = nodes
        .lock(id, Patience::None)
        .await
        .unwrap()
        .held()
        .unwrap();
    held.value.set_state(NodeState::Building, at(2.0));
    nodes.store(&held.guard, id, &held.value).await.unwrap();
    view.synced().await.unwrap();
    let shown = view.get(&id).unwrap();
    assert_eq!(
        (shown.value.state, shown.locked),
        (NodeState::Building, true)
    );
    nodes.delete(id, held, at(3.0)).await.unwrap();
    view.synced().await.unwrap();
    assert!(view.is_empty());
    assert_eq!(nodes.get(id).await.unwrap(), None);
    assert_eq!(names(&bed.registry, "/nodepool/nodes").await, [""; 0]);
    assert!(matches!(
        nodes.lock(id, Patience::None).await.unwrap(),
        Attempt::Gone
    ));
    assert_eq!(
        names(&bed.registry, "/nodepool/nodes").await,
        [""; 0],
        "not brought back"
    );
}

#[tokio::test]
async fn ghosts_and_remnants_are_removed_by_whoever_locks_them() {
    let bed = bed();
    let nodes = bed.registry.nodes();
    let tree = bed.registry.tree();
    let mut deleted = node();
    deleted.set_state(NodeState::Deleted, at(2.0));
    let nobodys = Node::init(at(1.0));
    for remnant in [deleted, nobodys] {
        let (id, _) = nodes.create(&remnant).await.unwrap();
        assert!(matches!(
            nodes.lock(id, Patience::None).await.unwrap(),
            Attempt::Gone
        ));
        assert_eq!(nodes.get(id).await.unwrap(), None);
    }
    // What a Python locker leaves of a node that was deleted under it.
    let ghost: NodeId = "0000000077".parse().unwrap();
    nodeyard_store::ext::ensure_path(&**tree, &p("/nodepool/nodes/0000000077/lock"))
        .await
        .unwrap();
    assert_eq!(nodes.get(ghost).await.unwrap(), None);
    assert_eq!(nodes.list().await.unwrap(), []);
    assert!(matches!(
        nodes.lock(ghost, Patience::None).await.unwrap(),
        Attempt::Gone
    ));
    assert_eq!(names(&bed.registry, "/nodepool/nodes").await, [""; 0]);
}

#[tokio::test]
async fn a_backing_node_stays_locked_over_a_restart() {
    let bed = bed();
    let before = Registry::new(bed.store.session());
    let (id, _) = before.nodes().create(&node()).await.unwrap();
    let owner = "NodePool:metastatic:meta";
    let held = before
        .nodes()
        .lock_for_good(id, owner, Patience::None)
        .await
        .unwrap();
    drop(held);
    before.locks().settled().await;
    before.tree().close().await;
    let nodes = bed.registry.nodes();
    assert!(matches!(
        nodes.lock(id, Patience::None).await.unwrap(),
        Attempt::Busy
    ));
    let lock = nodes.lock_of(id).unwrap();
    let holder = &lock.contenders().await.unwrap()[0];
    assert_eq!(holder.identifier, owner);
    let tree = bed.registry.tree();
    tree.delete(&holder.path, Version::Any).await.unwrap();
    assert!(
        nodes
            .lock(id, Patience::None)
            .await
            .unwrap()
            .held()
            .is_some()
    );
}

#[tokio::test]
async fn a_malformed_record_is_named_and_left_alone() {
    let bed = bed();
    let nodes = bed.registry.nodes();
    let (good, _) = nodes.create(&node()).await.unwrap();
    let (bad, _) = nodes.create(&node()).await.unwrap();
    let path = p(&format!("/nodepool/nodes/{bad}"));
    bed.registry
        .tree()
        .set(&path, "{".into(), Version::Any)
        .await
        .unwrap();
    let listed: Vec<_> = nodes
        .list()
        .await
        .unwrap()
        .into_iter()
        .map(|(id, _)| id)
        .collect();
    assert_eq!(listed, [good]);
    let error = nodes.lock(bad, Patience::None).await.unwrap_err();
    assert!(
        matches!(&error, Error::Malformed { path: named, .. } if *named == path),
        "{error:?}"
    );
    // The lock is free again, and the record is still there.
    assert_eq!(nodes.lock_of(bad).unwrap().contenders().await.unwrap(), []);
    assert_eq!(bed.registry.tree().get(&path).await.unwrap().data, "{");
}

#[tokio::test]
async fn builds_and_uploads_are_found_by_age() {
    let bed = bed();
    let images = bed.registry.images();
    let provider = ProviderName::new("cloud").unwrap();
    let view = images.view().unwrap();
    for (number, state, time) in [
        (1, BuildState::Ready, 10.0),
        (2, BuildState::Ready, 30.0),
        (3, BuildState::Failed, 40.0),
    ] {
        let build = ImageBuild::new(state, at(time));
        images
            .create_build(&build_key(number), &build)
            .await
            .unwrap();
    }
    let building = images
        .building_lock(&image())
        .unwrap()
        .acquire()
        .await
        .unwrap();
    let ready = images
        .newest_builds(&image(), BuildState::Ready)
        .await
        .unwrap();
    let order: Vec<_> = ready.iter().map(|(key, _)| key.clone()).collect();
    assert_eq!(order, [build_key(2), build_key(1)]);
    building.release().await.unwrap();

    let uploading = images.uploading_lock(&build_key(1), &provider).unwrap();
    let guard = uploading.acquire().await.unwrap();
    let mut keys = Vec::new();
    for (number, state, time) in [
        (1, UploadState::Ready, 50.0),
        (2, UploadState::Ready, 45.0),
        (2, UploadState::Uploading, 60.0),
    ] {
        let upload = ImageUpload::new(state, at(time));
        let (key, _) = images
            .create_upload(&build_key(number), &provider, &upload)
            .await
            .unwrap();
        keys.push(key);
    }
    assert_eq!(
        keys[0].upload.to_string(),
        "0000000001",
        "the lock's directory counts"
    );
    guard.release().await.unwrap();
    assert_eq!(
        images.providers(&build_key(2)).await.unwrap(),
        [provider.clone()].into()
    );
    assert_eq!(
        images
            .uploads(&build_key(2), &provider)
            .await
            .unwrap()
            .len(),
        2
    );

    let mut held = images
        .lock_upload(&keys[2], Patience::None)
        .await
        .unwrap()
        .held()
        .unwrap();
    held.value.set_state(UploadState::Ready, at(61.0));
    images
        .store_upload(&held.guard, &keys[2], &held.value)
        .await
        .unwrap();
    held.guard.release().await.unwrap();

    view.synced().await.unwrap();
    assert_eq!(view.len(), 6, "three builds and three uploads");
    let ImageRecord::Upload(shown) = &*view.get(&ImageId::Upload(keys[2].clone())).unwrap().value
    else {
        panic!("an upload");
    };
    assert_eq!(shown.state, UploadState::Ready);
    let known = |key: &UploadKey, provider: &ProviderName| {
        let (build, provider) = (key.build.build, provider.clone());
        let (images, upload) = (&images, key.upload);
        async move { images.knows_upload(build, &provider, upload).await }
    };
    let elsewhere = ProviderName::new("elsewhere").unwrap();
    assert!(known(&keys[0], &provider).await.unwrap());
    assert!(!known(&keys[0], &elsewhere).await.unwrap());
    images.delete_upload(&keys[0]).await.unwrap();
    assert!(!known(&keys[0], &provider).await.unwrap());
    images.delete_build(&build_key(2)).await.unwrap();
    assert!(matches!(
        images
            .lock_build(&build_key(2), Patience::None)
            .await
            .unwrap(),
        Attempt::Gone
    ));
    view.synced().await.unwrap();
    let left: Vec<_> = view.items().into_iter().map(|item| item.id).collect();
    assert_eq!(
        left,
        [ImageId::Build(build_key(1)), ImageId::Build(build_key(3))]
    );
}

#[tokio::test]
async fn flags_of_an_image_come_and_go() {
    let bed = bed();
    let images = bed.registry.images();
    assert!(
        images.pause(&image()).await.unwrap_err().is_no_node(),
        "an image nobody knows"
    );
    images.request_build(&image()).await.unwrap();
    images.request_build(&image()).await.unwrap();
    assert!(images.build_request(&image()).await.unwrap().unwrap().ctime > 0);
    assert!(images.delete_build_request(&image()).await.unwrap());
    assert!(!images.delete_build_request(&image()).await.unwrap());
    assert_eq!(images.build_request(&image()).await.unwrap(), None);
    assert!(!images.is_paused(&image()).await.unwrap());
    images.pause(&image()).await.unwrap();
    images.pause(&image()).await.unwrap();
    assert!(images.is_paused(&image()).await.unwrap());
    assert!(images.unpause(&image()).await.unwrap());
    assert!(!images.unpause(&image()).await.unwrap());
    assert_eq!(images.names().await.unwrap(), [image()].into());
}

#[tokio::test]
async fn a_component_registers_changes_and_leaves() {
    let bed = bed();
    let components = bed.registry.components();
    components.prepare().await.unwrap();
    let view = components.pool_view().unwrap();
    let provider = ProviderName::new("cloud").unwrap();
    let mut pool = PoolComponent::new("np01".into(), "np01-1".into(), "main".into(), provider);
    let mut twin = pool.clone();
    twin.id = "np01-2".into();
    let registration = components.register_pool(&pool).unwrap();
    let other = components.register_pool(&twin).unwrap();
    let launcher = components
        .register(&Component::new("np01".into(), ComponentKind::Launcher))
        .unwrap();
    for registration in [&registration, &other, &launcher] {
        registration.path().wait_for(Option::is_some).await.unwrap();
    }
    let mut ids: Vec<_> = components
        .pools()
        .await
        .unwrap()
        .into_iter()
        .map(|pool| pool.id)
        .collect();
    ids.sort();
    assert_eq!(ids, ["np01-1".into(), "np01-2".into()]);
    let place = registration.path().borrow().clone().unwrap();
    assert!(
        place.name().starts_with("np010000000"),
        "no separator: {place}"
    );
    let stat = bed.registry.tree().stat(&place).await.unwrap().unwrap();
    assert!(stat.is_ephemeral());

    pool.state = ComponentState::Running;
    registration.update(&pool);
    let mut changes = view.changes();
    loop {
        view.synced().await.unwrap();
        let shown = view.get(&place.name().to_owned());
        if shown.is_some_and(|item| item.value.state == ComponentState::Running) {
            break;
        }
        changes.next().await;
    }
    registration.end().await;
    assert_eq!(components.pools().await.unwrap(), [twin]);
    assert_eq!(
        components
            .list(ComponentKind::Launcher)
            .await
            .unwrap()
            .len(),
        1
    );
    assert_eq!(components.list(ComponentKind::Builder).await.unwrap(), []);
}

#[tokio::test]
async fn a_component_that_somebody_removed_comes_back() {
    let bed = bed();
    let mut component = Component::new("nb01".into(), ComponentKind::Builder);
    let components = bed.registry.components();
    let registration = components.register(&component).unwrap();
    let mut place = registration.path();
    let first = place.wait_for(Option::is_some).await.unwrap().clone();
    let mut last = first.unwrap();
    // Whether or not there is something new to say.
    for state in [ComponentState::Stopped, ComponentState::Running] {
        component.state = state;
        registration.update(&component);
        let tree = bed.registry.tree();
        tree.delete(&last, Version::Any).await.unwrap();
        let elsewhere = |path: &Option<TreePath>| path.as_ref() != Some(&last);
        let next = place.wait_for(elsewhere).await.unwrap().clone().unwrap();
        let listed = components.list(ComponentKind::Builder).await.unwrap();
        assert_eq!(listed, [component.clone()]);
        assert!(next.name() > last.name());
        last = next;
    }
}

#[tokio::test]
async fn what_is_not_an_id_is_not_listed() {
    let bed = bed();
    let nodes = bed.registry.nodes();
    nodes.create(&node()).await.unwrap();
    for name in ["junk", "12", "lock"] {
        let path = p("/nodepool/nodes").join(name).unwrap();
        let tree = bed.registry.tree();
        tree.create(&path, Bytes::from("{}"), CreateMode::Persistent)
            .await
            .unwrap();
    }
    assert_eq!(nodes.list().await.unwrap().len(), 1);
    let view = nodes.view().unwrap();
    view.synced().await.unwrap();
    assert_eq!((view.len(), view.flaws().len()), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_a_json_record_are_all_made_however_many_make_them() {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(directory.path()).unwrap();
    let path = TreePath::new("/deep/down/count").unwrap();
    let change = |add: u64| {
        let (tree, path) = (store.session(), path.clone());
        async move { ext::change_json(&*tree, &path, |count: &mut u64| *count += add).await }
    };
    // Nothing to say, nothing written.
    assert_eq!(change(0).await.unwrap(), 0);
    let tree = store.session();
    assert!(ext::get_opt(&*tree, &path).await.unwrap().is_none());
    let changes = (0..40).map(|_| tokio::spawn(change(1)));
    for change in changes.collect::<Vec<_>>() {
        change.await.unwrap().unwrap();
    }
    assert_eq!(
        ext::read_json::<u64>(&*tree, &path).await.unwrap(),
        Some(40)
    );
    // What makes no sense is replaced.
    tree.set(&path, Bytes::from("garbage"), Version::Any)
        .await
        .unwrap();
    assert_eq!(ext::read_json::<u64>(&*tree, &path).await.unwrap(), None);
    assert_eq!(change(7).await.unwrap(), 7);
}
