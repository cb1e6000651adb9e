//! What waits to be written to one connection.
//!
//! Anybody may put something in; one task writes it out. Putting never waits, because it happens while the
//! server's state is locked. Instead, whoever filled an outbox above its mark waits for room before it reads its
//! own next packet: a client that reads slowly slows down the worker that feeds it, and nobody else. The memory
//! of one outbox is bounded by the mark plus one frame per connection that feeds it.

use std::sync::Mutex;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::core::Outgoing;
use crate::codec::Magic;

/// Buffers up to this size are kept for reuse, larger ones given back.
const KEEP_CAPACITY: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Outbox {
    mark: usize,
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
}

impl Outbox {
    pub(super) fn new(mark: usize) -> Self {
        Self {
            mark,
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
        let crowded = content.len() > self.mark;
        drop(content);
        self.filled.notify_one();
        crowded
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

    /// Writes what is put in, until the connection is closed or finished.
    pub(super) async fn write_to(
        &self,
        mut writer: impl AsyncWrite + Unpin,
    ) -> std::io::Result<()> {
        loop {
            let (chunk, last) = {
                let mut content = self.lock();
                let chunk = if content.waiting.capacity() > KEEP_CAPACITY {
                    std::mem::take(&mut content.waiting)
                } else {
                    content.waiting.split()
                };
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
