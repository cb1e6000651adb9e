//! One connection: its greeting, its requests in order, its answers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesOrdered;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::embedded::{Listener, Outcome, SessionTree, Snapshot};
use crate::error::Result as StoreResult;
use crate::path::TreePath;
use crate::tree::Tree as _;
use crate::zookeeper::wire::{
    AddWatchMode, ConnectRequest, ConnectResponse, ErrorCode, MAX_REQUEST, Reply, Request,
    Response, WireError, take_frame,
};

use super::outbox::{Outbox, Overflow};
use super::sessions::{Attached, Sessions};
use super::translate::{self, Shape, code, path};
use super::watches::{Kind, Watches};

/// A greeting is far smaller than this, and comes at once.
const MAX_GREETING: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(10);

/// Writes of one client that may be under way together.
const WINDOW: usize = 1024;

/// Why a connection ended, other than by the client's wish.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("the client sent something that is not the protocol")]
    Protocol(#[from] WireError),
    #[error("the client did not say what it wants")]
    Silent,
    #[error(transparent)]
    Slow(#[from] Overflow),
    #[error("reading or writing failed")]
    Io(#[from] io::Error),
    #[error("the outcome of a write cannot be known, so the client must not be told one")]
    Unknown,
    #[error("the session was ended or taken over by another connection")]
    Lost,
}

/// Serves a client until it goes. Its session stays, unless it was closed.
pub(super) async fn serve(stream: UnixStream, sessions: Arc<Sessions>) -> Result<(), Broken> {
    let (reader, mut writer) = stream.into_split();
    let mut frames = Frames {
        reader,
        received: BytesMut::new(),
    };
    let greeting = tokio::time::timeout(PATIENCE, frames.next(MAX_GREETING)).await;
    let Some(frame) = greeting.map_err(|_| Broken::Silent)?? else {
        return Ok(());
    };
    let request = ConnectRequest::decode(frame)?;
    let mut hello = BytesMut::new();
    let Some(attached) = sessions.attach(&request) else {
        ConnectResponse::expired().encode(&mut hello);
        writer.write_all(&hello).await?;
        return Ok(());
    };
    let Attached {
        tree,
        response,
        lost,
    } = attached;
    response.encode(&mut hello);
    writer.write_all(&hello).await?;

    let outbox = Arc::new(Outbox::default());
    let watches = Arc::new(Watches::new(outbox.clone()));
    let listener: Arc<dyn Listener> = watches.clone();
    sessions.engine.listen(Arc::downgrade(&listener));
    let connection = Connection {
        sessions,
        tree,
        outbox: outbox.clone(),
        watches,
    };
    let reading = async {
        let result = connection.run(&mut frames).await;
        connection.outbox.finish();
        result
    };
    let sending = send(&outbox, &mut writer);
    tokio::pin!(reading, sending);
    tokio::select! {
        result = &mut reading => {
            result?;
            // The answer to the last request is still to be sent.
            match tokio::time::timeout(PATIENCE, sending).await {
                Ok(result) => result,
                Err(_) => Err(Broken::Silent),
            }
        }
        result = &mut sending => result,
        _ = lost => Err(Broken::Lost),
    }
}

async fn send(outbox: &Outbox, writer: &mut OwnedWriteHalf) -> Result<(), Broken> {
    while let Some(frame) = outbox.next().await? {
        writer.write_all(&frame).await?;
    }
    Ok(())
}

struct Frames {
    reader: OwnedReadHalf,
    received: BytesMut,
}

impl Frames {
    /// The next frame, or none if the client has gone. Nothing is lost if this is cancelled.
    async fn next(&mut self, limit: usize) -> Result<Option<Bytes>, Broken> {
        loop {
            if let Some(frame) = take_frame(&mut self.received, limit)? {
                return Ok(Some(frame));
            }
            if self.reader.read_buf(&mut self.received).await? == 0 {
                return Ok(None);
            }
        }
    }
}

/// What came of a write, with the `xid` of its request and how to answer it.
type Done = (i32, Shape, StoreResult<Vec<Outcome>>);

/// The writes under way, which are answered in order.
type Writes = FuturesOrdered<BoxFuture<'static, Done>>;

struct Connection {
    sessions: Arc<Sessions>,
    tree: Arc<SessionTree>,
    outbox: Arc<Outbox>,
    watches: Arc<Watches>,
}

enum Next {
    GoOn,
    Stop,
}

impl Connection {
    async fn run(&self, frames: &mut Frames) -> Result<(), Broken> {
        let mut writes = Writes::new();
        loop {
            self.outbox.room().await;
            tokio::select! {
                biased;
                Some(done) = writes.next() => self.answer_write(done).await?,
                frame = frames.next(MAX_REQUEST), if writes.len() < WINDOW => {
                    let Some(frame) = frame? else { return Ok(()) };
                    self.sessions.heard(self.tree.id());
                    let next = match Request::decode(frame) {
                        Ok((xid, request)) => self.handle(xid, request, &mut writes).await?,
                        Err(WireError::UnknownOperation { xid, .. }) => {
                            self.settle(&mut writes).await?;
                            self.refuse(xid, ErrorCode::Unimplemented).await;
                            Next::GoOn
                        }
                        Err(error) => return Err(error.into()),
                    };
                    if let Next::Stop = next {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn handle(
        &self,
        xid: i32,
        request: Request,
        writes: &mut Writes,
    ) -> Result<Next, Broken> {
        if let Request::Create(_)
        | Request::Create2(_)
        | Request::Delete { .. }
        | Request::SetData { .. }
        | Request::Multi(_) = request
        {
            self.begin_write(xid, request, writes).await?;
            return Ok(Next::GoOn);
        }
        if let Request::Ping = request {
            self.reply(xid, Ok(Response::Done)).await;
            return Ok(Next::GoOn);
        }
        // Everything else must see what this client wrote before.
        self.settle(writes).await?;
        match request {
            Request::CloseSession => {
                self.sessions.end(self.tree.id()).await;
                self.reply(xid, Ok(Response::Done)).await;
                return Ok(Next::Stop);
            }
            Request::GetChildren { .. } | Request::GetChildren2 { .. } => {
                self.children(xid, request).await;
            }
            Request::SetWatches { .. } | Request::SetWatches2 { .. } => {
                match translate::restored(request) {
                    Err(error) => self.refuse(xid, error).await,
                    Ok(restored) => {
                        self.look(xid, |snapshot| {
                            self.watches
                                .restore(restored, snapshot)
                                .map_err(|error| code(&error))?;
                            Ok(Response::Done)
                        })
                        .await;
                    }
                }
            }
            Request::Sync { path } => {
                // The connection that had the session before may have left writes under way.
                let synced = self.tree.sync().await.map_err(|error| code(&error));
                self.reply(xid, synced.map(|()| Response::Sync { path }))
                    .await;
            }
            request => {
                self.look(xid, |snapshot| self.read(request, snapshot))
                    .await;
            }
        }
        Ok(Next::GoOn)
    }

    async fn begin_write(
        &self,
        xid: i32,
        request: Request,
        writes: &mut Writes,
    ) -> Result<(), Broken> {
        match translate::work(request) {
            Some(Ok((work, shape))) => {
                let write = self.tree.write(work);
                writes.push_back(Box::pin(async move { (xid, shape, write.await) }));
            }
            Some(Err(error)) => {
                self.settle(writes).await?;
                self.refuse(xid, error).await;
            }
            None => {}
        }
        Ok(())
    }

    async fn answer_write(&self, (xid, shape, result): Done) -> Result<(), Broken> {
        if let Err(error @ crate::Error::Backend { .. }) = &result {
            tracing::warn!(%error, "a client's write failed");
        }
        let answer = translate::answer(&shape, result).ok_or(Broken::Unknown)?;
        self.reply(xid, answer).await;
        Ok(())
    }

    /// Answers all writes that are under way.
    async fn settle(&self, writes: &mut Writes) -> Result<(), Broken> {
        while let Some(done) = writes.next().await {
            self.answer_write(done).await?;
        }
        Ok(())
    }

    async fn reply(&self, xid: i32, result: Result<Response, ErrorCode>) {
        self.look(xid, |_| result).await;
    }

    async fn refuse(&self, xid: i32, error: ErrorCode) {
        self.reply(xid, Err(error)).await;
    }

    /// Answers from the newest state. The answer takes its place in the outbox while no change can be
    /// published, so events of later changes come after it.
    async fn look(&self, xid: i32, look: impl FnOnce(&Snapshot) -> Result<Response, ErrorCode>) {
        self.sessions
            .engine
            .look(|snapshot| {
                let reply = Reply {
                    xid,
                    zxid: snapshot.zxid,
                    result: look(snapshot),
                };
                self.outbox.push(|out| reply.encode(out));
            })
            .await;
    }

    fn read(&self, request: Request, snapshot: &Snapshot) -> Result<Response, ErrorCode> {
        match request {
            Request::Exists { path: at, watch } => {
                let at = path(&at)?;
                let stat = snapshot.stat(&at).map_err(|error| code(&error))?;
                if watch {
                    self.watches.add(at, Kind::Data);
                }
                stat.map(Response::Exists).ok_or(ErrorCode::NoNode)
            }
            Request::GetData { path: at, watch } => {
                let at = path(&at)?;
                let record = snapshot.get(&at).map_err(|error| code(&error))?;
                if watch {
                    self.watches.add(at, Kind::Data);
                }
                Ok(Response::GetData {
                    data: record.data,
                    stat: record.stat,
                })
            }
            Request::AddWatch { path: at, mode } => {
                let kind = match mode {
                    AddWatchMode::Persistent => Kind::Persistent,
                    AddWatchMode::PersistentRecursive => Kind::Recursive,
                };
                self.watches.add(path(&at)?, kind);
                Ok(Response::Done)
            }
            Request::RemoveWatches { path: at, kind } => {
                if self.watches.remove(&path(&at)?, kind) {
                    Ok(Response::Done)
                } else {
                    Err(ErrorCode::NoWatcher)
                }
            }
            _ => Err(ErrorCode::Unimplemented),
        }
    }

    /// A list may be long, so it is made on the blocking pool; its place and its watch are taken first.
    async fn children(&self, xid: i32, request: Request) {
        let (at, watch, with_stat) = match request {
            Request::GetChildren { path, watch } => (path, watch, false),
            Request::GetChildren2 { path, watch } => (path, watch, true),
            _ => return,
        };
        let at = match path(&at) {
            Ok(at) => at,
            Err(error) => return self.refuse(xid, error).await,
        };
        let begun = self.sessions.engine.look(|snapshot| {
            // Only a record that exists can have this watch.
            if watch && matches!(snapshot.stat(&at), Ok(Some(_))) {
                self.watches.add(at.clone(), Kind::Children);
            }
            (snapshot.clone(), self.outbox.reserve())
        });
        let (snapshot, place) = begun.await;
        let listed = tokio::task::spawn_blocking(move || {
            let reply = Reply {
                xid,
                zxid: snapshot.zxid,
                result: list(&snapshot, &at, with_stat),
            };
            let mut frame = BytesMut::new();
            reply.encode(&mut frame);
            // The connection may be gone.
            let _ = place.send(frame.freeze());
        });
        if let Err(error) = listed.await {
            tracing::error!(%error, "listing children for a client failed");
        }
    }
}

fn list(snapshot: &Snapshot, at: &TreePath, with_stat: bool) -> Result<Response, ErrorCode> {
    let listing = snapshot.children(at).map_err(|error| code(&error))?;
    let names = listing.names;
    Ok(if with_stat {
        let stat = listing.stat;
        Response::GetChildren2 { names, stat }
    } else {
        Response::GetChildren { names }
    })
}
