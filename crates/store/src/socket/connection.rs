//! One connection: session handshake, requests and replies.

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

use crate::embedded::{ChangeListener, SessionTree, Snapshot, WriteOutcome};
use crate::error::Result as StoreResult;
use crate::path::TreePath;
use crate::tree::Tree as _;
use crate::zookeeper::wire::{
    AddWatchMode, ConnectRequest, ConnectResponse, ErrorCode, MAX_REQUEST, Reply, Request,
    Response, WireError, take_frame,
};

use super::reply_queue::{Overflow, ReplyQueue};
use super::sessions::{AttachedSession, ClientSessions};
use super::translate::{self, ResponseShape, error_code, path};
use super::watches::{ClientWatches, WatchKind};

/// The maximum size of a connect request.
const MAX_CONNECT_REQUEST_LEN: usize = 4096;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum number of concurrent writes of one client.
const MAX_PENDING_WRITES: usize = 1024;

/// Why a connection was closed by the server.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error("protocol error")]
    Protocol(#[from] WireError),
    #[error("timed out waiting for the client")]
    Silent,
    #[error(transparent)]
    Slow(#[from] Overflow),
    #[error("connection failed")]
    Io(#[from] io::Error),
    #[error("the outcome of a write is unknown")]
    Unknown,
    #[error("the session ended or was taken over by another connection")]
    Lost,
}

/// Serves a client until it disconnects. Its session continues unless it was closed.
pub(super) async fn serve(
    stream: UnixStream,
    sessions: Arc<ClientSessions>,
) -> Result<(), ConnectionError> {
    let (reader, mut writer) = stream.into_split();
    let mut frames = FrameReader {
        reader,
        received: BytesMut::new(),
    };
    let greeting =
        tokio::time::timeout(CONNECT_TIMEOUT, frames.next(MAX_CONNECT_REQUEST_LEN)).await;
    let Some(frame) = greeting.map_err(|_| ConnectionError::Silent)?? else {
        return Ok(());
    };
    let request = ConnectRequest::decode(frame)?;
    let mut hello = BytesMut::new();
    let Some(attached) = sessions.attach(&request) else {
        ConnectResponse::expired().encode(&mut hello);
        writer.write_all(&hello).await?;
        return Ok(());
    };
    let AttachedSession {
        tree,
        response,
        lost,
    } = attached;
    response.encode(&mut hello);
    writer.write_all(&hello).await?;

    let reply_queue = Arc::new(ReplyQueue::default());
    let watches = Arc::new(ClientWatches::new(reply_queue.clone()));
    let listener: Arc<dyn ChangeListener> = watches.clone();
    sessions.engine.add_listener(Arc::downgrade(&listener));
    let connection = ClientConnectionState {
        sessions,
        tree,
        reply_queue: reply_queue.clone(),
        watches,
    };
    let reading = async {
        let result = connection.run(&mut frames).await;
        connection.reply_queue.finish();
        result
    };
    let sending = send(&reply_queue, &mut writer);
    tokio::pin!(reading, sending);
    tokio::select! {
        result = &mut reading => {
            result?;
            // Sends the remaining replies.
            match tokio::time::timeout(CONNECT_TIMEOUT, sending).await {
                Ok(result) => result,
                Err(_) => Err(ConnectionError::Silent),
            }
        }
        result = &mut sending => result,
        _ = lost => Err(ConnectionError::Lost),
    }
}

async fn send(
    reply_queue: &ReplyQueue,
    writer: &mut OwnedWriteHalf,
) -> Result<(), ConnectionError> {
    while let Some(frame) = reply_queue.next().await? {
        writer.write_all(&frame).await?;
    }
    Ok(())
}

struct FrameReader {
    reader: OwnedReadHalf,
    received: BytesMut,
}

impl FrameReader {
    /// Reads the next frame. Returns `None` at the end of the stream. Cancel-safe.
    async fn next(&mut self, limit: usize) -> Result<Option<Bytes>, ConnectionError> {
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

/// A finished write: the `xid` of its request, the kind of response, and the result.
type FinishedWrite = (i32, ResponseShape, StoreResult<Vec<WriteOutcome>>);

/// Concurrent writes, which are answered in order.
type PendingWrites = FuturesOrdered<BoxFuture<'static, FinishedWrite>>;

struct ClientConnectionState {
    sessions: Arc<ClientSessions>,
    tree: Arc<SessionTree>,
    reply_queue: Arc<ReplyQueue>,
    watches: Arc<ClientWatches>,
}

enum ConnectionEvent {
    GoOn,
    Stop,
}

impl ClientConnectionState {
    async fn run(&self, frames: &mut FrameReader) -> Result<(), ConnectionError> {
        let mut writes = PendingWrites::new();
        loop {
            self.reply_queue.wait_for_room().await;
            tokio::select! {
                biased;
                Some(done) = writes.next() => self.reply_to_write(done).await?,
                frame = frames.next(MAX_REQUEST), if writes.len() < MAX_PENDING_WRITES => {
                    let Some(frame) = frame? else { return Ok(()) };
                    self.sessions.touch(self.tree.id());
                    let next = match Request::decode(frame) {
                        Ok((xid, request)) => self.handle(xid, request, &mut writes).await?,
                        Err(WireError::UnknownOperation { xid, .. }) => {
                            self.finish_writes(&mut writes).await?;
                            self.reply_error(xid, ErrorCode::Unimplemented).await;
                            ConnectionEvent::GoOn
                        }
                        Err(error) => return Err(error.into()),
                    };
                    if let ConnectionEvent::Stop = next {
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
        writes: &mut PendingWrites,
    ) -> Result<ConnectionEvent, ConnectionError> {
        if let Request::Create(_)
        | Request::Create2(_)
        | Request::Delete { .. }
        | Request::SetData { .. }
        | Request::Multi(_) = request
        {
            self.start_write(xid, request, writes).await?;
            return Ok(ConnectionEvent::GoOn);
        }
        if let Request::Ping = request {
            self.reply(xid, Ok(Response::Done)).await;
            return Ok(ConnectionEvent::GoOn);
        }
        // Other requests must see earlier writes of this client.
        self.finish_writes(writes).await?;
        match request {
            Request::CloseSession => {
                self.sessions.end(self.tree.id()).await;
                self.reply(xid, Ok(Response::Done)).await;
                return Ok(ConnectionEvent::Stop);
            }
            Request::GetChildren { .. } | Request::GetChildren2 { .. } => {
                self.children(xid, request).await;
            }
            Request::SetWatches { .. } | Request::SetWatches2 { .. } => {
                match translate::restored(request) {
                    Err(error) => self.reply_error(xid, error).await,
                    Ok(restored) => {
                        self.reply_from_snapshot(xid, |snapshot| {
                            self.watches
                                .restore(restored, snapshot)
                                .map_err(|error| error_code(&error))?;
                            Ok(Response::Done)
                        })
                        .await;
                    }
                }
            }
            Request::Sync { path } => {
                // The previous connection of the session may have writes in flight.
                let synced = self.tree.sync().await.map_err(|error| error_code(&error));
                self.reply(xid, synced.map(|()| Response::Sync { path }))
                    .await;
            }
            request => {
                self.reply_from_snapshot(xid, |snapshot| self.read(request, snapshot))
                    .await;
            }
        }
        Ok(ConnectionEvent::GoOn)
    }

    async fn start_write(
        &self,
        xid: i32,
        request: Request,
        writes: &mut PendingWrites,
    ) -> Result<(), ConnectionError> {
        match translate::parse_write(request) {
            Some(Ok((work, shape))) => {
                let write = self.tree.write(work);
                writes.push_back(Box::pin(async move { (xid, shape, write.await) }));
            }
            Some(Err(error)) => {
                self.finish_writes(writes).await?;
                self.reply_error(xid, error).await;
            }
            None => {}
        }
        Ok(())
    }

    async fn reply_to_write(
        &self,
        (xid, shape, result): FinishedWrite,
    ) -> Result<(), ConnectionError> {
        if let Err(error @ crate::Error::Backend { .. }) = &result {
            tracing::warn!(%error, "failed to execute write of a client");
        }
        let answer = translate::write_response(&shape, result).ok_or(ConnectionError::Unknown)?;
        self.reply(xid, answer).await;
        Ok(())
    }

    /// Waits for all concurrent writes and replies to them.
    async fn finish_writes(&self, writes: &mut PendingWrites) -> Result<(), ConnectionError> {
        while let Some(done) = writes.next().await {
            self.reply_to_write(done).await?;
        }
        Ok(())
    }

    async fn reply(&self, xid: i32, result: Result<Response, ErrorCode>) {
        self.reply_from_snapshot(xid, |_| result).await;
    }

    async fn reply_error(&self, xid: i32, error: ErrorCode) {
        self.reply(xid, Err(error)).await;
    }

    /// Replies from the latest state. The reply is queued while no change can be published, so events of later changes
    /// come after it.
    async fn reply_from_snapshot(
        &self,
        xid: i32,
        look: impl FnOnce(&Snapshot) -> Result<Response, ErrorCode>,
    ) {
        self.sessions
            .engine
            .with_latest(|snapshot| {
                let reply = Reply {
                    xid,
                    zxid: snapshot.zxid,
                    result: look(snapshot),
                };
                self.reply_queue.push(|out| reply.encode(out));
            })
            .await;
    }

    fn read(&self, request: Request, snapshot: &Snapshot) -> Result<Response, ErrorCode> {
        match request {
            Request::Exists { path: at, watch } => {
                let at = path(&at)?;
                let stat = snapshot.stat(&at).map_err(|error| error_code(&error))?;
                if watch {
                    self.watches.add(at, WatchKind::Data);
                }
                stat.map(Response::Exists).ok_or(ErrorCode::NoNode)
            }
            Request::GetData { path: at, watch } => {
                let at = path(&at)?;
                let record = snapshot.get(&at).map_err(|error| error_code(&error))?;
                if watch {
                    self.watches.add(at, WatchKind::Data);
                }
                Ok(Response::GetData {
                    data: record.data,
                    stat: record.stat,
                })
            }
            Request::AddWatch { path: at, mode } => {
                let kind = match mode {
                    AddWatchMode::Persistent => WatchKind::Persistent,
                    AddWatchMode::PersistentRecursive => WatchKind::Recursive,
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

    /// Replies with a listing, which is created on the blocking pool after reserving its position and adding its watch.
    async fn children(&self, xid: i32, request: Request) {
        let (at, watch, with_stat) = match request {
            Request::GetChildren { path, watch } => (path, watch, false),
            Request::GetChildren2 { path, watch } => (path, watch, true),
            _ => return,
        };
        let at = match path(&at) {
            Ok(at) => at,
            Err(error) => return self.reply_error(xid, error).await,
        };
        let begun = self.sessions.engine.with_latest(|snapshot| {
            // Child watches require an existing record.
            if watch && matches!(snapshot.stat(&at), Ok(Some(_))) {
                self.watches.add(at.clone(), WatchKind::Children);
            }
            (snapshot.clone(), self.reply_queue.reserve())
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
            // Fails if the connection was closed.
            let _ = place.send(frame.freeze());
        });
        if let Err(error) = listed.await {
            tracing::error!(%error, "failed to list children for a client");
        }
    }
}

fn list(snapshot: &Snapshot, at: &TreePath, with_stat: bool) -> Result<Response, ErrorCode> {
    let listing = snapshot.children(at).map_err(|error| error_code(&error))?;
    let names = listing.names;
    Ok(if with_stat {
        let stat = listing.stat;
        Response::GetChildren2 { names, stat }
    } else {
        Response::GetChildren { names }
    })
}
