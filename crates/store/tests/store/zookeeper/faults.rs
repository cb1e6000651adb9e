//! Servers and connections that fail.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nodeyard_store::lock::Locks;
use nodeyard_store::zookeeper::ZooKeeper;
use nodeyard_store::{CreateMode, Error, Session, Tree, TreePath, Version, WatchEvent, ext};
use nodeyard_testbeds::{Proxy, ZooKeeperServer};

use super::support::*;

fn suspended(state: &Session) -> bool {
    matches!(state, Session::Suspended(_))
}

async fn own_server() -> Arc<ZooKeeperServer> {
    Arc::new(blocking(|| ZooKeeperServer::start().unwrap()).await)
}

async fn restart(server: &Arc<ZooKeeperServer>) {
    let server = server.clone();
    blocking(move || server.restart().unwrap()).await;
}

#[tokio::test]
async fn a_restarted_server_finds_session_records_and_watches_again() {
    let server = own_server().await;
    let mut patient = options(server.port());
    patient.session_timeout = LONG_SESSION;
    let tree = connect(patient).await;
    let session = session_id(&*tree).await;
    let (a, e) = (path("/a"), path("/e"));
    tree.create(&a, data("kept"), CreateMode::Persistent)
        .await
        .unwrap();
    let ephemeral = tree
        .create(&e, data(""), CreateMode::Ephemeral)
        .await
        .unwrap();
    let mut watcher = tree.watch(&a).await.unwrap();
    let (_, once) = tree.watch_once(&e).await.unwrap();

    let stopped = server.clone();
    blocking(move || stopped.stop()).await;
    state(&*tree, suspended).await;
    within("a once tells the lost connection", once.fired()).await;
    // Begun without a connection: these wait for the next one.
    let late = path("/late");
    let waiting = async {
        tokio::join!(
            tree.get(&a),
            tree.create(&late, data(""), CreateMode::Persistent),
            tree.watch(&late),
        )
    };
    let (_, (got, created, late_watcher)) = tokio::join!(restart(&server), waiting);
    assert_eq!(got.unwrap().data, "kept");
    created.unwrap();
    let mut late_watcher = late_watcher.unwrap();

    assert_eq!(session_id(&*tree).await, session);
    assert_eq!(
        tree.stat(&e).await.unwrap().map(|stat| stat.czxid),
        Some(ephemeral.stat.czxid)
    );
    assert_eq!(next(&mut watcher).await, WatchEvent::Gap);
    let below = path("/a/b");
    for _ in 0..2 {
        tree.create(&below, data(""), CreateMode::Persistent)
            .await
            .unwrap();
        assert_eq!(next(&mut watcher).await, WatchEvent::Created(below.clone()));
        tree.delete(&below, Version::Any).await.unwrap();
        assert_eq!(next(&mut watcher).await, WatchEvent::Deleted(below.clone()));
    }
    tree.set(&late, data("x"), Version::Any).await.unwrap();
    until_event(&mut late_watcher, &WatchEvent::Changed(late)).await;
}

/// The server refuses the client because it has seen later transactions.
#[tokio::test]
async fn a_server_restored_from_a_backup_is_used_again() {
    let server = own_server().await;
    let mut short = options(server.port());
    short.session_timeout = Duration::from_secs(2);
    let tree = connect(short).await;
    let record = path("/record");
    tree.create(&record, data("old"), CreateMode::Persistent)
        .await
        .unwrap();
    let mut watcher = tree.watch(&record).await.unwrap();
    let backup = tempfile::tempdir().unwrap();
    let (saved, from) = (backup.path().join("data"), server.clone());
    let copy = saved.clone();
    blocking(move || {
        from.stop();
        copy_files(&from.data(), &copy);
        from.restart().unwrap();
    })
    .await;
    until_event(&mut watcher, &WatchEvent::Gap).await;
    for _ in 0..20 {
        tree.set(&record, data("new"), Version::Any).await.unwrap();
    }
    let to = server.clone();
    blocking(move || {
        to.stop();
        std::fs::remove_dir_all(to.data()).unwrap();
        copy_files(&saved, &to.data());
        to.restart().unwrap();
    })
    .await;
    until_event(&mut watcher, &WatchEvent::Gap).await;
    let read = within("a read", async {
        loop {
            match tree.get(&record).await {
                Ok(read) => break read,
                Err(error) if error.is_connection() => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    });
    assert_eq!(read.await.data, "old");
    tree.set(&record, data("newer"), Version::Any)
        .await
        .unwrap();
    until_event(&mut watcher, &WatchEvent::Changed(record)).await;
}

fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_files(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Every write is acknowledged and there, or reported as unknown; reads do not notice anything.
#[tokio::test(flavor = "multi_thread")]
async fn connections_dropped_under_load_lose_no_acknowledged_write() {
    const WORKERS: usize = 16;
    const DROPS: usize = 25;
    let proxy = Proxy::start(shared_server().port()).unwrap();
    let mut through = options(proxy.port());
    through.session_timeout = LONG_SESSION;
    let root = connect(through).await;
    let session = session_id(&*root).await;
    let tree = root.with_chroot(&fresh_chroot(&*root).await);
    let stop = Arc::new(AtomicBool::new(false));

    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let (tree, stop) = (tree.clone(), stop.clone());
            tokio::spawn(async move {
                let mut acknowledged = Vec::new();
                let mut unknown = 0;
                for i in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let record = path(&format!("/{worker}-{i}"));
                    match tree.create(&record, data(""), CreateMode::Ephemeral).await {
                        Ok(_) => acknowledged.push(record.name().to_owned()),
                        Err(Error::ConnectionLoss) => unknown += 1,
                        Err(error) => panic!("{error:?}"),
                    }
                    tree.stat(&record).await.unwrap();
                }
                (acknowledged, unknown)
            })
        })
        .collect();
    for _ in 0..DROPS {
        within("work between two drops", async {
            tree.sync().await.unwrap();
            tree.sync().await.unwrap();
        })
        .await;
        let before = proxy.accepted();
        proxy.drop_connections();
        within("the next connection", async {
            while proxy.accepted() == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
    stop.store(true, Ordering::SeqCst);
    let mut acknowledged = Vec::new();
    let mut unknown = 0;
    for worker in workers {
        let (mut names, count) = within("a worker", worker).await.unwrap();
        acknowledged.append(&mut names);
        unknown += count;
    }
    let there = tree.children(&TreePath::root()).await.unwrap().names;
    let missing = acknowledged
        .iter()
        .filter(|name| there.binary_search(name).is_err());
    assert_eq!(missing.count(), 0);
    assert!(there.len() <= acknowledged.len() + unknown);
    assert!(unknown > 0, "no write was interrupted");
    assert_eq!(session_id(&*tree).await, session);
}

#[tokio::test]
async fn a_session_ends_only_when_a_server_says_so_and_a_new_one_follows() {
    let proxy = Proxy::start(shared_server().port()).unwrap();
    let mut short = options(proxy.port());
    // Its end is waited for, but must not come before.
    short.session_timeout = Duration::from_secs(8);
    let root = connect(short).await;
    let chroot = fresh_chroot(&*root).await;
    let tree = root.with_chroot(&chroot);
    let old = session_id(&*tree).await;
    let pinned = tree.pinned(old);
    let e = path("/e");
    tree.create(&e, data(""), CreateMode::Ephemeral)
        .await
        .unwrap();
    let mut watcher = tree.watch(&TreePath::root()).await.unwrap();
    let observer = connect(options(shared_server().port()))
        .await
        .with_chroot(&chroot);

    proxy.stall(true);
    within("the server ends the session", async {
        while observer.stat(&e).await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    state(&*tree, suspended).await;
    assert_eq!(*tree.session().borrow(), Session::Suspended(old));
    let (a, b) = (path("/a"), path("/b"));
    let begun_in_the_old = async {
        tokio::join!(
            tree.get(&a),
            tree.create(&b, data(""), CreateMode::Persistent),
            tree.watch(&b),
            pinned.get(&a),
        )
    };
    let let_it_hear = async {
        // The operations above are begun first.
        tokio::task::yield_now().await;
        proxy.stall(false);
    };
    let ((got, created, watched, pinned_got), ()) = within("the end of the session", async {
        tokio::join!(begun_in_the_old, let_it_hear)
    })
    .await;
    assert!(matches!(got, Err(Error::SessionExpired)), "{got:?}");
    assert!(matches!(created, Err(Error::SessionExpired)), "{created:?}");
    assert!(matches!(watched, Err(Error::SessionExpired)));
    assert!(matches!(pinned_got, Err(Error::SessionExpired)));

    let new = session_id(&*tree).await;
    assert_ne!(new, old);
    assert!(matches!(
        pinned.create(&b, data(""), CreateMode::Persistent).await,
        Err(Error::SessionExpired)
    ));
    assert_eq!(tree.stat(&b).await.unwrap(), None);
    until_event(&mut watcher, &WatchEvent::Gap).await;
    let created = tree
        .create(&e, data(""), CreateMode::Ephemeral)
        .await
        .unwrap();
    assert_eq!(created.stat.ephemeral_owner, new.0);
    until_event(&mut watcher, &WatchEvent::Created(e)).await;
}

/// The connection stays open but nothing comes: that is noticed, and another one is made.
#[tokio::test]
async fn an_unresponsive_connection_is_closed() {
    let silent = Proxy::start(shared_server().port()).unwrap();
    let mut options = options(silent.port());
    options.session_timeout = Duration::from_secs(3);
    let tree = connect(options).await;
    silent.stall(true);
    state(&*tree, suspended).await;
    silent.stall(false);
    session_id(&*tree).await;
    tree.sync().await.unwrap();
    assert!(silent.accepted() >= 2);
}

#[tokio::test]
async fn the_first_connection_is_tried_until_it_works() {
    let proxy = Proxy::start(shared_server().port()).unwrap();
    proxy.refuse(true);
    let tree = ZooKeeper::connect(options(proxy.port()));
    let error = tree.connected(Duration::from_secs(3)).await.unwrap_err();
    assert!(error.to_string().contains("no ZooKeeper server"), "{error}");
    let (synced, ()) = tokio::join!(tree.sync(), async { proxy.refuse(false) });
    synced.unwrap();
}

#[tokio::test]
async fn closing_without_a_server_comes_to_an_end() {
    let proxy = Proxy::start(shared_server().port()).unwrap();
    let tree = connect(options(proxy.port())).await;
    let mut watcher = tree.watch(&path("/x")).await.unwrap();
    proxy.refuse(true);
    state(&*tree, suspended).await;
    let root = TreePath::root();
    let (got, ()) = within("close", async {
        tokio::join!(tree.get(&root), tree.close())
    })
    .await;
    assert!(matches!(got, Err(Error::Closed)));
    assert_eq!(*tree.session().borrow(), Session::Closed);
    while let Some(event) = within("the end", watcher.next()).await {
        assert_eq!(event, WatchEvent::Gap);
    }

    let never_connected = ZooKeeper::connect(options(proxy.port()));
    within("close before the first connection", never_connected.close()).await;
}

#[tokio::test]
async fn a_new_list_of_hosts_moves_the_session() {
    let (first, second) = (
        Proxy::start(shared_server().port()).unwrap(),
        Proxy::start(shared_server().port()).unwrap(),
    );
    let mut patient = options(first.port());
    patient.session_timeout = LONG_SESSION;
    let tree = connect(patient).await;
    let session = session_id(&*tree).await;
    tree.set_hosts(vec![host(first.port()), host(second.port())]);
    tree.sync().await.unwrap();
    assert_eq!((first.accepted(), second.accepted()), (1, 0));

    tree.set_hosts(vec![host(second.port())]);
    within("the move", async {
        while second.accepted() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    tree.sync().await.unwrap();
    assert_eq!(session_id(&*tree).await, session);
    assert_eq!(first.accepted(), 1);
}

/// By both ways into the queue: the directory is there, or is made along with the contender.
#[tokio::test]
async fn a_contender_whose_create_response_was_lost_is_found() {
    for is_new in [false, true] {
        let proxy = Proxy::start(shared_server().port()).unwrap();
        let mut patient = options(proxy.port());
        patient.session_timeout = LONG_SESSION;
        let root = connect(patient).await;
        let chroot = fresh_chroot(&*root).await;
        let observer = connect(options(shared_server().port())).await;
        let observer = observer.with_chroot(&chroot);
        let dir = path("/lock");
        let locks = Locks::new(root.with_chroot(&chroot) as Arc<dyn Tree>);
        let mut lock = locks.lock(dir.clone());
        if is_new {
            lock = lock.likely_new();
        } else {
            ext::ensure_path(&*observer, &dir).await.unwrap();
        }
        proxy.stall_answers(true);
        let acquiring = tokio::spawn(async move { lock.acquire().await });
        within("the contender is there", async {
            while ext::child_names(&*observer, &dir).await.unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        proxy.drop_connections();
        proxy.stall_answers(false);
        let guard = within("the lock", acquiring).await.unwrap().unwrap();
        let names = ext::child_names(&*observer, &dir).await.unwrap();
        assert_eq!(names, [guard.path().name()], "new: {is_new}");
    }
}
