//! The queue of replies and events to one client.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use tokio::sync::{Notify, oneshot};

/// Above this size no further requests are read from the client.
const READ_PAUSE_BYTES: usize = 4 * 1024 * 1024;

/// Above this size the client is disconnected, since events cannot be held back. It restores its watches when it
/// reconnects.
const MAX_QUEUED_BYTES: usize = 64 * 1024 * 1024;

#[derive(Debug, Default)]
pub(super) struct ReplyQueue {
    state: Mutex<ReplyQueueState>,
    filled: Notify,
    drained: Notify,
}

#[derive(Debug, Default)]
struct ReplyQueueState {
    items: VecDeque<QueuedReply>,
    size: usize,
    finished: bool,
    overflowed: bool,
}

#[derive(Debug)]
enum QueuedReply {
    Ready(Bytes),
    /// A reserved position of a reply that is being created.
    Reserved(oneshot::Receiver<Bytes>),
}

/// The client reads too slowly.
#[derive(Debug, thiserror::Error)]
#[error("the client reads too slowly: more than {MAX_QUEUED_BYTES} bytes are queued")]
pub(super) struct Overflow;

impl ReplyQueue {
    pub(super) fn push(&self, encode: impl FnOnce(&mut BytesMut)) {
        let mut frame = BytesMut::new();
        encode(&mut frame);
        let mut state = self.lock();
        if state.size > MAX_QUEUED_BYTES {
            state.overflowed = true;
        } else {
            state.size += frame.len();
            state.items.push_back(QueuedReply::Ready(frame.freeze()));
        }
        drop(state);
        self.filled.notify_one();
    }

    /// Reserves a position for a reply. If the sender is dropped, nothing is sent.
    pub(super) fn reserve(&self) -> oneshot::Sender<Bytes> {
        let (sender, receiver) = oneshot::channel();
        self.lock().items.push_back(QueuedReply::Reserved(receiver));
        self.filled.notify_one();
        sender
    }

    /// Waits for the next frame to send. Returns `None` when the queue is finished and empty.
    pub(super) async fn next(&self) -> Result<Option<Bytes>, Overflow> {
        loop {
            let filled = self.filled.notified();
            let item = {
                let mut state = self.lock();
                if state.overflowed {
                    return Err(Overflow);
                }
                match state.items.pop_front() {
                    None if state.finished => return Ok(None),
                    item => item,
                }
            };
            match item {
                None => filled.await,
                Some(QueuedReply::Ready(frame)) => {
                    self.lock().size -= frame.len();
                    self.drained.notify_one();
                    return Ok(Some(frame));
                }
                Some(QueuedReply::Reserved(answer)) => {
                    if let Ok(frame) = answer.await {
                        return Ok(Some(frame));
                    }
                }
            }
        }
    }

    /// Waits until the queue is small enough to read further requests.
    pub(super) async fn wait_for_room(&self) {
        loop {
            let drained = self.drained.notified();
            if self.lock().size <= READ_PAUSE_BYTES {
                return;
            }
            drained.await;
        }
    }

    pub(super) fn finish(&self) {
        self.lock().finished = true;
        self.filled.notify_one();
    }

    /// Ignores poisoning, since the queue is consistent at every panic.
    fn lock(&self) -> MutexGuard<'_, ReplyQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(reply_queue: &ReplyQueue, text: &'static [u8]) {
        reply_queue.push(|out| out.extend_from_slice(text));
    }

    #[tokio::test]
    async fn a_reserved_reply_precedes_later_events() {
        let reply_queue = ReplyQueue::default();
        let place = reply_queue.reserve();
        frame(&reply_queue, b"event");
        reply_queue.finish();
        place.send(Bytes::from_static(b"answer")).unwrap();
        assert_eq!(&reply_queue.next().await.unwrap().unwrap()[..], b"answer");
        assert_eq!(&reply_queue.next().await.unwrap().unwrap()[..], b"event");
        assert_eq!(reply_queue.next().await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_client_that_never_reads_is_disconnected() {
        let reply_queue = ReplyQueue::default();
        let large = vec![0; 1024 * 1024];
        for _ in 0..MAX_QUEUED_BYTES / large.len() + 2 {
            reply_queue.push(|out| out.extend_from_slice(&large));
        }
        assert!(reply_queue.next().await.is_err());
    }
}
