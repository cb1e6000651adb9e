use bytes::Bytes;
use nodeyard_store::CreateMode::{Ephemeral, EphemeralSequential, Persistent};
use nodeyard_store::{Error, Op, Session, SessionId, Version};

use crate::conformance::backend::{Backend, gone, id_of, p};

pub(crate) async fn sessions_have_their_own_ids(backend: &impl Backend) {
    let (first, second) = (backend.session().await, backend.session().await);
    assert_ne!(id_of(&first), id_of(&second));
    assert_eq!(*first.session().borrow(), Session::Connected(id_of(&first)));
}

pub(crate) async fn ephemerals_go_when_their_session_closes(backend: &impl Backend) {
    let (leaving, staying) = (backend.session().await, backend.session().await);
    leaving
        .create(&p("/e"), Bytes::new(), Ephemeral)
        .await
        .unwrap();
    leaving
        .create(&p("/n"), Bytes::new(), EphemeralSequential)
        .await
        .unwrap();
    staying
        .create(&p("/mine"), Bytes::new(), Ephemeral)
        .await
        .unwrap();
    leaving.close().await;
    // At once: nothing is waited for.
    staying.sync().await.unwrap();
    assert_eq!(staying.children(&p("/")).await.unwrap().names, ["mine"]);
}

pub(crate) async fn ephemerals_go_when_their_session_is_killed(backend: &impl Backend) {
    let (leaving, staying) = (backend.mortal().await, backend.session().await);
    leaving
        .create(&p("/e"), Bytes::new(), Ephemeral)
        .await
        .unwrap();
    staying
        .create(&p("/mine"), Bytes::new(), Ephemeral)
        .await
        .unwrap();
    backend.kill(leaving).await;
    gone(&staying, &p("/e")).await;
    assert!(staying.stat(&p("/mine")).await.unwrap().is_some());
}

pub(crate) async fn persistent_records_stay(backend: &impl Backend) {
    let leaving = backend.mortal().await;
    leaving
        .create(&p("/a"), "kept".into(), Persistent)
        .await
        .unwrap();
    leaving
        .create(&p("/a/e"), Bytes::new(), Ephemeral)
        .await
        .unwrap();
    backend.kill(leaving).await;
    let staying = backend.session().await;
    gone(&staying, &p("/a/e")).await;
    let record = staying.get(&p("/a")).await.unwrap();
    assert_eq!(record.data, "kept");
    assert_eq!((record.stat.num_children, record.stat.cversion), (0, 2));
}

pub(crate) async fn anyone_may_delete_an_ephemeral(backend: &impl Backend) {
    let (owner, other) = (backend.session().await, backend.session().await);
    owner
        .create(&p("/e"), Bytes::new(), Ephemeral)
        .await
        .unwrap();
    other.set(&p("/e"), "x".into(), Version::Any).await.unwrap();
    other.delete(&p("/e"), Version::Any).await.unwrap();
    // Whoever makes it again owns it, and it survives its first owner.
    other
        .create(&p("/e"), Bytes::new(), Ephemeral)
        .await
        .unwrap();
    owner.close().await;
    other.sync().await.unwrap();
    assert_eq!(
        other.get(&p("/e")).await.unwrap().stat.ephemeral_owner,
        id_of(&other).0
    );
}

pub(crate) async fn a_closed_handle_says_so(backend: &impl Backend) {
    let tree = backend.session().await;
    let pinned = tree.pinned(id_of(&tree));
    let session = tree.session();
    tree.close().await;
    tree.close().await;
    assert_eq!(*session.borrow(), Session::Closed);
    let path = p("/a");
    assert!(matches!(tree.get(&path).await, Err(Error::Closed)));
    assert!(matches!(
        tree.create(&path, Bytes::new(), Persistent).await,
        Err(Error::Closed)
    ));
    assert!(matches!(tree.children(&path).await, Err(Error::Closed)));
    assert!(matches!(tree.watch(&path).await, Err(Error::Closed)));
    assert!(matches!(tree.sync().await, Err(Error::Closed)));
    assert!(matches!(
        pinned.stat(&path).await,
        Err(Error::Closed | Error::SessionExpired)
    ));
}

pub(crate) async fn others_do_not_notice_a_close(backend: &impl Backend) {
    let (leaving, staying) = (backend.session().await, backend.session().await);
    leaving.close().await;
    staying
        .create(&p("/a"), Bytes::new(), Ephemeral)
        .await
        .unwrap();
    assert!(matches!(*staying.session().borrow(), Session::Connected(_)));
}

pub(crate) async fn a_pinned_handle_works_in_its_session(backend: &impl Backend) {
    let tree = backend.session().await;
    let pinned = tree.pinned(id_of(&tree));
    let created = pinned
        .create(&p("/e"), Bytes::new(), Ephemeral)
        .await
        .unwrap();
    assert_eq!(created.stat.ephemeral_owner, id_of(&tree).0);
    pinned
        .set(&p("/e"), "x".into(), Version::Any)
        .await
        .unwrap();
    assert_eq!(tree.get(&p("/e")).await.unwrap().data, "x");
    // It is only a handle: dropping it ends nothing.
    drop(pinned);
    assert!(tree.stat(&p("/e")).await.unwrap().is_some());
}

pub(crate) async fn a_handle_pinned_to_another_session_does_nothing(backend: &impl Backend) {
    let tree = backend.session().await;
    let pinned = tree.pinned(SessionId(id_of(&tree).0 ^ 0x5555));
    let (a, new) = (p("/a"), p("/new"));
    tree.create(&a, Bytes::new(), Persistent).await.unwrap();
    let before = tree.get(&a).await.unwrap();
    let any = Version::Any;
    let expired = |result: Result<(), Error>| {
        assert!(matches!(result, Err(Error::SessionExpired)), "{result:?}");
    };
    expired(
        pinned
            .create(&new, Bytes::new(), Persistent)
            .await
            .map(drop),
    );
    expired(pinned.get(&a).await.map(drop));
    expired(pinned.stat(&a).await.map(drop));
    expired(pinned.set(&a, "x".into(), any).await.map(drop));
    expired(pinned.delete(&a, any).await);
    expired(pinned.children(&a).await.map(drop));
    expired(pinned.list(&a).await.map(drop));
    let op = Op::Delete {
        path: a.clone(),
        version: any,
    };
    expired(pinned.multi(vec![op]).await.map(drop));
    expired(pinned.watch_once(&a).await.map(drop));
    expired(pinned.sync().await);
    assert_eq!(tree.get(&a).await.unwrap(), before);
    assert_eq!(tree.stat(&new).await.unwrap(), None);
}
