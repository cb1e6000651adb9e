//! The session task while connected: sends requests and dispatches replies and events.
//!
//! Requests are pipelined and batched into one write. Replies arrive in the order of the requests.

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use nodeyard_model::with_causes;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::call::{CallResult, PendingCall, SessionCallError, SessionCommand, WatchRequest};
use super::dial::ServerConnection;
use super::session::{SessionTask, until};
use super::wire::{
    AddWatchMode, ErrorCode, Event, MAX_REPLY, OpCode, ReplyHeader, Request, Response, WatcherKind,
    WireError, XID_EVENT, XID_PING, XID_SET_WATCHES, take_frame,
};
use crate::tree::Session;

/// The maximum size of batched requests.
const MAX_BATCHED_BYTES: usize = 256 * 1024;
const READ_BUFFER_LEN: usize = 64 * 1024;
/// The maximum size of paths in one packet that restores watches.
const MAX_RESTORE_BYTES: usize = 128 * 1024;
/// A read that was the oldest pending request when this many connections were lost is failed as their likely cause.
const MAX_READ_ATTEMPTS: u32 = 10;

/// Why a connection was closed.
#[derive(Debug, thiserror::Error)]
enum DisconnectReason {
    #[error("the server closed the connection")]
    Eof,
    #[error("connection failed")]
    Io(#[from] io::Error),
    #[error("no response from the server for {0:?}")]
    Silent(Duration),
    #[error("the server sent a malformed packet")]
    Wire(#[from] WireError),
    #[error("the server sent an unexpected reply")]
    OutOfOrder,
    #[error("the server failed to restore the watches (error {})", .0.number())]
    WatchesNotRestored(ErrorCode),
    #[error("the server was removed from the list")]
    Removed,
}

/// The state of one connection.
#[derive(Default)]
struct ActiveConnection {
    send_buffer: BytesMut,
    /// Written bytes that were not flushed.
    unflushed: bool,
    pending: VecDeque<PendingReply>,
    last_xid: i32,
    answered: bool,
    close_sent: bool,
    closed: bool,
}

struct PendingReply {
    xid: i32,
    opcode: OpCode,
    then: ReplyAction,
}

/// What to do with a reply.
enum ReplyAction {
    /// Can be repeated on another connection.
    Read(PendingCall),
    Write(oneshot::Sender<CallResult>),
    Watch(String),
    Restored(Vec<String>),
    Nothing,
    Close,
}

impl ActiveConnection {
    fn send(&mut self, request: &Request, then: ReplyAction) {
        let opcode = request.opcode();
        let xid = match opcode {
            OpCode::SetWatches2 => XID_SET_WATCHES,
            _ => {
                self.last_xid = self.last_xid.checked_add(1).unwrap_or(1);
                self.last_xid
            }
        };
        request.encode(xid, &mut self.send_buffer);
        self.pending.push_back(PendingReply { xid, opcode, then });
    }

    /// Sends a ping. Its reply is out of order and not awaited.
    fn ping(&mut self) {
        Request::Ping.encode(XID_PING, &mut self.send_buffer);
    }

    fn has_output(&self) -> bool {
        self.unflushed || !self.send_buffer.is_empty()
    }

    /// Frees buffers that grew in a burst.
    fn rest(&mut self) {
        if self.pending.is_empty() && self.send_buffer.is_empty() {
            self.pending = VecDeque::new();
            self.send_buffer = BytesMut::new();
        }
    }
}

impl SessionTask {
    /// Serves one connection until it is lost. Breaks if the session task should end.
    pub(super) async fn serve(&mut self, connection: ServerConnection) -> ControlFlow<()> {
        let ServerConnection {
            host,
            stream,
            response,
            received: mut inbox,
        } = connection;
        let timeout = Duration::from_millis(u64::from(response.timeout.unsigned_abs()));
        let (ping_every, silence) = (timeout / 3, timeout / 3 * 2);
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut link = ActiveConnection::default();
        let (mut heard, mut sent) = (Instant::now(), Instant::now());
        let timer = tokio::time::sleep(ping_every);
        tokio::pin!(timer);

        self.restore_watches(&mut link);
        for command in std::mem::take(&mut self.queue) {
            self.start(&mut link, command);
        }
        let lost = loop {
            if let Err(lost) = self.receive(&mut link, &mut inbox) {
                break lost;
            }
            if link.closed {
                return ControlFlow::Break(());
            }
            while link.send_buffer.len() < MAX_BATCHED_BYTES {
                match self.commands.try_recv() {
                    Ok(command) => self.start(&mut link, command),
                    Err(_) => break,
                }
            }
            self.send_close(&mut link);
            inbox.reserve(READ_BUFFER_LEN);
            let deadline = self.closing.as_ref().map(|closing| closing.deadline);
            tokio::select! {
                read = reader.read_buf(&mut inbox) => match read {
                    Ok(0) => break DisconnectReason::Eof,
                    Ok(_) => heard = Instant::now(),
                    Err(error) => break DisconnectReason::Io(error),
                },
                written = write_some(&mut writer, &mut link.send_buffer), if link.has_output() => match written {
                    Ok(count) => {
                        link.unflushed = count > 0;
                        sent = Instant::now();
                    }
                    Err(error) => break DisconnectReason::Io(error),
                },
                command = self.commands.recv(), if link.send_buffer.len() < MAX_BATCHED_BYTES => match command {
                    Some(command) => self.start(&mut link, command),
                    None => return ControlFlow::Break(()),
                },
                () = &mut timer => {
                    let now = Instant::now();
                    if now >= heard + silence {
                        // This process may have been suspended, with the reply waiting to be read.
                        match reader.read_buf(&mut inbox).now_or_never() {
                            Some(Ok(count)) if count > 0 => heard = now,
                            _ => break DisconnectReason::Silent(silence),
                        }
                    }
                    if now >= sent + ping_every {
                        link.rest();
                        link.ping();
                        sent = now;
                    }
                    self.remove_unused_watches(&mut link);
                    timer.as_mut().reset((sent + ping_every).min(heard + silence));
                },
                changed = self.hosts.changed() => match changed {
                    Ok(()) if self.hosts.borrow().contains(&host) => {}
                    Ok(()) => break DisconnectReason::Removed,
                    Err(_) => return ControlFlow::Break(()),
                },
                () = until(deadline) => return ControlFlow::Break(()),
            }
        };
        if self.closing.is_none() {
            tracing::warn!(server = %host, reason = with_causes(&lost), "connection to ZooKeeper lost");
        }
        self.abandon(link);
        ControlFlow::Continue(())
    }

    /// Restores the watches before other requests, so that listings after the gap miss no changes.
    fn restore_watches(&self, link: &mut ActiveConnection) {
        let mut send = |paths: Vec<String>| {
            let request = Request::SetWatches2 {
                relative_zxid: self.last_zxid,
                data: Vec::new(),
                exist: Vec::new(),
                child: Vec::new(),
                persistent: Vec::new(),
                persistent_recursive: paths.clone(),
            };
            link.send(&request, ReplyAction::Restored(paths));
        };
        let mut batch = Vec::new();
        let mut size = 0;
        for path in self.watches.paths() {
            size += path.len();
            batch.push(path.to_owned());
            if size > MAX_RESTORE_BYTES {
                send(std::mem::take(&mut batch));
                size = 0;
            }
        }
        if !batch.is_empty() {
            send(batch);
        }
    }

    fn start(&mut self, link: &mut ActiveConnection, command: SessionCommand) {
        match self.check_command(command) {
            Some(SessionCommand::Call(call)) => self.start_call(link, call),
            Some(SessionCommand::Watch(call)) => self.start_watch(link, call),
            Some(SessionCommand::Close(_)) | None => {}
        }
    }

    fn start_call(&mut self, link: &mut ActiveConnection, mut call: PendingCall) {
        if let Request::Exists { path, watch } = &mut call.request {
            // On a retry the watch has already fired because of the lost connection.
            *watch = match call.once.take() {
                Some(once) => self.watches.add_once(path, once),
                None => false,
            };
        }
        if call.request.is_read() {
            let request = call.request.clone();
            link.send(&request, ReplyAction::Read(call));
        } else {
            link.send(&call.request, ReplyAction::Write(call.reply));
        }
    }

    fn start_watch(&mut self, link: &mut ActiveConnection, call: WatchRequest) {
        if self.watches.add(&call.path, call.member, call.reply) {
            let request = Request::AddWatch {
                path: call.path.clone(),
                mode: AddWatchMode::PersistentRecursive,
            };
            link.send(&request, ReplyAction::Watch(call.path));
        }
    }

    fn remove_unused_watches(&mut self, link: &mut ActiveConnection) {
        for path in self.watches.remove_dropped() {
            let request = Request::RemoveWatches {
                path,
                kind: WatcherKind::Any,
            };
            link.send(&request, ReplyAction::Nothing);
        }
    }

    fn send_close(&mut self, link: &mut ActiveConnection) {
        if self.closing.is_some() && !link.close_sent {
            link.close_sent = true;
            link.send(&Request::CloseSession, ReplyAction::Close);
        }
    }

    fn receive(
        &mut self,
        link: &mut ActiveConnection,
        inbox: &mut BytesMut,
    ) -> Result<(), DisconnectReason> {
        loop {
            match take_frame(inbox, MAX_REPLY) {
                Ok(Some(frame)) => self.receive_frame(link, &frame)?,
                Ok(None) => return Ok(()),
                Err(error) => {
                    // A retry would return the same response.
                    if let WireError::TooLarge { size, .. } = error
                        && let Some(PendingReply {
                            then: ReplyAction::Read(call),
                            ..
                        }) = link.pending.pop_front()
                    {
                        let _ = call.reply.send(Err(SessionCallError::TooLarge(size)));
                    }
                    return Err(error.into());
                }
            }
        }
    }

    fn receive_frame(
        &mut self,
        link: &mut ActiveConnection,
        frame: &Bytes,
    ) -> Result<(), DisconnectReason> {
        let (header, body) = ReplyHeader::decode(frame)?;
        if !link.answered {
            link.answered = true;
            self.failures = 0;
        }
        self.last_zxid = self.last_zxid.max(header.zxid);
        match header.xid {
            XID_EVENT => self.watches.dispatch(&Event::decode(body)?),
            XID_PING => {}
            xid => match link.pending.pop_front_if(|pending| pending.xid == xid) {
                Some(pending) => self.handle_reply(link, pending, header.error, body)?,
                None => return Err(DisconnectReason::OutOfOrder),
            },
        }
        Ok(())
    }

    fn handle_reply(
        &mut self,
        link: &mut ActiveConnection,
        pending: PendingReply,
        error: Option<ErrorCode>,
        body: Bytes,
    ) -> Result<(), DisconnectReason> {
        match pending.then {
            ReplyAction::Read(PendingCall { reply, .. }) | ReplyAction::Write(reply) => {
                let answer = match error {
                    None => Response::decode(pending.opcode, body),
                    Some(code) => {
                        let _ = reply.send(Err(failure(code)));
                        return Ok(());
                    }
                };
                match answer {
                    Ok(response) => {
                        let _ = reply.send(Ok(response));
                    }
                    Err(error) => {
                        let _ = reply.send(Err(SessionCallError::ConnectionLoss));
                        return Err(error.into());
                    }
                }
            }
            ReplyAction::Watch(path) => match error {
                None => self.watches.confirm(&path),
                Some(code) => self.watches.refuse(&path, failure(code)),
            },
            ReplyAction::Restored(paths) => match error {
                None => paths.iter().for_each(|path| self.watches.restored(path)),
                Some(code) => return Err(DisconnectReason::WatchesNotRestored(code)),
            },
            ReplyAction::Nothing => {}
            ReplyAction::Close => link.closed = true,
        }
        Ok(())
    }

    /// Requeues pending reads at the front, and fails writes with unknown outcome.
    fn abandon(&mut self, link: ActiveConnection) {
        let session = self.identity.as_ref().map(|identity| identity.id);
        if let Some(id) = session {
            self.state.send_replace(Session::Suspended(id));
        }
        if !link.answered {
            self.failures = self.failures.saturating_add(1);
        }
        self.watches.disconnected();
        let mut queue = VecDeque::new();
        for (position, pending) in link.pending.into_iter().enumerate() {
            match pending.then {
                ReplyAction::Read(mut call) => {
                    call.fence = session;
                    if position == 0 {
                        call.broke += 1;
                    }
                    if call.broke < MAX_READ_ATTEMPTS && self.closing.is_none() {
                        queue.push_back(SessionCommand::Call(call));
                    } else {
                        let _ = call.reply.send(Err(SessionCallError::ConnectionLoss));
                    }
                }
                ReplyAction::Write(reply) => {
                    let _ = reply.send(Err(SessionCallError::ConnectionLoss));
                }
                ReplyAction::Watch(_)
                | ReplyAction::Restored(_)
                | ReplyAction::Nothing
                | ReplyAction::Close => {}
            }
        }
        queue.append(&mut self.queue);
        self.queue = queue;
    }
}

fn failure(code: ErrorCode) -> SessionCallError {
    match code {
        ErrorCode::SessionExpired => SessionCallError::SessionExpired,
        // The session moved to another server. The operation was not executed, but connection loss is a safe result.
        ErrorCode::SessionMoved | ErrorCode::ConnectionLoss => SessionCallError::ConnectionLoss,
        code => SessionCallError::Server(code),
    }
}

/// Writes as much as one call accepts. Flushes and returns 0 if there is nothing to write.
async fn write_some(
    writer: &mut (impl AsyncWrite + Unpin),
    send_buffer: &mut BytesMut,
) -> io::Result<usize> {
    if send_buffer.is_empty() {
        writer.flush().await?;
        return Ok(0);
    }
    match writer.write_buf(send_buffer).await? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        count => Ok(count),
    }
}
