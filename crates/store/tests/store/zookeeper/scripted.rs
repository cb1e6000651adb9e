//! The client against scripted servers with specific faults.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use nodeyard_store::zookeeper::wire::{
    ConnectRequest, ConnectResponse, MAX_REQUEST, Reply, Request, Response, take_frame,
};
use nodeyard_store::zookeeper::{Host, Options, ZooKeeper};
use nodeyard_store::{Error, Session, Stat, Tree, WatchEvent};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::support::*;

const SESSION: i64 = 0x77;

struct Server {
    listener: UnixListener,
    directory: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("socket")).unwrap();
        Self {
            listener,
            directory,
        }
    }

    fn options(&self) -> Options {
        Options::new(vec![Host::Unix(self.directory.path().join("socket"))])
    }

    /// Takes a client and gives it a session with this timeout.
    async fn accept(&self, timeout: i32) -> Peer {
        let (stream, _) = within("a client", self.listener.accept()).await.unwrap();
        let mut peer = Peer {
            stream,
            received: BytesMut::new(),
        };
        let request = ConnectRequest::decode(peer.frame().await.unwrap()).unwrap();
        assert!(request.session_id == 0 || request.session_id == SESSION);
        let mut out = BytesMut::new();
        ConnectResponse {
            timeout,
            session_id: SESSION,
            password: Bytes::from_static(&[7; 16]),
            read_only: false,
        }
        .encode(&mut out);
        peer.stream.write_all(&out).await.unwrap();
        peer
    }
}

struct Peer {
    stream: UnixStream,
    received: BytesMut,
}

impl Peer {
    /// None when the client has closed the connection.
    async fn frame(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = take_frame(&mut self.received, MAX_REQUEST).unwrap() {
                return Some(frame);
            }
            let read = self.stream.read_buf(&mut self.received);
            match within("a request", read).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    async fn request(&mut self) -> Option<(i32, Request)> {
        Some(Request::decode(self.frame().await?).unwrap())
    }

    async fn answer(&mut self, xid: i32, response: Response) {
        let mut out = BytesMut::new();
        Reply {
            xid,
            zxid: 1,
            result: Ok(response),
        }
        .encode(&mut out);
        self.stream.write_all(&out).await.unwrap();
    }
}

fn record() -> Response {
    Response::GetData {
        data: data("x"),
        stat: Stat::default(),
    }
}

#[tokio::test]
async fn reads_are_retried_and_writes_are_not() {
    let server = Server::start();
    let tree = ZooKeeper::connect(server.options());
    let a = path("/a");
    let serve = async {
        let mut peer = server.accept(10_000).await;
        for _ in 0..2 {
            peer.request().await.unwrap();
        }
        drop(peer);
        let mut peer = server.accept(10_000).await;
        let (xid, request) = peer.request().await.unwrap();
        assert!(matches!(request, Request::GetData { .. }), "{request:?}");
        peer.answer(xid, record()).await;
        peer
    };
    let work = async { tokio::join!(tree.delete(&a, nodeyard_store::Version::Any), tree.get(&a)) };
    let (_peer, (deleted, got)) = tokio::join!(serve, work);
    assert!(matches!(deleted, Err(Error::ConnectionLoss)));
    assert_eq!(got.unwrap().data, "x");
}

#[tokio::test]
async fn a_read_that_closes_every_connection_fails() {
    let server = Server::start();
    let tree = ZooKeeper::connect(server.options());
    let serve = async {
        loop {
            let mut peer = server.accept(10_000).await;
            let (xid, request) = peer.request().await.unwrap();
            match request {
                Request::Sync { path } => {
                    peer.answer(xid, Response::Sync { path }).await;
                    break peer;
                }
                request => assert!(matches!(request, Request::GetData { .. })),
            }
        }
    };
    let work = async {
        let failed = tree.get(&path("/poison")).await;
        assert!(matches!(failed, Err(Error::ConnectionLoss)), "{failed:?}");
        tree.sync().await.unwrap();
    };
    within("both", async { tokio::join!(serve, work) }).await;
}

/// The request for the watch is lost, but the next connection restores all watches, so this one as well.
#[tokio::test]
async fn a_watch_that_was_being_set_is_set_on_the_next_connection() {
    let server = Server::start();
    let tree = ZooKeeper::connect(server.options());
    let a = path("/a");
    let serve = async {
        let mut peer = server.accept(10_000).await;
        let (_, request) = peer.request().await.unwrap();
        assert!(matches!(request, Request::AddWatch { .. }), "{request:?}");
        drop(peer);
        let mut peer = server.accept(10_000).await;
        let (xid, request) = peer.request().await.unwrap();
        let Request::SetWatches2 {
            persistent_recursive,
            ..
        } = request
        else {
            panic!("{request:?}");
        };
        assert_eq!(persistent_recursive, ["/a"]);
        peer.answer(xid, Response::Done).await;
        peer
    };
    let (_peer, watcher) = tokio::join!(serve, tree.watch(&a));
    assert_eq!(next(&mut watcher.unwrap()).await, WatchEvent::Gap);
}

#[tokio::test]
async fn an_oversized_reply_fails_only_its_operation() {
    let server = Server::start();
    let tree = ZooKeeper::connect(server.options());
    let serve = async {
        let mut peer = server.accept(10_000).await;
        peer.request().await.unwrap();
        peer.request().await.unwrap();
        let mut out = BytesMut::new();
        out.put_i32(i32::MAX);
        peer.stream.write_all(&out).await.unwrap();
        let mut peer = server.accept(10_000).await;
        let (xid, _) = peer.request().await.unwrap();
        peer.answer(xid, record()).await;
        peer
    };
    let (large, small) = (path("/large"), path("/small"));
    let work = async { tokio::join!(tree.get(&large), tree.get(&small)) };
    let (_peer, (large, small)) = tokio::join!(serve, work);
    assert!(matches!(large, Err(Error::Backend { .. })), "{large:?}");
    assert_eq!(small.unwrap().data, "x");
}

#[tokio::test]
async fn pings_keep_an_idle_session_alive_and_silence_ends_the_connection() {
    let server = Server::start();
    let tree = ZooKeeper::connect(server.options());
    let mut peer = server.accept(3_000).await;
    for _ in 0..5 {
        let (xid, request) = peer.request().await.unwrap();
        assert_eq!(request, Request::Ping);
        peer.answer(xid, Response::Done).await;
    }
    // From here on it does not answer, and sees the client leave.
    while let Some((_, request)) = peer.request().await {
        assert_eq!(request, Request::Ping);
    }
    state(&*tree, |state| matches!(state, Session::Suspended(_))).await;
}

#[tokio::test]
async fn malformed_replies_close_only_the_connection() {
    let server = Server::start();
    let tree = ZooKeeper::connect(server.options());
    let a = path("/a");
    let serve = async {
        // An answer to a question that was not asked.
        let mut peer = server.accept(10_000).await;
        let (xid, _) = peer.request().await.unwrap();
        peer.answer(xid + 1, record()).await;
        assert!(peer.request().await.is_none());
        // A frame that is no reply.
        let mut peer = server.accept(10_000).await;
        peer.request().await.unwrap();
        peer.stream.write_all(&[0, 0, 0, 1, 9]).await.unwrap();
        assert!(peer.request().await.is_none());
        let mut peer = server.accept(10_000).await;
        let (xid, _) = peer.request().await.unwrap();
        peer.answer(xid, record()).await;
        peer
    };
    let (_peer, got) = tokio::join!(serve, tree.get(&a));
    assert_eq!(got.unwrap().data, "x");
    assert_eq!(
        *tree.session().borrow(),
        Session::Connected(nodeyard_store::SessionId(SESSION))
    );
}

#[tokio::test]
async fn the_task_ends_with_the_last_handle() {
    let server = Server::start();
    let tree = ZooKeeper::connect(server.options());
    let pinned = tree.pinned(nodeyard_store::SessionId(SESSION));
    let mut peer = server.accept(10_000).await;
    drop(tree);
    let ended = tokio::time::timeout(Duration::from_millis(50), peer.request()).await;
    assert!(ended.is_err(), "a handle is left");
    drop(pinned);
    assert_eq!(peer.request().await, None);
}
