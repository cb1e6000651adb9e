use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use nodeyard_store::CreateMode::Persistent;
use nodeyard_store::lock::Locks;
use nodeyard_store::view::{Change, Kind, Shape, View};
use nodeyard_store::{Tree, TreePath, Version};

use crate::conformance::backend::{Backend, p, within};
use crate::conformance::faulty::Faulty;

/// `/things/<name>` holds a number and may have a lock.
pub(crate) struct Things;

impl Shape for Things {
    type Id = String;
    type Value = u64;

    fn kind(&self, path: &TreePath) -> Kind<String> {
        match path.parts().collect::<Vec<_>>()[..] {
            [_, id] => Kind::Record {
                id: id.to_owned(),
                branch: false,
                lock: true,
            },
            [_, id, "lock", _] => Kind::Contender(id.to_owned()),
            _ => Kind::Nothing,
        }
    }

    fn parse(
        &self,
        _: &String,
        data: &[u8],
    ) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
        Ok(std::str::from_utf8(data)?.parse()?)
    }
}

pub(crate) fn things(tree: &Arc<dyn Tree>) -> View<Things> {
    View::open(Arc::clone(tree), p("/things"), Things)
}

pub(crate) fn shown(view: &View<Things>) -> BTreeMap<String, u64> {
    let items = view.items().into_iter();
    items.map(|item| (item.id, *item.value)).collect()
}

async fn put(tree: &Arc<dyn Tree>, id: &str, value: &str) {
    let path = p(&format!("/things/{id}"));
    tree.create(&path, value.to_owned().into(), Persistent)
        .await
        .unwrap();
}

async fn set(tree: &Arc<dyn Tree>, id: &str, value: &str) {
    let path = p(&format!("/things/{id}"));
    tree.set(&path, value.to_owned().into(), Version::Any)
        .await
        .unwrap();
}

async fn directory(tree: &Arc<dyn Tree>) {
    tree.create(&p("/things"), Bytes::new(), Persistent)
        .await
        .unwrap();
}

fn map<const N: usize>(entries: [(&str, u64); N]) -> BTreeMap<String, u64> {
    entries.map(|(id, value)| (id.to_owned(), value)).into()
}

pub(crate) async fn loads_and_follows(backend: &impl Backend) {
    let (mine, other) = (backend.session().await, backend.session().await);
    directory(&other).await;
    put(&other, "a", "1").await;
    put(&other, "b", "2").await;
    let view = things(&mine);
    within(view.synced()).await.unwrap();
    assert!(view.is_current());
    assert_eq!(shown(&view), map([("a", 1), ("b", 2)]));
    assert_eq!(view.len(), 2);
    set(&other, "a", "10").await;
    put(&other, "c", "3").await;
    other.delete(&p("/things/b"), Version::Any).await.unwrap();
    within(view.synced()).await.unwrap();
    assert_eq!(shown(&view), map([("a", 10), ("c", 3)]));
    let item = view.get(&"a".to_owned()).unwrap();
    assert_eq!(
        item.stat,
        other.stat(&p("/things/a")).await.unwrap().unwrap()
    );
    assert!(view.get(&"b".to_owned()).is_none());
}

pub(crate) async fn locks_show(backend: &impl Backend) {
    let (mine, other) = (backend.session().await, backend.session().await);
    directory(&other).await;
    put(&other, "a", "1").await;
    put(&other, "b", "2").await;
    let locks = Locks::new(other);
    let locked = |view: &View<Things>| -> Vec<String> {
        let items = view.items().into_iter();
        items
            .filter(|item| item.locked)
            .map(|item| item.id)
            .collect()
    };
    let guard = locks
        .lock(p("/things/a/lock"))
        .of_existing()
        .acquire()
        .await
        .unwrap();
    let view = things(&mine);
    within(view.synced()).await.unwrap();
    assert_eq!(locked(&view), ["a"], "seen by the listing");
    let second = locks
        .lock(p("/things/b/lock"))
        .of_existing()
        .acquire()
        .await
        .unwrap();
    guard.release().await.unwrap();
    within(view.synced()).await.unwrap();
    assert_eq!(locked(&view), ["b"], "seen by events");
    locks.tree().close().await;
    within(view.synced()).await.unwrap();
    assert_eq!(locked(&view), [""; 0], "gone with the session");
    drop(second);
}

pub(crate) async fn malformed_records_are_kept_apart(backend: &impl Backend) {
    let tree = backend.session().await;
    directory(&tree).await;
    put(&tree, "bad", "one").await;
    put(&tree, "good", "1").await;
    let view = things(&tree);
    within(view.synced()).await.unwrap();
    assert_eq!(shown(&view), map([("good", 1)]));
    let flaws = view.flaws();
    assert_eq!(flaws.len(), 1);
    assert_eq!(
        (flaws[0].id.as_str(), &flaws[0].path),
        ("bad", &p("/things/bad"))
    );
    assert!(
        flaws[0].reason.contains("invalid digit"),
        "{}",
        flaws[0].reason
    );
    assert_eq!(flaws[0].data, "one");
    assert_eq!(view.flaw(&"bad".to_owned()).as_ref(), Some(&flaws[0]));
    assert_eq!(view.flaw(&"good".to_owned()), None);
    set(&tree, "bad", "2").await;
    set(&tree, "good", "\u{fffd}").await;
    within(view.synced()).await.unwrap();
    assert_eq!(shown(&view), map([("bad", 2)]));
    assert_eq!(view.flaws()[0].id, "good");
    // It is never touched in the store.
    assert!(tree.stat(&p("/things/good")).await.unwrap().is_some());
    tree.delete(&p("/things/good"), Version::Any).await.unwrap();
    within(view.synced()).await.unwrap();
    assert_eq!(view.flaws(), []);
}

pub(crate) async fn empty_records_are_not_there_yet(backend: &impl Backend) {
    let tree = backend.session().await;
    directory(&tree).await;
    let view = things(&tree);
    put(&tree, "a", "").await;
    within(view.synced()).await.unwrap();
    assert!(view.is_empty());
    assert_eq!(view.flaws(), []);
    assert_eq!(view.empty()[0].0, "a");
    set(&tree, "a", "1").await;
    within(view.synced()).await.unwrap();
    assert_eq!(shown(&view), map([("a", 1)]));
    assert_eq!(view.empty(), []);
}

pub(crate) async fn own_writes_show_at_once(backend: &impl Backend) {
    let tree = backend.session().await;
    directory(&tree).await;
    let view = things(&tree);
    within(view.synced()).await.unwrap();
    let id = "a".to_owned();
    let created = tree
        .create(&p("/things/a"), "0".into(), Persistent)
        .await
        .unwrap();
    view.wrote(id.clone(), Arc::new(0), created.stat);
    for value in 1..200 {
        let stat = tree
            .set(
                &p("/things/a"),
                Bytes::from(value.to_string()),
                Version::Any,
            )
            .await
            .unwrap();
        view.wrote(id.clone(), Arc::new(value), stat);
        // Reads for earlier events are under way; none may turn the value back.
        assert_eq!(*view.get(&id).unwrap().value, value);
        tokio::task::yield_now().await;
        assert_eq!(*view.get(&id).unwrap().value, value);
    }
    within(view.synced()).await.unwrap();
    assert_eq!(shown(&view), map([("a", 199)]));
}

/// Whoever wrote may come late: others have seen the write, and have deleted the record.
pub(crate) async fn a_late_own_write_does_not_bring_a_record_back(backend: &impl Backend) {
    let tree = backend.session().await;
    directory(&tree).await;
    put(&tree, "a", "1").await;
    let view = things(&tree);
    let path = p("/things/a");
    let stat = tree.set(&path, "2".into(), Version::Any).await.unwrap();
    tree.delete(&path, Version::Any).await.unwrap();
    within(view.synced()).await.unwrap();
    view.wrote("a".to_owned(), Arc::new(2), stat);
    assert_eq!(shown(&view), map([]));
}

pub(crate) async fn own_deletes_show_at_once(backend: &impl Backend) {
    let tree = backend.session().await;
    directory(&tree).await;
    let view = things(&tree);
    within(view.synced()).await.unwrap();
    let id = "a".to_owned();
    for round in 0..50 {
        put(&tree, "a", "1").await;
        if round % 2 == 0 {
            set(&tree, "a", "2").await;
        }
        tree.delete(&p("/things/a"), Version::Any).await.unwrap();
        view.deleted(&id);
        for _ in 0..20 {
            assert!(view.get(&id).is_none());
            tokio::task::yield_now().await;
        }
    }
    put(&tree, "a", "3").await;
    within(view.synced()).await.unwrap();
    assert_eq!(shown(&view), map([("a", 3)]));
}

/// A store that does as it is told, and a record in it.
async fn with_a_record(backend: &impl Backend) -> (Arc<Faulty>, Arc<dyn Tree>) {
    let faulty = Faulty::new(backend.session().await);
    let tree: Arc<dyn Tree> = Arc::clone(&faulty) as _;
    directory(&tree).await;
    put(&tree, "a", "1").await;
    (faulty, tree)
}

/// A view whose first read after `1` became `2` was answered, but has not arrived.
async fn with_a_late_read(backend: &impl Backend) -> (Arc<Faulty>, View<Things>) {
    let (faulty, tree) = with_a_record(backend).await;
    let view = things(&tree);
    within(view.synced()).await.unwrap();
    faulty.keep_reads();
    set(&tree, "a", "2").await;
    within(faulty.reads_answered(1)).await;
    (faulty, view)
}

pub(crate) async fn a_late_read_does_not_undo_an_own_write(backend: &impl Backend) {
    let (faulty, view) = with_a_late_read(backend).await;
    let id = "a".to_owned();
    let path = p("/things/a");
    let stat = faulty.set(&path, "3".into(), Version::Any).await.unwrap();
    view.wrote(id, Arc::new(3), stat);
    // The second read begins when the first has been dealt with.
    faulty.sync().await.unwrap();
    faulty.let_reads_through(1);
    within(faulty.reads_answered(2)).await;
    assert_eq!(shown(&view), map([("a", 3)]));
    faulty.let_reads_through(100);
    within(view.synced()).await.unwrap();
    assert_eq!(shown(&view), map([("a", 3)]));
}

pub(crate) async fn a_late_read_does_not_undo_an_own_delete(backend: &impl Backend) {
    let (faulty, view) = with_a_late_read(backend).await;
    faulty.delete(&p("/things/a"), Version::Any).await.unwrap();
    view.deleted(&"a".to_owned());
    assert!(view.is_empty());
    // Whether there is a second read depends on what comes first, the news of the delete or the answer to the read.
    faulty.sync().await.unwrap();
    faulty.let_reads_through(100);
    within(view.synced()).await.unwrap();
    assert!(view.is_empty());
}

pub(crate) async fn a_change_during_a_read_is_read_again(backend: &impl Backend) {
    let (faulty, view) = with_a_late_read(backend).await;
    let tree: Arc<dyn Tree> = Arc::clone(&faulty) as _;
    for value in ["3", "4"] {
        set(&tree, "a", value).await;
    }
    let synced = waiting(&view);
    faulty.let_reads_through(100);
    within(synced).await.unwrap().unwrap();
    assert_eq!(shown(&view), map([("a", 4)]));
}

/// Somebody who waits until a view shows everything.
fn waiting(view: &View<Things>) -> tokio::task::JoinHandle<nodeyard_store::Result<()>> {
    let view = view.clone();
    tokio::spawn(async move { view.synced().await })
}

pub(crate) async fn what_cannot_be_listed_is_not_taken_for_empty(backend: &impl Backend) {
    let (faulty, tree) = with_a_record(backend).await;
    faulty.forbid(Some(p("/things")));
    let view = things(&tree);
    let synced = waiting(&view);
    within(faulty.refused(2)).await;
    assert!(!view.is_current() && !synced.is_finished());
    faulty.forbid(None);
    within(synced).await.unwrap().unwrap();
    assert!(view.is_current());
    assert_eq!(shown(&view), map([("a", 1)]));
}

pub(crate) async fn what_cannot_be_read_is_read_again(backend: &impl Backend) {
    let (faulty, tree) = with_a_record(backend).await;
    let view = things(&tree);
    within(view.synced()).await.unwrap();
    faulty.forbid(Some(p("/things/a")));
    set(&tree, "a", "2").await;
    within(faulty.refused(2)).await;
    let synced = waiting(&view);
    within(faulty.refused(3)).await;
    assert!(!view.is_current() && !synced.is_finished());
    assert_eq!(shown(&view), map([("a", 1)]), "what was known stands");
    faulty.forbid(None);
    within(synced).await.unwrap().unwrap();
    assert!(view.is_current());
    assert_eq!(shown(&view), map([("a", 2)]));
}

pub(crate) async fn changes_name_what_changed(backend: &impl Backend) {
    let tree = backend.session().await;
    directory(&tree).await;
    put(&tree, "a", "1").await;
    put(&tree, "b", "1").await;
    let view = things(&tree);
    within(view.synced()).await.unwrap();
    let mut changes = view.changes();
    set(&tree, "b", "2").await;
    put(&tree, "c", "x").await;
    within(view.synced()).await.unwrap();
    let Some(Change::Ids(ids)) = within(changes.next()).await else {
        panic!("too few to overflow");
    };
    assert_eq!(ids, ["b", "c"].map(str::to_owned).into());
    let locks = Locks::new(Arc::clone(&tree));
    let guard = locks.lock(p("/things/a/lock")).acquire().await.unwrap();
    assert_eq!(
        within(changes.next()).await,
        Some(Change::Ids(["a".to_owned()].into()))
    );
    guard.release().await.unwrap();
    tree.close().await;
    while within(changes.next()).await.is_some() {}
}

/// `/tree/<a>` and `/tree/<a>/sub/<b>` are records.
struct Nested;

impl Shape for Nested {
    type Id = (String, Option<String>);
    type Value = String;

    fn kind(&self, path: &TreePath) -> Kind<Self::Id> {
        match path.parts().collect::<Vec<_>>()[..] {
            [_, a] => Kind::Record {
                id: (a.to_owned(), None),
                branch: true,
                lock: false,
            },
            [_, _, "sub"] => Kind::Directory,
            [_, a, "sub", b] => Kind::Record {
                id: (a.to_owned(), Some(b.to_owned())),
                branch: false,
                lock: false,
            },
            _ => Kind::Nothing,
        }
    }

    fn parse(
        &self,
        _: &Self::Id,
        data: &[u8],
    ) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
        Ok(String::from_utf8(data.to_vec())?)
    }
}

pub(crate) async fn a_nested_shape_is_followed(backend: &impl Backend) {
    let tree = backend.session().await;
    for path in [
        "/tree",
        "/tree/a",
        "/tree/a/sub",
        "/tree/a/sub/x",
        "/tree/a/other",
        "/tree/a/other/y",
    ] {
        tree.create(&p(path), Bytes::from(path.to_owned()), Persistent)
            .await
            .unwrap();
    }
    let view = View::open(Arc::clone(&tree), p("/tree"), Nested);
    within(view.synced()).await.unwrap();
    let shown = |view: &View<Nested>| -> Vec<String> {
        let items = view.items().into_iter();
        items.map(|item| (*item.value).clone()).collect()
    };
    assert_eq!(shown(&view), ["/tree/a", "/tree/a/sub/x"]);
    for path in ["/tree/b", "/tree/b/sub", "/tree/b/sub/z"] {
        tree.create(&p(path), Bytes::from(path.to_owned()), Persistent)
            .await
            .unwrap();
    }
    nodeyard_store::ext::delete_recursive(&*tree, &p("/tree/a"))
        .await
        .unwrap();
    within(view.synced()).await.unwrap();
    assert_eq!(shown(&view), ["/tree/b", "/tree/b/sub/z"]);
}

pub(crate) async fn exact_after_many_changes_of_few_records(backend: &impl Backend) {
    let (mine, other) = (backend.session().await, backend.session().await);
    directory(&other).await;
    let view = things(&mine);
    let writers = (0..4).map(|writer: u64| {
        let tree = Arc::clone(&other);
        tokio::spawn(async move {
            for step in 0..100 {
                let path = p(&format!("/things/{}", (writer + step) % 5));
                let data = Bytes::from((writer * 1000 + step).to_string());
                // The writers get in each other's way on purpose.
                let _ = match step % 3 {
                    0 => tree.create(&path, data, Persistent).await.map(drop),
                    1 => tree.set(&path, data, Version::Any).await.map(drop),
                    _ => tree.delete(&path, Version::Any).await,
                };
            }
        })
    });
    for writer in join_all(writers).await {
        writer.unwrap();
    }
    within(view.synced()).await.unwrap();
    let records = other.list(&p("/things")).await.unwrap();
    let expected: BTreeMap<String, u64> = records
        .iter()
        .map(|(id, record)| {
            (
                id.clone(),
                std::str::from_utf8(&record.data).unwrap().parse().unwrap(),
            )
        })
        .collect();
    assert_eq!(shown(&view), expected);
}

pub(crate) async fn a_root_that_appears_later_is_followed(backend: &impl Backend) {
    let tree = backend.session().await;
    let view = things(&tree);
    within(view.synced()).await.unwrap();
    assert!(view.is_empty());
    directory(&tree).await;
    put(&tree, "a", "1").await;
    within(view.synced()).await.unwrap();
    assert_eq!(shown(&view), map([("a", 1)]));
    nodeyard_store::ext::delete_recursive(&*tree, &p("/things"))
        .await
        .unwrap();
    within(view.synced()).await.unwrap();
    assert!(view.is_empty());
}
