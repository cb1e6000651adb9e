//! What the session's task does while it has a connection.
//!
//! Requests are sent without waiting for the answers to earlier ones, and everything that is there to be
//! sent goes out in one write. Answers come in the order of the requests.

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

use super::call::{Call, Command, Failure, Outcome, WatchCall};
use super::dial::Connection;
use super::session::{SessionTask, until};
use super::wire::{
    AddWatchMode, ErrorCode, Event, MAX_REPLY, OpCode, ReplyHeader, Request, Response, WatcherKind,
    WireError, XID_EVENT, XID_PING, XID_SET_WATCHES, take_frame,
};
use crate::tree::Session;

/// More than this is not collected before it is written.
const OUTBOX: usize = 256 * 1024;
const INBOX: usize = 64 * 1024;
/// Bytes of paths in one packet that restores watches.
const RESTORE_BATCH: usize = 128 * 1024;
/// A read that was the oldest unanswered one when this many connections broke is the likely reason.
const BREAKS: u32 = 10;

/// Why a connection is not used any more.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("the server closed the connection")]
    Eof,
    #[error("reading or writing failed")]
    Io(#[from] io::Error),
    #[error("the server was silent for {0:?}")]
    Silent(Duration),
    #[error("the server sent something that cannot be understood")]
    Wire(#[from] WireError),
    #[error("the server answered something that was not asked")]
    OutOfOrder,
    #[error("the server did not restore the watches (error {})", .0.number())]
    Watches(ErrorCode),
    #[error("the server is not in the list any more")]
    Removed,
}

/// The state of one connection.
#[derive(Default)]
struct Link {
    outbox: BytesMut,
    /// Bytes were written that a layer below may hold back.
    unflushed: bool,
    pending: VecDeque<Pending>,
    last_xid: i32,
    answered: bool,
    close_sent: bool,
    closed: bool,
}

struct Pending {
    xid: i32,
    opcode: OpCode,
    then: Then,
}

/// What to do with an answer.
enum Then {
    /// Can be asked again on another connection.
    Read(Call),
    Write(oneshot::Sender<Outcome>),
    Watch(String),
    Restored(Vec<String>),
    Nothing,
    Close,
}

impl Link {
    fn send(&mut self, request: &Request, then: Then) {
        let opcode = request.opcode();
        let xid = match opcode {
            OpCode::SetWatches2 => XID_SET_WATCHES,
            _ => {
                self.last_xid = self.last_xid.checked_add(1).unwrap_or(1);
                self.last_xid
            }
        };
        request.encode(xid, &mut self.outbox);
        self.pending.push_back(Pending { xid, opcode, then });
    }

    /// Answers to pings come out of order, so they are not waited for.
    fn ping(&mut self) {
        Request::Ping.encode(XID_PING, &mut self.outbox);
    }

    fn has_output(&self) -> bool {
        self.unflushed || !self.outbox.is_empty()
    }

    /// Gives back what a burst has needed.
    fn rest(&mut self) {
        if self.pending.is_empty() && self.outbox.is_empty() {
            self.pending = VecDeque::new();
            self.outbox = BytesMut::new();
        }
    }
}

impl SessionTask {
    /// Works on one connection until it is lost, or breaks off if there is nothing more to do at all.
    pub(super) async fn serve(&mut self, connection: Connection) -> ControlFlow<()> {
        let Connection {
            host,
            stream,
            response,
            received: mut inbox,
        } = connection;
        let timeout = Duration::from_millis(u64::from(response.timeout.unsigned_abs()));
        let (ping_every, silence) = (timeout / 3, timeout / 3 * 2);
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut link = Link::default();
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
            while link.outbox.len() < OUTBOX {
                match self.commands.try_recv() {
                    Ok(command) => self.start(&mut link, command),
                    Err(_) => break,
                }
            }
            self.send_close(&mut link);
            inbox.reserve(INBOX);
            let deadline = self.closing.as_ref().map(|closing| closing.deadline);
            tokio::select! {
                read = reader.read_buf(&mut inbox) => match read {
                    Ok(0) => break Lost::Eof,
                    Ok(_) => heard = Instant::now(),
                    Err(error) => break Lost::Io(error),
                },
                written = write_some(&mut writer, &mut link.outbox), if link.has_output() => match written {
                    Ok(count) => {
                        link.unflushed = count > 0;
                        sent = Instant::now();
                    }
                    Err(error) => break Lost::Io(error),
                },
                command = self.commands.recv(), if link.outbox.len() < OUTBOX => match command {
                    Some(command) => self.start(&mut link, command),
                    None => return ControlFlow::Break(()),
                },
                () = &mut timer => {
                    let now = Instant::now();
                    if now >= heard + silence {
                        // This process may have slept, with the answer waiting to be read.
                        match reader.read_buf(&mut inbox).now_or_never() {
                            Some(Ok(count)) if count > 0 => heard = now,
                            _ => break Lost::Silent(silence),
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
                    Ok(()) => break Lost::Removed,
                    Err(_) => return ControlFlow::Break(()),
                },
                () = until(deadline) => return ControlFlow::Break(()),
            }
        };
        if self.closing.is_none() {
            tracing::warn!(server = %host, reason = with_causes(&lost), "lost the connection to ZooKeeper");
        }
        self.lose(link);
        ControlFlow::Continue(())
    }

    /// The watches come first, so that whoever lists after the gap misses nothing.
    fn restore_watches(&self, link: &mut Link) {
        let mut send = |paths: Vec<String>| {
            let request = Request::SetWatches2 {
                relative_zxid: self.last_zxid,
                data: Vec::new(),
                exist: Vec::new(),
                child: Vec::new(),
                persistent: Vec::new(),
                persistent_recursive: paths.clone(),
            };
            link.send(&request, Then::Restored(paths));
        };
        let mut batch = Vec::new();
        let mut size = 0;
        for path in self.watches.paths() {
            size += path.len();
            batch.push(path.to_owned());
            if size > RESTORE_BATCH {
                send(std::mem::take(&mut batch));
                size = 0;
            }
        }
        if !batch.is_empty() {
            send(batch);
        }
    }

    fn start(&mut self, link: &mut Link, command: Command) {
        match self.admit(command) {
            Some(Command::Call(call)) => self.start_call(link, call),
            Some(Command::Watch(call)) => self.start_watch(link, call),
            Some(Command::Close(_)) | None => {}
        }
    }

    fn start_call(&mut self, link: &mut Link, mut call: Call) {
        if let Request::Exists { path, watch } = &mut call.request {
            // Asked for the second time, the watch has told already that the connection broke.
            *watch = match call.once.take() {
                Some(once) => self.watches.add_once(path, once),
                None => false,
            };
        }
        if call.request.is_read() {
            let request = call.request.clone();
            link.send(&request, Then::Read(call));
        } else {
            link.send(&call.request, Then::Write(call.reply));
        }
    }

    fn start_watch(&mut self, link: &mut Link, call: WatchCall) {
        if self.watches.add(&call.path, call.member, call.reply) {
            let request = Request::AddWatch {
                path: call.path.clone(),
                mode: AddWatchMode::PersistentRecursive,
            };
            link.send(&request, Then::Watch(call.path));
        }
    }

    fn remove_unused_watches(&mut self, link: &mut Link) {
        for path in self.watches.sweep() {
            let request = Request::RemoveWatches {
                path,
                kind: WatcherKind::Any,
            };
            link.send(&request, Then::Nothing);
        }
    }

    fn send_close(&mut self, link: &mut Link) {
        if self.closing.is_some() && !link.close_sent {
            link.close_sent = true;
            link.send(&Request::CloseSession, Then::Close);
        }
    }

    fn receive(&mut self, link: &mut Link, inbox: &mut BytesMut) -> Result<(), Lost> {
        loop {
            match take_frame(inbox, MAX_REPLY) {
                Ok(Some(frame)) => self.receive_frame(link, &frame)?,
                Ok(None) => return Ok(()),
                Err(error) => {
                    // Asking again would bring the same again.
                    if let WireError::TooLarge { size, .. } = error
                        && let Some(Pending {
                            then: Then::Read(call),
                            ..
                        }) = link.pending.pop_front()
                    {
                        let _ = call.reply.send(Err(Failure::TooLarge(size)));
                    }
                    return Err(error.into());
                }
            }
        }
    }

    fn receive_frame(&mut self, link: &mut Link, frame: &Bytes) -> Result<(), Lost> {
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
                Some(pending) => self.settle(link, pending, header.error, body)?,
                None => return Err(Lost::OutOfOrder),
            },
        }
        Ok(())
    }

    fn settle(
        &mut self,
        link: &mut Link,
        pending: Pending,
        error: Option<ErrorCode>,
        body: Bytes,
    ) -> Result<(), Lost> {
        match pending.then {
            Then::Read(Call { reply, .. }) | Then::Write(reply) => {
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
                        let _ = reply.send(Err(Failure::ConnectionLoss));
                        return Err(error.into());
                    }
                }
            }
            Then::Watch(path) => match error {
                None => self.watches.confirm(&path),
                Some(code) => self.watches.refuse(&path, failure(code)),
            },
            Then::Restored(paths) => match error {
                None => paths.iter().for_each(|path| self.watches.restored(path)),
                Some(code) => return Err(Lost::Watches(code)),
            },
            Then::Nothing => {}
            Then::Close => link.closed = true,
        }
        Ok(())
    }

    /// Reads go back to the head of the queue; what became of a write nobody knows.
    fn lose(&mut self, link: Link) {
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
                Then::Read(mut call) => {
                    call.fence = session;
                    if position == 0 {
                        call.broke += 1;
                    }
                    if call.broke < BREAKS && self.closing.is_none() {
                        queue.push_back(Command::Call(call));
                    } else {
                        let _ = call.reply.send(Err(Failure::ConnectionLoss));
                    }
                }
                Then::Write(reply) => {
                    let _ = reply.send(Err(Failure::ConnectionLoss));
                }
                Then::Watch(_) | Then::Restored(_) | Then::Nothing | Then::Close => {}
            }
        }
        queue.append(&mut self.queue);
        self.queue = queue;
    }
}

fn failure(code: ErrorCode) -> Failure {
    match code {
        ErrorCode::SessionExpired => Failure::SessionExpired,
        // Another server has the session now; this one did not do what was asked, but saying less is safe.
        ErrorCode::SessionMoved | ErrorCode::ConnectionLoss => Failure::ConnectionLoss,
        code => Failure::Server(code),
    }
}

/// Writes what a single call takes, or flushes if all is written: 0 then.
async fn write_some(
    writer: &mut (impl AsyncWrite + Unpin),
    outbox: &mut BytesMut,
) -> io::Result<usize> {
    if outbox.is_empty() {
        writer.flush().await?;
        return Ok(0);
    }
    match writer.write_buf(outbox).await? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        count => Ok(count),
    }
}
