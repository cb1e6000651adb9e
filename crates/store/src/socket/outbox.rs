//! What one client is still to be sent, in order.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use tokio::sync::{Notify, oneshot};

/// No further requests are read from a client that leaves this much unread.
const HIGH_WATER: usize = 4 * 1024 * 1024;

/// Events cannot be held back; a client that leaves this much unread is cut off. It comes back and is
/// told of everything it missed.
const LIMIT: usize = 64 * 1024 * 1024;

#[derive(Debug, Default)]
pub(super) struct Outbox {
    state: Mutex<State>,
    filled: Notify,
    drained: Notify,
}

#[derive(Debug, Default)]
struct State {
    items: VecDeque<Item>,
    size: usize,
    finished: bool,
    overflowed: bool,
}

#[derive(Debug)]
enum Item {
    Ready(Bytes),
    /// The place of an answer that is being made.
    Reserved(oneshot::Receiver<Bytes>),
}

/// The client reads too slowly.
#[derive(Debug, thiserror::Error)]
#[error("the client leaves more than {LIMIT} bytes unread")]
pub(super) struct Overflow;

impl Outbox {
    pub(super) fn push(&self, encode: impl FnOnce(&mut BytesMut)) {
        let mut frame = BytesMut::new();
        encode(&mut frame);
        let mut state = self.lock();
        if state.size > LIMIT {
            state.overflowed = true;
        } else {
            state.size += frame.len();
            state.items.push_back(Item::Ready(frame.freeze()));
        }
        drop(state);
        self.filled.notify_one();
    }

    /// Keeps a place for an answer. If the sender is dropped, nothing is sent.
    pub(super) fn reserve(&self) -> oneshot::Sender<Bytes> {
        let (sender, receiver) = oneshot::channel();
        self.lock().items.push_back(Item::Reserved(receiver));
        self.filled.notify_one();
        sender
    }

    /// What to send next; none when all is sent and no more will come.
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
                Some(Item::Ready(frame)) => {
                    self.lock().size -= frame.len();
                    self.drained.notify_one();
                    return Ok(Some(frame));
                }
                Some(Item::Reserved(answer)) => {
                    if let Ok(frame) = answer.await {
                        return Ok(Some(frame));
                    }
                }
            }
        }
    }

    /// Waits until the client has read enough.
    pub(super) async fn room(&self) {
        loop {
            let drained = self.drained.notified();
            if self.lock().size <= HIGH_WATER {
                return;
            }
            drained.await;
        }
    }

    pub(super) fn finish(&self) {
        self.lock().finished = true;
        self.filled.notify_one();
    }

    /// A panic while the lock is held cannot leave the queue half changed, so poison is ignored.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(outbox: &Outbox, text: &'static [u8]) {
        outbox.push(|out| out.extend_from_slice(text));
    }

    #[tokio::test]
    async fn an_answer_keeps_its_place_before_later_events() {
        let outbox = Outbox::default();
        let place = outbox.reserve();
        frame(&outbox, b"event");
        outbox.finish();
        place.send(Bytes::from_static(b"answer")).unwrap();
        assert_eq!(&outbox.next().await.unwrap().unwrap()[..], b"answer");
        assert_eq!(&outbox.next().await.unwrap().unwrap()[..], b"event");
        assert_eq!(outbox.next().await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_client_that_never_reads_is_cut_off() {
        let outbox = Outbox::default();
        let large = vec![0; 1024 * 1024];
        for _ in 0..LIMIT / large.len() + 2 {
            outbox.push(|out| out.extend_from_slice(&large));
        }
        assert!(outbox.next().await.is_err());
    }
}
