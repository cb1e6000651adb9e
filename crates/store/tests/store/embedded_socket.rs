//! The embedded store through its socket.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nodeyard_store::embedded::Embedded;
use nodeyard_store::socket::{self, ConnectOptions, StoreSocket};
use nodeyard_store::zookeeper::wire::{
    AddWatchMode, ConnectRequest, ConnectResponse, Create, ErrorCode, Event, EventKind, OpCode,
    Reply, ReplyHeader, Request, Response, WatcherKind, XID_EVENT, take_frame,
};
use nodeyard_store::{CreateMode, Error, Op, Tree, TreePath, Version, WatchEvent};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

struct Bed {
    dir: TempDir,
    engine: Arc<Embedded>,
    own: Arc<dyn Tree>,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<()>,
}

impl Bed {
    fn socket(&self) -> PathBuf {
        self.dir.path().join(socket::FILE_NAME)
    }

    async fn client(&self) -> Arc<dyn Tree> {
        socket::connect(&self.socket(), ConnectOptions::default())
            .await
            .unwrap()
    }

    async fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        (&mut self.serving).await.unwrap();
    }
}

async fn bed() -> Bed {
    let dir = tempfile::tempdir().unwrap();
    let engine = Embedded::open(dir.path()).unwrap();
    let own = engine.session();
    let (stop, serving) = serve(&engine, dir.path().join(socket::FILE_NAME)).await;
    Bed {
        dir,
        engine,
        own,
        stop: Some(stop),
        serving,
    }
}

async fn serve(engine: &Arc<Embedded>, path: PathBuf) -> (oneshot::Sender<()>, JoinHandle<()>) {
    let (stop, stopped) = oneshot::channel();
    let socket = StoreSocket::bind(&path).await.unwrap();
    let shutdown = async { drop(stopped.await) };
    let serving = tokio::spawn(socket.serve(engine.clone(), shutdown));
    (stop, serving)
}

async fn until(condition: impl AsyncFn() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(300), wait)
        .await
        .expect("the condition comes true");
}

fn path(text: &str) -> TreePath {
    TreePath::new(text).unwrap()
}

async fn put(tree: &Arc<dyn Tree>, at: &str, mode: CreateMode) {
    tree.create(&path(at), Bytes::from_static(b"0"), mode)
        .await
        .unwrap();
}

/// A client that sends raw requests.
struct Raw {
    stream: UnixStream,
    received: BytesMut,
    hello: ConnectResponse,
}

impl Raw {
    async fn connect(bed: &Bed, session: Option<&ConnectResponse>, timeout: i32) -> Self {
        let mut raw = Raw {
            stream: UnixStream::connect(bed.socket()).await.unwrap(),
            received: BytesMut::new(),
            hello: ConnectResponse::expired(),
        };
        let request = ConnectRequest {
            last_zxid_seen: 0,
            timeout,
            session_id: session.map_or(0, |known| known.session_id),
            password: session.map_or_else(Bytes::new, |known| known.password.clone()),
            read_only: false,
        };
        let mut out = BytesMut::new();
        request.encode(&mut out);
        raw.stream.write_all(&out).await.unwrap();
        let frame = raw.frame().await.unwrap();
        raw.hello = ConnectResponse::decode(frame).unwrap();
        raw
    }

    async fn frame(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = take_frame(&mut self.received, 1 << 26).unwrap() {
                return Some(frame);
            }
            if self.stream.read_buf(&mut self.received).await.ok()? == 0 {
                return None;
            }
        }
    }

    async fn send(&mut self, requests: &[(i32, Request)]) {
        let mut out = BytesMut::new();
        for (xid, request) in requests {
            request.encode(*xid, &mut out);
        }
        self.stream.write_all(&out).await.unwrap();
    }

    /// Reads the next packet: an event, or the reply to a request with this operation code.
    async fn next(&mut self, opcode: OpCode) -> ReceivedPacket {
        let frame = self.frame().await.expect("the connection is open");
        let (header, body) = ReplyHeader::decode(&frame).unwrap();
        if header.xid == XID_EVENT {
            return ReceivedPacket::Event(Event::decode(body).unwrap());
        }
        ReceivedPacket::Reply(Reply::decode(opcode, &frame).unwrap())
    }

    async fn ask(&mut self, xid: i32, request: Request) -> Result<Response, ErrorCode> {
        let opcode = request.opcode();
        self.send(&[(xid, request)]).await;
        match self.next(opcode).await {
            ReceivedPacket::Reply(reply) => reply.result,
            ReceivedPacket::Event(event) => panic!("unexpected {event:?}"),
        }
    }

    async fn event(&mut self) -> (EventKind, String) {
        match self.next(OpCode::Ping).await {
            ReceivedPacket::Event(event) => (event.kind, event.path),
            ReceivedPacket::Reply(reply) => panic!("unexpected {reply:?}"),
        }
    }
}

#[derive(Debug)]
enum ReceivedPacket {
    Event(Event),
    Reply(Reply),
}

fn create(at: &str, mode: CreateMode) -> Request {
    Request::Create(Create {
        path: at.to_owned(),
        data: Bytes::from_static(b"0"),
        mode,
    })
}

fn get(at: &str, watch: bool) -> Request {
    Request::GetData {
        path: at.to_owned(),
        watch,
    }
}

fn set(at: &str, data: &str) -> Request {
    Request::SetData {
        path: at.to_owned(),
        data: Bytes::copy_from_slice(data.as_bytes()),
        version: -1,
    }
}

#[tokio::test]
async fn the_client_sees_and_changes_the_same_tree() {
    let bed = bed().await;
    let client = bed.client().await;
    put(&bed.own, "/nodes", CreateMode::Persistent).await;
    let made = client
        .create(
            &path("/nodes").unnamed_child(),
            Bytes::from_static(b"data"),
            CreateMode::PersistentSequential,
        )
        .await
        .unwrap();
    assert_eq!(made.path.as_str(), "/nodes/0000000000");
    assert_eq!(bed.own.get(&made.path).await.unwrap().stat, made.stat);
    assert_eq!(
        client.list(&path("/nodes")).await.unwrap(),
        bed.own.list(&path("/nodes")).await.unwrap()
    );
    assert_eq!(
        client.children(&path("/nodes")).await.unwrap(),
        bed.own.children(&path("/nodes")).await.unwrap()
    );
    let failed = client
        .multi(vec![
            Op::Delete {
                path: made.path.clone(),
                version: Version::Any,
            },
            Op::Check {
                path: path("/nodes"),
                version: Version::Exactly(9),
            },
        ])
        .await;
    match failed {
        Err(Error::Multi { index: 1, source }) => {
            assert!(matches!(*source, Error::BadVersion { .. }));
        }
        other => panic!("{other:?}"),
    }
    client
        .delete(&made.path, Version::Exactly(0))
        .await
        .unwrap();
    assert_eq!(bed.own.stat(&made.path).await.unwrap(), None);
}

#[tokio::test]
async fn clients_receive_events_and_their_ephemerals_end() {
    let bed = bed().await;
    let client = bed.client().await;
    let mut theirs = client.watch(&path("/a")).await.unwrap();
    let (none, once) = client.watch_once(&path("/a/lock")).await.unwrap();
    assert_eq!(none, None);
    put(&bed.own, "/a", CreateMode::Persistent).await;
    put(&client, "/a/lock", CreateMode::Ephemeral).await;
    once.fired().await;
    assert_eq!(theirs.next().await, Some(WatchEvent::Created(path("/a"))));
    let event = theirs.next().await;
    assert_eq!(event, Some(WatchEvent::Created(path("/a/lock"))));

    let mut ours = bed.own.watch(&path("/a")).await.unwrap();
    client.close().await;
    let event = ours.next().await;
    assert_eq!(event, Some(WatchEvent::Deleted(path("/a/lock"))));
}

#[tokio::test]
async fn pipelined_requests_are_executed_in_order() {
    let bed = bed().await;
    let mut raw = Raw::connect(&bed, None, 10_000).await;
    let mut requests = vec![(1, create("/c", CreateMode::Persistent))];
    for round in 0..50 {
        requests.push((2 + 2 * round, set("/c", &round.to_string())));
        requests.push((3 + 2 * round, get("/c", false)));
    }
    raw.send(&requests).await;
    for (xid, request) in &requests {
        let ReceivedPacket::Reply(reply) = raw.next(request.opcode()).await else {
            panic!("no event was asked for");
        };
        assert_eq!(reply.xid, *xid);
        if let Response::GetData { data, .. } = reply.result.unwrap() {
            assert_eq!(data, ((xid - 3) / 2).to_string());
        }
    }
}

#[tokio::test]
async fn an_event_comes_before_the_data_it_announces() {
    let bed = bed().await;
    put(&bed.own, "/w", CreateMode::Persistent).await;
    let at = path("/w");
    let (own, changed) = (bed.own.clone(), at.clone());
    let changing = tokio::spawn(async move {
        for round in 1..=200 {
            let data = Bytes::from(round.to_string());
            own.set(&changed, data, Version::Any).await.unwrap();
        }
    });
    let mut raw = Raw::connect(&bed, None, 10_000).await;
    let mut seen = None;
    let mut watched = false;
    for xid in 1.. {
        raw.send(&[(xid, get("/w", true))]).await;
        let mut told = false;
        let (data, version) = loop {
            match raw.next(OpCode::GetData).await {
                ReceivedPacket::Event(event) => {
                    assert_eq!(event.kind, EventKind::DataChanged);
                    assert!(watched, "no watch is set, so nothing can be told");
                    told = true;
                    watched = false;
                }
                ReceivedPacket::Reply(reply) => match reply.result.unwrap() {
                    Response::GetData { data, stat } => break (data, stat.version),
                    other => panic!("{other:?}"),
                },
            }
        };
        if seen.is_some_and(|before| before != version) {
            assert!(told, "version {version} was read before it was announced");
        }
        seen = Some(version);
        watched = true;
        if data == "200" {
            break;
        }
    }
    changing.await.unwrap();
}

#[tokio::test]
async fn resuming_a_session_requires_its_password() {
    let bed = bed().await;
    let mut first = Raw::connect(&bed, None, 30_000).await;
    let hello = first.hello.clone();
    assert_eq!(hello.timeout, 30_000);
    let made = first.ask(1, create("/e", CreateMode::Ephemeral)).await;
    made.unwrap();
    drop(first);

    let forged = ConnectResponse {
        password: Bytes::from_static(&[7; 16]),
        ..hello.clone()
    };
    let refused = Raw::connect(&bed, Some(&forged), 30_000).await;
    assert!(refused.hello.is_expired());

    let mut second = Raw::connect(&bed, Some(&hello), 30_000).await;
    assert_eq!(second.hello, hello);
    let owner = match second.ask(1, get("/e", false)).await {
        Ok(Response::GetData { stat, .. }) => stat.ephemeral_owner,
        other => panic!("{other:?}"),
    };
    assert_eq!(owner, hello.session_id);

    // A session belongs to one connection: the newer one takes it.
    let mut third = Raw::connect(&bed, Some(&hello), 30_000).await;
    assert_eq!(second.frame().await, None);
    third.ask(1, Request::CloseSession).await.unwrap();
    assert_eq!(third.frame().await, None);
    assert_eq!(bed.own.stat(&path("/e")).await.unwrap(), None);
    let ended = Raw::connect(&bed, Some(&hello), 30_000).await;
    assert!(ended.hello.is_expired());
}

#[tokio::test]
async fn a_silent_client_loses_its_session() {
    let bed = bed().await;
    let mut raw = Raw::connect(&bed, None, 1).await;
    assert_eq!(raw.hello.timeout, 1000, "the timeout has a lower bound");
    let mut watcher = bed.own.watch(&path("/e")).await.unwrap();
    raw.ask(1, create("/e", CreateMode::Ephemeral))
        .await
        .unwrap();
    for expected in [
        WatchEvent::Created(path("/e")),
        WatchEvent::Deleted(path("/e")),
    ] {
        assert_eq!(watcher.next().await, Some(expected));
    }
    assert_eq!(raw.frame().await, None, "its connection is closed");
    let late = Raw::connect(&bed, Some(&raw.hello), 1000).await;
    assert!(late.hello.is_expired());
    let bounded = Raw::connect(&bed, None, i32::MAX).await;
    assert_eq!(bounded.hello.timeout, 60_000);
}

#[tokio::test]
async fn restored_watches_report_missed_changes() {
    let bed = bed().await;
    for at in ["/same", "/changed", "/gone", "/list", "/deep"] {
        put(&bed.own, at, CreateMode::Persistent).await;
    }
    let mut raw = Raw::connect(&bed, None, 10_000).await;
    raw.send(&[(1, Request::Ping)]).await;
    let ReceivedPacket::Reply(Reply { zxid, .. }) = raw.next(OpCode::Ping).await else {
        panic!("no event was asked for");
    };
    let data = Bytes::from_static(b"1");
    bed.own
        .set(&path("/changed"), data, Version::Any)
        .await
        .unwrap();
    bed.own.delete(&path("/gone"), Version::Any).await.unwrap();
    put(&bed.own, "/list/child", CreateMode::Persistent).await;
    put(&bed.own, "/new", CreateMode::Persistent).await;

    let owned = |list: &[&str]| list.iter().map(|&at| at.to_owned()).collect();
    let restore = Request::SetWatches2 {
        relative_zxid: zxid,
        data: owned(&["/same", "/changed", "/gone"]),
        exist: owned(&["/new", "/later"]),
        child: owned(&["/list", "/deep"]),
        persistent: Vec::new(),
        persistent_recursive: owned(&["/deep"]),
    };
    raw.send(&[(1, restore)]).await;
    for expected in [
        (EventKind::DataChanged, "/changed"),
        (EventKind::Deleted, "/gone"),
        (EventKind::Created, "/new"),
        (EventKind::ChildrenChanged, "/list"),
    ] {
        let (kind, at) = raw.event().await;
        assert_eq!((kind, &*at), expected);
    }
    let ReceivedPacket::Reply(reply) = raw.next(OpCode::SetWatches2).await else {
        panic!("all events have come");
    };
    assert_eq!((reply.xid, reply.result), (-8, Ok(Response::Done)));

    put(&bed.own, "/later", CreateMode::Persistent).await;
    put(&bed.own, "/deep/a", CreateMode::Persistent).await;
    bed.own.delete(&path("/same"), Version::Any).await.unwrap();
    for expected in [
        (EventKind::Created, "/later"),
        (EventKind::Created, "/deep/a"),
        (EventKind::ChildrenChanged, "/deep"),
        (EventKind::Deleted, "/same"),
    ] {
        let (kind, at) = raw.event().await;
        assert_eq!((kind, &*at), expected);
    }
}

#[tokio::test]
async fn watches_are_added_and_removed() {
    let bed = bed().await;
    put(&bed.own, "/p", CreateMode::Persistent).await;
    let mut raw = Raw::connect(&bed, None, 10_000).await;
    let add = Request::AddWatch {
        path: "/p".to_owned(),
        mode: AddWatchMode::Persistent,
    };
    raw.ask(1, add).await.unwrap();
    put(&bed.own, "/p/a", CreateMode::Persistent).await;
    put(&bed.own, "/p/b", CreateMode::Persistent).await;
    for _ in 0..2 {
        let (kind, at) = raw.event().await;
        assert_eq!((kind, &*at), (EventKind::ChildrenChanged, "/p"));
    }
    let remove = |kind| Request::RemoveWatches {
        path: "/p".to_owned(),
        kind,
    };
    raw.ask(2, remove(WatcherKind::Any)).await.unwrap();
    let again = raw.ask(3, remove(WatcherKind::Any)).await;
    assert_eq!(again, Err(ErrorCode::NoWatcher));
    put(&bed.own, "/p/c", CreateMode::Persistent).await;
    // An event would come before this answer.
    raw.ask(4, get("/p", false)).await.unwrap();

    let missing = Request::Exists {
        path: "/none".to_owned(),
        watch: true,
    };
    assert_eq!(raw.ask(5, missing).await, Err(ErrorCode::NoNode));
    put(&bed.own, "/none", CreateMode::Persistent).await;
    assert_eq!(raw.event().await, (EventKind::Created, "/none".to_owned()));
}

#[tokio::test]
async fn malformed_requests_close_only_their_connection() {
    let bed = bed().await;
    let mut good = Raw::connect(&bed, None, 10_000).await;
    for nonsense in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff, 0xff, 0xff, 0xff],
        &[0, 0, 0, 2, 1, 2],
    ] {
        let mut early = UnixStream::connect(bed.socket()).await.unwrap();
        early.write_all(nonsense).await.unwrap();
        let mut rest = Vec::new();
        // A reset is an end, too.
        let _ = early.read_to_end(&mut rest).await;
        assert!(rest.is_empty());

        let mut late = Raw::connect(&bed, None, 10_000).await;
        late.stream.write_all(nonsense).await.unwrap();
        assert_eq!(late.frame().await, None);
    }
    let unknown = [0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0x7f, 0xff];
    good.stream.write_all(&unknown).await.unwrap();
    match good.next(OpCode::Ping).await {
        ReceivedPacket::Reply(reply) => {
            assert_eq!(
                (reply.xid, reply.result),
                (9, Err(ErrorCode::Unimplemented))
            );
        }
        ReceivedPacket::Event(event) => panic!("unexpected {event:?}"),
    }
    let relative = good.ask(1, get("relative", false)).await;
    assert_eq!(relative, Err(ErrorCode::BadArguments));
    good.ask(2, get("/", false)).await.unwrap();
}

#[tokio::test]
async fn only_a_dead_socket_is_replaced() {
    let mut bed = bed().await;
    let at = bed.socket();
    let mode = std::fs::metadata(&at).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let second = StoreSocket::bind(&at).await;
    let cause = std::error::Error::source(&second.unwrap_err())
        .unwrap()
        .to_string();
    assert!(cause.contains("another process is serving it"), "{cause}");

    let client = bed.client().await;
    put(&client, "/e", CreateMode::Ephemeral).await;
    bed.stop().await;
    assert!(!at.exists());
    until(async || bed.own.stat(&path("/e")).await.unwrap().is_none()).await;
    let nobody = socket::connect(&at, ConnectOptions::default()).await;
    let text = nobody.unwrap_err().to_string();
    assert!(text.contains("no process owns this store"), "{text}");

    drop(std::os::unix::net::UnixListener::bind(&at).unwrap());
    assert!(at.exists(), "a dead socket");
    let (_stop, _serving) = serve(&bed.engine, at.clone()).await;
    bed.client().await.get(&TreePath::root()).await.unwrap();

    let file = bed.dir.path().join("file");
    std::fs::write(&file, "text").unwrap();
    let refused = StoreSocket::bind(&file).await;
    assert!(refused.is_err());
    assert_eq!(std::fs::read(&file).unwrap(), b"text");
}
