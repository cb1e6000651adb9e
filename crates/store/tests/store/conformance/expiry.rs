use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use nodeyard_model::{Component, ComponentKind, ComponentState};
use nodeyard_store::CreateMode::{Ephemeral, Persistent};
use nodeyard_store::election::Election;
use nodeyard_store::lock::Locks;
use nodeyard_store::registry::Registry;
use nodeyard_store::{Error, Session, SessionId, Tree, Version, WatchEvent};

use crate::conformance::backend::{Expiring, LONG_SESSION, eventually, id_of, p, within};
use crate::conformance::views::{shown, things};

/// Waits for the session after `old`.
async fn renewed(tree: &Arc<dyn Tree>, old: SessionId) -> SessionId {
    let mut sessions = tree.session();
    let is_new = |session: &Session| matches!(session, Session::Connected(id) if *id != old);
    let session = *within(sessions.wait_for(is_new)).await.unwrap();
    session.id().unwrap()
}

pub(crate) async fn a_new_session_follows(backend: &impl Expiring) {
    let victim = backend.victim().await;
    let tree = &victim.tree;
    let old = id_of(tree);
    tree.create(&p("/e"), Bytes::new(), Ephemeral)
        .await
        .unwrap();
    tree.create(&p("/p"), Bytes::new(), Persistent)
        .await
        .unwrap();
    victim.expire().await;
    let new = renewed(tree, old).await;
    assert_eq!(tree.stat(&p("/e")).await.unwrap(), None);
    assert!(tree.stat(&p("/p")).await.unwrap().is_some());
    let created = tree
        .create(&p("/e"), Bytes::new(), Ephemeral)
        .await
        .unwrap();
    assert_eq!(created.stat.ephemeral_owner, new.0);
}

pub(crate) async fn a_watcher_sees_a_gap_and_goes_on(backend: &impl Expiring) {
    let victim = backend.victim().await;
    let other = backend.session().await;
    let mut watcher = victim.tree.watch(&p("/a")).await.unwrap();
    let old = id_of(&victim.tree);
    victim.expire().await;
    other
        .create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap();
    renewed(&victim.tree, old).await;
    while within(watcher.next()).await != Some(WatchEvent::Gap) {}
    victim.tree.sync().await.unwrap();
    while watcher.try_next().is_some() {}
    other.set(&p("/a"), "x".into(), Version::Any).await.unwrap();
    let event = within(watcher.next()).await;
    assert_eq!(event, Some(WatchEvent::Changed(p("/a"))));
}

pub(crate) async fn a_pinned_handle_ends(backend: &impl Expiring) {
    let victim = backend.victim().await;
    let tree = &victim.tree;
    let old = id_of(tree);
    let pinned = tree.pinned(old);
    pinned
        .create(&p("/a"), Bytes::new(), Persistent)
        .await
        .unwrap();
    victim.expire().await;
    renewed(tree, old).await;
    let error = pinned
        .set(&p("/a"), "x".into(), Version::Any)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::SessionExpired), "{error:?}");
    assert!(matches!(
        pinned.get(&p("/a")).await,
        Err(Error::SessionExpired)
    ));
    assert_eq!(tree.get(&p("/a")).await.unwrap().stat.version, 0);
}

pub(crate) async fn a_broken_connection_is_not_the_end(backend: &impl Expiring) {
    let victim = backend.victim_with(LONG_SESSION).await;
    let tree = &victim.tree;
    let session = id_of(tree);
    let pinned = tree.pinned(session);
    let mut watcher = tree.watch(&p("/a")).await.unwrap();
    let guard = Locks::new(Arc::clone(tree))
        .lock(p("/lock"))
        .acquire()
        .await
        .unwrap();
    victim.disconnect();
    within(nodeyard_store::ext::persist(&**tree, || tree.sync()))
        .await
        .unwrap();
    assert_eq!(id_of(tree), session);
    assert!(guard.is_valid());
    let path = p("/a");
    let create = || pinned.create(&path, Bytes::new(), Persistent);
    within(nodeyard_store::ext::persist(&**tree, create))
        .await
        .unwrap();
    eventually(|| {
        let seen = watcher.try_next();
        async move { seen == Some(WatchEvent::Created(p("/a"))) }
    })
    .await;
    guard.release().await.unwrap();
}

pub(crate) async fn a_guard_ends(backend: &impl Expiring) {
    let victim = backend.victim().await;
    let other = Locks::new(backend.session().await);
    other
        .tree()
        .create(&p("/work"), Bytes::new(), Persistent)
        .await
        .unwrap();
    let locks = Locks::new(Arc::clone(&victim.tree));
    let guard = locks.lock(p("/lock")).acquire().await.unwrap();
    let lock = other.lock(p("/lock"));
    let next = tokio::spawn(async move { lock.acquire().await.unwrap() });
    victim.expire().await;
    let next = within(next).await.unwrap();
    within(guard.lost()).await;
    assert!(!guard.is_valid());
    let error = guard
        .tree()
        .set(&p("/work"), "late".into(), Version::Any)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::SessionExpired), "{error:?}");
    next.tree()
        .set(&p("/work"), "next".into(), Version::Any)
        .await
        .unwrap();
    guard.release().await.unwrap();
    assert_eq!(other.tree().get(&p("/work")).await.unwrap().data, "next");
    assert!(next.is_valid());
}

pub(crate) async fn a_wait_for_a_lock_goes_on(backend: &impl Expiring) {
    wait_goes_on(backend, false).await;
}

pub(crate) async fn a_wait_for_a_persistent_lock_goes_on(backend: &impl Expiring) {
    wait_goes_on(backend, true).await;
}

async fn wait_goes_on(backend: &impl Expiring, persistent: bool) {
    let victim = backend.victim().await;
    let old = id_of(&victim.tree);
    let other = Locks::new(backend.session().await);
    let holder = other.lock(p("/lock")).acquire().await.unwrap();
    let mut lock = Locks::new(Arc::clone(&victim.tree)).lock(p("/lock"));
    if persistent {
        lock = lock.persistent();
    }
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    let all = other.lock(p("/lock"));
    eventually(|| async { all.contenders().await.unwrap().len() == 2 }).await;
    victim.expire().await;
    let new = renewed(&victim.tree, old).await;
    eventually(|| async { all.contenders().await.unwrap().len() == 2 }).await;
    assert!(!waiting.is_finished());
    holder.release().await.unwrap();
    let guard = within(waiting).await.unwrap();
    assert_eq!(guard.session(), new);
    let contenders = all.contenders().await.unwrap();
    assert_eq!(contenders.len(), 1, "nothing is left of the first attempt");
    assert_eq!(contenders[0].path, *guard.path());
    assert_eq!(contenders[0].session, (!persistent).then_some(new));
    guard.release().await.unwrap();
    assert_eq!(all.contenders().await.unwrap(), []);
}

pub(crate) async fn a_leader_starts_over(backend: &impl Expiring) {
    let victim = backend.victim().await;
    let locks = Locks::new(Arc::clone(&victim.tree));
    let election = Election::new(&locks, p("/election"), "me");
    let terms = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&terms);
    let run = tokio::spawn(async move {
        let work = |_tree| {
            let term = counter.fetch_add(1, Ordering::SeqCst);
            async move {
                if term == 0 {
                    // Only the loss of the leadership ends this.
                    std::future::pending::<()>().await;
                }
                term
            }
        };
        election.run(work).await.unwrap()
    });
    eventually(|| async { terms.load(Ordering::SeqCst) == 1 }).await;
    victim.expire().await;
    assert_eq!(within(run).await.unwrap(), 1);
}

pub(crate) async fn a_component_registers_again(backend: &impl Expiring) {
    let victim = backend.victim().await;
    let registry = Registry::new(Arc::clone(&victim.tree));
    let mut component = Component::new("np01".into(), ComponentKind::Launcher);
    let registration = registry.components().register(&component).unwrap();
    let mut place = registration.path();
    let first = within(place.wait_for(Option::is_some))
        .await
        .unwrap()
        .clone();
    let stat = victim
        .tree
        .stat(first.as_ref().unwrap())
        .await
        .unwrap()
        .unwrap();
    victim.disconnect();
    component.state = ComponentState::Running;
    registration.update(&component);
    let observer = Registry::new(backend.session().await);
    let listed = || async {
        observer
            .components()
            .list(ComponentKind::Launcher)
            .await
            .unwrap()
    };
    eventually(|| async { listed().await == [component.clone()] }).await;
    assert_eq!(
        *place.borrow(),
        first,
        "a broken connection is not a new session"
    );
    victim.expire().await;
    let second = within(place.wait_for(|now| *now != first))
        .await
        .unwrap()
        .clone()
        .unwrap();
    let renewed = victim.tree.stat(&second).await.unwrap().unwrap();
    assert_ne!(renewed.ephemeral_owner, stat.ephemeral_owner);
    assert_eq!(listed().await, [component.clone()]);
    within(registration.end()).await;
    assert_eq!(listed().await, []);
}

pub(crate) async fn a_view_is_exact_again(backend: &impl Expiring) {
    let victim = backend.victim().await;
    let other = backend.session().await;
    other
        .create(&p("/things"), Bytes::new(), Persistent)
        .await
        .unwrap();
    for i in 0..20 {
        let path = p(&format!("/things/{i}"));
        other.create(&path, "1".into(), Persistent).await.unwrap();
    }
    let locks = Locks::new(Arc::clone(&other));
    let guard = locks.lock(p("/things/4/lock")).acquire().await.unwrap();
    let view = things(&victim.tree);
    within(view.synced()).await.unwrap();
    let old = id_of(&victim.tree);
    victim.expire().await;
    // The handle does not know yet; some of this it never gets an event for.
    other.delete(&p("/things/1"), Version::Any).await.unwrap();
    other
        .set(&p("/things/2"), "2".into(), Version::Any)
        .await
        .unwrap();
    other
        .create(&p("/things/new"), "3".into(), Persistent)
        .await
        .unwrap();
    other.delete(&p("/things/3"), Version::Any).await.unwrap();
    other
        .create(&p("/things/3"), "4".into(), Persistent)
        .await
        .unwrap();
    guard.release().await.unwrap();
    let second = locks.lock(p("/things/5/lock")).acquire().await.unwrap();
    renewed(&victim.tree, old).await;
    within(view.synced()).await.unwrap();
    let shown = shown(&view);
    assert_eq!(shown.len(), 20);
    assert!(!shown.contains_key("1"));
    assert_eq!(
        (shown["2"], shown["3"], shown["new"], shown["0"]),
        (2, 4, 3, 1)
    );
    let items = view.items().into_iter();
    let locked: Vec<String> = items
        .filter(|item| item.locked)
        .map(|item| item.id)
        .collect();
    assert_eq!(locked, ["5"]);
    second.release().await.unwrap();
}

pub(crate) async fn a_view_keeps_what_has_not_changed(backend: &impl Expiring) {
    let victim = backend.victim().await;
    let other = backend.session().await;
    other
        .create(&p("/things"), Bytes::new(), Persistent)
        .await
        .unwrap();
    for id in ["same", "bad", "changed"] {
        let path = p(&format!("/things/{id}"));
        let data = if id == "bad" { "not a number" } else { "1" };
        other.create(&path, data.into(), Persistent).await.unwrap();
    }
    let view = things(&victim.tree);
    within(view.synced()).await.unwrap();
    let before = view.get(&"same".to_owned()).unwrap().value;
    let mut changes = view.changes();
    let old = id_of(&victim.tree);
    victim.expire().await;
    other
        .set(&p("/things/changed"), "2".into(), Version::Any)
        .await
        .unwrap();
    renewed(&victim.tree, old).await;
    within(view.synced()).await.unwrap();
    assert!(Arc::ptr_eq(
        &before,
        &view.get(&"same".to_owned()).unwrap().value
    ));
    let changed = within(changes.next()).await.unwrap();
    let expected = nodeyard_store::view::Change::Ids(["changed".to_owned()].into());
    assert_eq!(
        changed, expected,
        "nobody is told about what has not changed"
    );
}
