//! What waits to be written to one connection.
//!
//! Anybody may put something in, which never waits, because it happens while the server's state is locked. After that
//! lock is released the same task flushes: on plain TCP it writes at once as much as the socket takes, which saves
//! the switch to another task on the way from a submit to its assignment. What is left over, and everything under
//! TLS, is written by the connection's own task.
//!
//! Whoever filled an outbox above its mark waits for room before it reads its own next packet: a client that reads
//! slowly slows down the worker that feeds it, and nobody else. The memory of one outbox is bounded by the mark plus
//! one frame per connection that feeds it.

use std::io;
use std::sync::Mutex;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use rustix::net::{Shutdown, shutdown};
use tokio::io::{AsyncWrite, AsyncWriteExt, WriteHalf};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Notify;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use super::core::Outgoing;
use crate::codec::Magic;

/// Buffers above this size are given back once they are empty.
const KEEP_CAPACITY: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Outbox {
    mark: usize,
    /// Where a flush may write directly.
    socket: Option<OwnedWriteHalf>,
    content: Mutex<Content>,
    filled: Notify,
    drained: Notify,
    /// Ends both tasks of the connection.
    pub(super) closed: CancellationToken,
}

#[derive(Debug, Default)]
struct Content {
    waiting: BytesMut,
    being_written: usize,
    /// Nothing more may be put in; the connection ends when all is written.
    last: bool,
}

impl Content {
    fn len(&self) -> usize {
        self.waiting.len() + self.being_written
    }

    fn is_over(&self) -> bool {
        self.last && self.len() == 0
    }
}

impl Outbox {
    /// An outbox for a socket that may be written to directly, or for a stream that [`Outbox::write_to`] gets.
    pub(super) fn new(mark: usize, socket: Option<OwnedWriteHalf>) -> Self {
        Self {
            mark,
            socket,
            content: Mutex::default(),
            filled: Notify::new(),
            drained: Notify::new(),
            closed: CancellationToken::new(),
        }
    }

    /// Adds something to send. True if the outbox is now above its mark.
    pub(super) fn put(&self, outgoing: &Outgoing) -> bool {
        let mut content = self.lock();
        if content.last {
            return false;
        }
        match outgoing {
            Outgoing::Packet(packet) => {
                if let Err(error) = packet.encode(Magic::Response, usize::MAX, &mut content.waiting)
                {
                    tracing::warn!(%error, "packet dropped");
                }
            }
            Outgoing::Text(text) => content.waiting.extend_from_slice(text.as_bytes()),
        }
        content.len() > self.mark
    }

    /// Gets what was put in on its way.
    pub(super) fn flush(&self) {
        let all_written = self
            .socket
            .as_ref()
            .is_some_and(|socket| self.write_now(socket));
        if !all_written {
            self.filled.notify_one();
        }
    }

    /// Writes what the socket takes. True if nothing is left.
    fn write_now(&self, socket: &OwnedWriteHalf) -> bool {
        let mut content = self.lock();
        while !content.waiting.is_empty() {
            match socket.try_write(&content.waiting) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Ok(0) | Err(_) => {
                    content.waiting.clear();
                    self.closed.cancel();
                }
                Ok(count) => content.waiting.advance(count),
            }
            self.drained.notify_waiters();
        }
        if content.waiting.capacity() > KEEP_CAPACITY {
            content.waiting = BytesMut::new();
        }
        true
    }

    /// Lets what is there be written, then ends the connection.
    pub(super) fn finish(&self) {
        self.lock().last = true;
        self.filled.notify_one();
    }

    /// Waits until the outbox is below its mark or its connection over. False if `limit` passed first.
    pub(super) async fn wait_for_room(&self, limit: Duration) -> bool {
        let room = async {
            loop {
                let drained = self.drained.notified();
                tokio::pin!(drained);
                drained.as_mut().enable();
                if self.lock().len() <= self.mark {
                    return;
                }
                drained.await;
            }
        };
        tokio::select! {
            () = room => true,
            () = self.closed.cancelled() => true,
            () = tokio::time::sleep(limit) => false,
        }
    }

    /// Writes what is put in and not flushed directly, until the connection is closed or finished.
    pub(super) async fn write(&self, tls: Option<WriteHalf<TlsStream<TcpStream>>>) {
        let writing = async {
            match (&self.socket, tls) {
                (Some(socket), _) => self.write_leftovers(socket).await,
                (None, Some(stream)) => self.write_to(stream).await,
                (None, None) => Ok(()),
            }
        };
        let written = tokio::select! {
            () = self.closed.cancelled() => Ok(()),
            written = writing => written,
        };
        if let Err(error) = written {
            tracing::debug!(%error, "connection broke while it was written to");
        }
        self.closed.cancel();
    }

    async fn write_leftovers(&self, socket: &OwnedWriteHalf) -> io::Result<()> {
        loop {
            self.filled.notified().await;
            while !self.write_now(socket) {
                socket.writable().await?;
            }
            if self.lock().is_over() {
                // Others still hold the socket, so it must be told that nothing more will come.
                return Ok(shutdown(socket.as_ref(), Shutdown::Write)?);
            }
        }
    }

    async fn write_to(&self, mut writer: impl AsyncWrite + Unpin) -> io::Result<()> {
        loop {
            let (chunk, last) = {
                let mut content = self.lock();
                let chunk = std::mem::take(&mut content.waiting);
                content.being_written = chunk.len();
                (chunk, content.last)
            };
            if chunk.is_empty() {
                if last {
                    return writer.shutdown().await;
                }
                self.filled.notified().await;
                continue;
            }
            writer.write_all(&chunk).await?;
            writer.flush().await?;
            self.lock().being_written = 0;
            self.drained.notify_waiters();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Content> {
        self.content
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
