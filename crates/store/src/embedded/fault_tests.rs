//! The store on a disk with power losses, torn writes, no space and failing syncs.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng};
use redb::{Database, DatabaseError, StorageBackend};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::Embedded;
use super::resync_storage::UnsyncedRanges;
use super::storage_file::{StorageFile, builder};
use crate::error::Error;
use crate::path::TreePath;
use crate::socket::StoreSocket;
use crate::tree::{CreateMode, Op, Tree, Version};
use crate::zookeeper::wire::{ConnectRequest, ConnectResponse, Create, OpCode, Reply, Request};

const SECTOR: usize = 512;

/// A disk with a cache: writes since the last sync may be lost in a crash.
#[derive(Debug, Clone, Default)]
struct FaultyDisk(Arc<Mutex<DiskState>>, UnsyncedRanges, Arc<SyncGate>);

/// Blocks syncs while it is shut.
#[derive(Debug, Default)]
struct SyncGate {
    shut: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicBool,
}

impl SyncGate {
    fn set(&self, shut: bool) {
        *self.shut.lock().unwrap() = shut;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let mut shut = self.shut.lock().unwrap();
        while *shut {
            self.waiting.store(true, Ordering::SeqCst);
            shut = self.opened.wait(shut).unwrap();
        }
    }
}

#[derive(Debug, Default)]
struct DiskState {
    safe: Vec<u8>,
    cached: Vec<u8>,
    unsynced: Vec<DiskWrite>,
    /// The number of writes and syncs until the power fails.
    fuse: Option<u64>,
    full: bool,
    failing_syncs: u32,
    free: Option<u64>,
}

#[derive(Debug, Clone)]
enum DiskWrite {
    Write(usize, Vec<u8>),
    Len(usize),
}

impl DiskWrite {
    fn apply(&self, image: &mut Vec<u8>) {
        match self {
            DiskWrite::Len(len) => image.resize(*len, 0),
            DiskWrite::Write(at, data) => {
                if image.len() < at + data.len() {
                    image.resize(at + data.len(), 0);
                }
                image[*at..at + data.len()].copy_from_slice(data);
            }
        }
    }
}

impl DiskState {
    fn use_fuse(&mut self) -> io::Result<()> {
        match &mut self.fuse {
            Some(0) => Err(io::Error::other("no power")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl FaultyDisk {
    fn set(&self, change: impl FnOnce(&mut DiskState)) {
        change(&mut self.0.lock().unwrap());
    }

    /// Returns the disk after a power loss: any unsynced sectors may be lost, in any order.
    fn after_crash(&self, rng: &mut TestRng) -> FaultyDisk {
        let platter = self.0.lock().unwrap();
        let mut image = platter.safe.clone();
        for change in &platter.unsynced {
            match change {
                DiskWrite::Len(_) => change.apply(&mut image),
                DiskWrite::Write(at, data) => {
                    for (index, sector) in data.chunks(SECTOR).enumerate() {
                        if rng.random_bool(0.5) {
                            DiskWrite::Write(at + index * SECTOR, sector.to_vec())
                                .apply(&mut image);
                        }
                    }
                }
            }
        }
        let platter = DiskState {
            safe: image.clone(),
            cached: image,
            ..DiskState::default()
        };
        FaultyDisk(
            Arc::new(Mutex::new(platter)),
            UnsyncedRanges::default(),
            Arc::default(),
        )
    }
}

impl StorageBackend for FaultyDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().cached.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let platter = self.0.lock().unwrap();
        let at = offset as usize;
        let found = platter.cached.get(at..at + out.len());
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut platter = self.0.lock().unwrap();
        platter.use_fuse()?;
        if platter.full && len as usize > platter.cached.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        platter.cached.resize(len as usize, 0);
        platter.unsynced.push(DiskWrite::Len(len as usize));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.2.pass();
        let mut platter = self.0.lock().unwrap();
        platter.use_fuse()?;
        if platter.failing_syncs > 0 {
            platter.failing_syncs -= 1;
            // The cache marks the writes as clean.
            platter
                .unsynced
                .retain(|change| matches!(change, DiskWrite::Len(_)));
            return Err(io::Error::other("sync failed"));
        }
        for change in std::mem::take(&mut platter.unsynced) {
            change.apply(&mut platter.safe);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut platter = self.0.lock().unwrap();
        platter.use_fuse()?;
        let change = DiskWrite::Write(offset as usize, data.to_vec());
        change.apply(&mut platter.cached);
        platter.unsynced.push(change);
        Ok(())
    }
}

impl StorageFile for FaultyDisk {
    fn open(&self) -> Result<Database, DatabaseError> {
        builder().create_with_backend(self.1.over(self.clone()))
    }

    fn free(&self) -> Option<u64> {
        self.0.lock().unwrap().free
    }

    fn name(&self) -> Arc<Path> {
        Path::new("disk").into()
    }
}

fn rng(seed: &[u8; 32]) -> TestRng {
    TestRng::from_seed(RngAlgorithm::ChaCha, seed)
}

fn open(disk: &FaultyDisk) -> Arc<Embedded> {
    Embedded::open_on(Box::new(disk.clone())).unwrap()
}

fn path(text: &str) -> TreePath {
    TreePath::new(text).unwrap()
}

fn number(data: &[u8]) -> u64 {
    std::str::from_utf8(data).unwrap().parse().unwrap()
}

async fn put(tree: &Arc<dyn Tree>, at: &str, mode: CreateMode) -> crate::Result<()> {
    let data = Bytes::from_static(b"0");
    tree.create(&path(at), data, mode).await.map(drop)
}

/// Increments two records atomically, with an ephemeral record around each step, until an operation fails. Returns the
/// last acknowledged number.
async fn count(tree: Arc<dyn Tree>, writer: usize) -> u64 {
    let (left, right) = (format!("/left-{writer}"), format!("/right-{writer}"));
    let mut acked = 0;
    loop {
        let next = Bytes::from((acked + 1).to_string());
        let set = |at: &str| Op::Set {
            path: path(at),
            data: next.clone(),
            version: Version::Exactly(acked as i32),
        };
        let lock = format!("/lock-{writer}");
        if put(&tree, &lock, CreateMode::Ephemeral).await.is_err()
            || tree.multi(vec![set(&left), set(&right)]).await.is_err()
        {
            return acked;
        }
        acked += 1;
        if tree.delete(&path(&lock), Version::Any).await.is_err() {
            return acked;
        }
    }
}

fn crash_after(fuse: u64, rng: &mut TestRng) {
    const WRITERS: usize = 5;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let disk = FaultyDisk::default();
    let acked = runtime.block_on(async {
        let engine = open(&disk);
        let tree = engine.session();
        for writer in 0..WRITERS {
            for side in ["left", "right"] {
                let at = format!("/{side}-{writer}");
                put(&tree, &at, CreateMode::Persistent).await.unwrap();
            }
        }
        disk.set(|platter| platter.fuse = Some(fuse));
        let counters = (0..WRITERS).map(|writer| count(engine.session(), writer));
        futures_util::future::join_all(counters).await
    });

    let disk = disk.after_crash(rng);
    runtime.block_on(async {
        let engine = open(&disk);
        let tree = engine.session();
        for (writer, acked) in acked.into_iter().enumerate() {
            let left = tree.get(&path(&format!("/left-{writer}"))).await.unwrap();
            let right = tree.get(&path(&format!("/right-{writer}"))).await.unwrap();
            assert_eq!(left.data, right.data, "a multi is never torn");
            let found = number(&left.data);
            assert!((acked..=acked + 1).contains(&found), "{acked} -> {found}");
            assert_eq!(left.stat.version as u64, found);
        }
        let listing = tree.children(&TreePath::root()).await.unwrap();
        assert_eq!(listing.names.len(), 2 * WRITERS, "no ephemeral is left");
        assert_eq!(listing.stat.num_children as usize, 2 * WRITERS);
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn acknowledged_writes_survive_a_power_loss(fuse in 0_u64..400, seed: [u8; 32]) {
        crash_after(fuse, &mut rng(&seed));
    }
}

/// Creates an ephemeral record, which must still exist after the file was reopened.
async fn with_a_held_lock(disk: &FaultyDisk) -> (Arc<Embedded>, Arc<dyn Tree>) {
    let engine = open(disk);
    let tree = engine.session();
    put(&tree, "/a", CreateMode::Persistent).await.unwrap();
    put(&tree, "/lock", CreateMode::Ephemeral).await.unwrap();
    (engine, tree)
}

#[tokio::test]
async fn after_a_failed_sync_the_outcome_is_unknown() {
    let disk = FaultyDisk::default();
    let (engine, tree) = with_a_held_lock(&disk).await;
    let mut watcher = tree.watch(&path("/a")).await.unwrap();
    disk.set(|platter| platter.failing_syncs = 1);
    let failed = put(&tree, "/a/b", CreateMode::Persistent).await;
    // The pages are in the cache of the disk, so it did happen; nobody could have known.
    assert!(matches!(failed, Err(Error::ConnectionLoss)), "{failed:?}");
    assert!(tree.stat(&path("/a/b")).await.unwrap().is_some());
    let event = watcher.next().await.unwrap();
    assert_eq!(event, crate::WatchEvent::Created(path("/a/b")));

    assert!(tree.stat(&path("/lock")).await.unwrap().is_some());
    put(&tree, "/a/c", CreateMode::Persistent).await.unwrap();
    tree.close().await;
    let other = engine.session();
    assert_eq!(other.stat(&path("/lock")).await.unwrap(), None);
    assert_eq!(other.children(&path("/a")).await.unwrap().names, ["b", "c"]);

    // What was answered after the failure does not rest on pages that the disk never got.
    let tree = open(&disk.after_crash(&mut rng(&[1; 32]))).session();
    assert_eq!(tree.children(&path("/a")).await.unwrap().names, ["b", "c"]);
}

#[tokio::test]
async fn a_full_disk_fails_only_writes() {
    let disk = FaultyDisk::default();
    let (_engine, tree) = with_a_held_lock(&disk).await;
    disk.set(|platter| platter.full = true);
    let filler = Bytes::from(vec![1; 500_000]);
    let mut stored = Vec::new();
    let error = loop {
        let at = format!("/a/{}", stored.len());
        let mode = CreateMode::Persistent;
        match tree.create(&path(&at), filler.clone(), mode).await {
            Ok(created) => stored.push(created.path),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("disk is full"), "{error}");
    for at in &stored {
        assert_eq!(tree.get(at).await.unwrap().data, filler);
    }
    // What was committed without the disk is not lost with the next failure.
    put(&tree, "/second-lock", CreateMode::Ephemeral)
        .await
        .unwrap();
    let at = path("/a/large");
    let again = tree.create(&at, filler.clone(), CreateMode::Persistent);
    assert!(again.await.is_err());
    for lock in ["/lock", "/second-lock"] {
        assert!(tree.stat(&path(lock)).await.unwrap().is_some(), "{lock}");
    }
    disk.set(|platter| platter.full = false);
    put(&tree, "/a/again", CreateMode::Persistent)
        .await
        .unwrap();
    let children = tree.children(&path("/a")).await.unwrap();
    assert_eq!(children.names.len(), stored.len() + 1);
}

#[tokio::test]
async fn writes_fail_on_a_nearly_full_disk() {
    let disk = FaultyDisk::default();
    let (_engine, tree) = with_a_held_lock(&disk).await;
    disk.set(|platter| platter.free = Some(1000));
    let refused = put(&tree, "/a/b", CreateMode::Persistent)
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("disk is full"), "{refused}");
    put(&tree, "/other-lock", CreateMode::Ephemeral)
        .await
        .expect("locks need no disk");
    disk.set(|platter| platter.free = None);
    put(&tree, "/a/b", CreateMode::Persistent).await.unwrap();
}

#[tokio::test]
async fn a_session_closed_during_a_disk_failure_ends_after_it() {
    let disk = FaultyDisk::default();
    let (engine, tree) = with_a_held_lock(&disk).await;
    disk.set(|platter| platter.fuse = Some(0));
    let failed = put(&tree, "/a/b", CreateMode::Persistent).await;
    assert!(failed.is_err());
    drop(tree);
    disk.set(|platter| platter.fuse = None);
    let other = engine.session();
    // Until the file is open again, reads fail.
    while !matches!(other.stat(&path("/lock")).await, Ok(None)) {
        tokio::task::yield_now().await;
    }
    put(&other, "/a/c", CreateMode::Persistent).await.unwrap();
    assert_eq!(other.children(&path("/a")).await.unwrap().names, ["c"]);
}

/// Opens a raw connection to the socket and creates or resumes a session.
async fn greeted(
    socket: &Path,
    session: Option<&ConnectResponse>,
) -> (UnixStream, ConnectResponse) {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    let mut out = BytesMut::new();
    let hello = ConnectRequest {
        last_zxid_seen: 0,
        timeout: 60_000,
        session_id: session.map_or(0, |known| known.session_id),
        password: session.map_or_else(Bytes::new, |known| known.password.clone()),
        read_only: false,
    };
    hello.encode(&mut out);
    stream.write_all(&out).await.unwrap();
    let answer = ConnectResponse::decode(frame(&mut stream).await).unwrap();
    (stream, answer)
}

async fn frame(stream: &mut UnixStream) -> Bytes {
    let length = stream.read_u32().await.unwrap();
    let mut frame = vec![0; length as usize];
    stream.read_exact(&mut frame).await.unwrap();
    frame.into()
}

async fn send(stream: &mut UnixStream, requests: Vec<Request>) {
    let mut out = BytesMut::new();
    for (xid, request) in (1..).zip(requests) {
        request.encode(xid, &mut out);
    }
    stream.write_all(&out).await.unwrap();
}

#[tokio::test]
async fn a_reconnected_client_syncs_with_its_earlier_writes() {
    let disk = FaultyDisk::default();
    let engine = open(&disk);
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("socket");
    let socket = StoreSocket::bind(&at).await.unwrap();
    tokio::spawn(socket.serve(engine, std::future::pending()));
    let (mut first, session) = greeted(&at, None).await;
    disk.2.set(true);
    let create = Request::Create(Create {
        path: "/a".to_owned(),
        data: Bytes::from_static(b"0"),
        mode: CreateMode::Persistent,
    });
    send(&mut first, vec![create]).await;
    while !disk.2.waiting.load(Ordering::SeqCst) {
        tokio::task::yield_now().await;
    }
    drop(first);

    let (mut second, _) = greeted(&at, Some(&session)).await;
    let path = "/a".to_owned();
    let sync = Request::Sync { path: path.clone() };
    let watch = false;
    send(&mut second, vec![sync, Request::GetData { path, watch }]).await;
    {
        let synced = frame(&mut second);
        tokio::pin!(synced);
        // Far more often than an answer would need.
        for _ in 0..10_000 {
            let answered = futures_util::poll!(&mut synced);
            assert!(answered.is_pending(), "answered before the write was done");
            tokio::task::yield_now().await;
        }
        disk.2.set(false);
        synced.await;
    }
    let found = Reply::decode(OpCode::GetData, &frame(&mut second).await).unwrap();
    assert!(found.result.is_ok(), "{found:?}");
}

#[test]
fn newer_formats_are_rejected_and_not_changed() {
    let disk = FaultyDisk::default();
    let database = disk.open().unwrap();
    let write = database.begin_write().unwrap();
    write
        .open_table(super::format::META)
        .unwrap()
        .insert(super::format::META_FORMAT, super::format::FORMAT + 1)
        .unwrap();
    write.commit().unwrap();
    drop(database);
    let error = Embedded::open_on(Box::new(disk)).unwrap_err();
    assert!(error.to_string().contains("newer program"), "{error}");
}

/// Damage is detected when the file is opened; at worst the newest change is reverted.
#[test]
fn damaged_files_are_detected() {
    const RECORDS: usize = 300;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let disk = FaultyDisk::default();
    runtime.block_on(async {
        let engine = open(&disk);
        let tree = engine.session();
        for record in 0..RECORDS {
            let at = format!("/{record}");
            put(&tree, &at, CreateMode::Persistent).await.unwrap();
        }
        engine.close().await;
    });
    let clean = disk.0.lock().unwrap().cached.clone();
    let mut rng = rng(&[3; 32]);
    let mut refused = 0;
    for _ in 0..200 {
        let mut image = clean.clone();
        for _ in 0..rng.random_range(1..20) {
            let at = rng.random_range(0..image.len());
            image[at] ^= 1 << rng.random_range(0..8);
        }
        let platter = DiskState {
            safe: image.clone(),
            cached: image,
            ..DiskState::default()
        };
        let disk = FaultyDisk(
            Arc::new(Mutex::new(platter)),
            UnsyncedRanges::default(),
            Arc::default(),
        );
        match Embedded::open_on(Box::new(disk)) {
            Err(_) => refused += 1,
            Ok(engine) => runtime.block_on(async {
                let tree = engine.session();
                let records = tree.list(&TreePath::root()).await.unwrap();
                assert_eq!(records.len(), RECORDS);
                assert!(records.iter().all(|(_, record)| record.data == "0"));
            }),
        }
    }
    assert!(refused > 0, "the damage was never where it matters");
}
