//! The send buffer of one connection.
//!
//! [`SendBuffer::push`] never waits, because it runs while the server's state is locked. After releasing the lock, the
//! same task flushes: on plain TCP it writes what the socket accepts, which saves a task switch between a submit and
//! its assignment. The remainder, and everything on other sockets, is written by the connection's writer task.
//!
//! A connection that pushed into a buffer above its limit waits before it reads its next packet, so a slow client slows
//! down only the worker that sends to it. Memory is bounded by the limit plus one frame per sending connection.

use std::io;
use std::sync::Mutex;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use rustix::net::{Shutdown, shutdown};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::scheduler::OutgoingMessage;
use crate::codec::Magic;

/// An empty buffer with more capacity than this is deallocated.
const MAX_IDLE_CAPACITY: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct SendBuffer {
    limit: usize,
    /// The plain TCP socket, which [`Self::flush`] writes to directly.
    socket: Option<OwnedWriteHalf>,
    content: Mutex<SendBufferContent>,
    filled: Notify,
    drained: Notify,
    /// Cancelled to stop the reader and the writer of the connection.
    pub(super) closed: CancellationToken,
}

#[derive(Debug, Default)]
struct SendBufferContent {
    waiting: BytesMut,
    in_flight: usize,
    /// Further pushes are ignored; the connection closes once the buffer is empty.
    closing: bool,
}

impl SendBufferContent {
    fn len(&self) -> usize {
        self.waiting.len() + self.in_flight
    }

    fn is_finished(&self) -> bool {
        self.closing && self.len() == 0
    }
}

impl SendBuffer {
    /// Creates a buffer. Flushes write to `socket` directly if there is one; otherwise [`Self::write`] is given a stream.
    pub(super) fn new(limit: usize, socket: Option<OwnedWriteHalf>) -> Self {
        Self {
            limit,
            socket,
            content: Mutex::default(),
            filled: Notify::new(),
            drained: Notify::new(),
            closed: CancellationToken::new(),
        }
    }

    /// Appends a message. Returns true if the buffer is now above its limit.
    pub(super) fn push(&self, outgoing: &OutgoingMessage) -> bool {
        let mut content = self.lock();
        if content.closing {
            return false;
        }
        match outgoing {
            OutgoingMessage::Packet(packet) => {
                if let Err(error) = packet.encode(Magic::Response, usize::MAX, &mut content.waiting)
                {
                    tracing::warn!(%error, "failed to encode packet; dropping it");
                }
            }
            OutgoingMessage::Text(text) => content.waiting.extend_from_slice(text.as_bytes()),
        }
        content.len() > self.limit
    }

    /// Writes what the socket accepts and wakes the writer task if anything is left.
    pub(super) fn flush(&self) {
        let all_written = self
            .socket
            .as_ref()
            .is_some_and(|socket| self.try_write(socket));
        if !all_written {
            self.filled.notify_one();
        }
    }

    /// Writes what the socket accepts without waiting. Returns true if the buffer is empty.
    fn try_write(&self, socket: &OwnedWriteHalf) -> bool {
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
        if content.waiting.capacity() > MAX_IDLE_CAPACITY {
            content.waiting = BytesMut::new();
        }
        true
    }

    /// Closes the connection once the buffered data is written.
    pub(super) fn close_after_write(&self) {
        self.lock().closing = true;
        self.filled.notify_one();
    }

    /// Waits until the buffer is below its limit or the connection is closed. Returns false on timeout.
    pub(super) async fn wait_until_below_limit(&self, limit: Duration) -> bool {
        let room = async {
            loop {
                let drained = self.drained.notified();
                tokio::pin!(drained);
                drained.as_mut().enable();
                if self.lock().len() <= self.limit {
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

    /// Writes data that was not flushed directly, until the connection closes.
    pub(super) async fn write(&self, stream: Option<impl AsyncWrite + Unpin>) {
        let writing = async {
            match (&self.socket, stream) {
                (Some(socket), _) => self.write_buffered(socket).await,
                (None, Some(stream)) => self.write_stream(stream).await,
                (None, None) => Ok(()),
            }
        };
        let written = tokio::select! {
            () = self.closed.cancelled() => Ok(()),
            written = writing => written,
        };
        if let Err(error) = written {
            tracing::debug!(%error, "failed to write to connection");
        }
        self.closed.cancel();
    }

    async fn write_buffered(&self, socket: &OwnedWriteHalf) -> io::Result<()> {
        loop {
            self.filled.notified().await;
            while !self.try_write(socket) {
                socket.writable().await?;
            }
            if self.lock().is_finished() {
                // The reader still holds the socket, so the write half must be shut down explicitly.
                return Ok(shutdown(socket.as_ref(), Shutdown::Write)?);
            }
        }
    }

    async fn write_stream(&self, mut writer: impl AsyncWrite + Unpin) -> io::Result<()> {
        loop {
            let (chunk, closing) = {
                let mut content = self.lock();
                let chunk = std::mem::take(&mut content.waiting);
                content.in_flight = chunk.len();
                (chunk, content.closing)
            };
            if chunk.is_empty() {
                if closing {
                    return writer.shutdown().await;
                }
                self.filled.notified().await;
                continue;
            }
            writer.write_all(&chunk).await?;
            writer.flush().await?;
            self.lock().in_flight = 0;
            self.drained.notify_waiters();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, SendBufferContent> {
        self.content
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
