//! An event stream: a position in the buffer and a filter.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Fuse, FusedFuture as _};
use futures_util::stream::unfold;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

use super::buffer::NextEvent;
use super::{EventFilter, EventHub, Resume};
use crate::access::RevocationWatch;

/// How often an idle stream sends a comment, so that both sides notice a dead connection.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// A comment, which clients ignore.
const COMMENT: &[u8] = b":\n\n";

const ACCESS_CHANGED: &[u8] = b": access has changed; reconnect\n\n";

struct EventStream {
    hub: EventHub,
    filter: EventFilter,
    position: u64,
    wakeup: watch::Receiver<()>,
    shutdown: CancellationToken,
    /// Completes when the stream's credentials become invalid. Must not be polled again after that.
    revoked: Fuse<BoxFuture<'static, ()>>,
    started: bool,
    /// Limits the number of streams.
    _permit: OwnedSemaphorePermit,
}

/// Streams events until the client disconnects, its credentials become invalid, or `shutdown`.
pub(crate) fn body(
    hub: EventHub,
    filter: EventFilter,
    resume: Resume,
    revocation: RevocationWatch,
    permit: OwnedSemaphorePermit,
    shutdown: CancellationToken,
) -> Body {
    let stream = EventStream {
        wakeup: hub.wakeup.subscribe(),
        position: hub.buffer.begin(resume),
        hub,
        filter,
        shutdown,
        revoked: revocation.revoked().boxed().fuse(),
        started: false,
        _permit: permit,
    };
    Body::from_stream(unfold(stream, async |mut stream| {
        let frame = stream.next().await?;
        Some((Ok::<_, Infallible>(frame), stream))
    }))
}

impl EventStream {
    async fn next(&mut self) -> Option<Bytes> {
        if !self.started {
            // A first comment makes the server send the response's head.
            self.started = true;
            return Some(Bytes::from_static(COMMENT));
        }
        if self.revoked.is_terminated() {
            return None;
        }
        loop {
            // Before the look into the buffer, so that no later event is missed.
            self.wakeup.mark_unchanged();
            if (&mut self.revoked).now_or_never().is_some() {
                return Some(Bytes::from_static(ACCESS_CHANGED));
            }
            if let Some(frame) = self.look() {
                return Some(frame);
            }
            tokio::select! {
                changed = tokio::time::timeout(HEARTBEAT, self.wakeup.changed()) => match changed {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return None,
                    Err(_) => return Some(Bytes::from_static(COMMENT)),
                },
                () = &mut self.revoked => return Some(Bytes::from_static(ACCESS_CHANGED)),
                () = self.shutdown.cancelled() => return None,
            }
        }
    }

    /// Returns the next matching event, if there is one already.
    fn look(&mut self) -> Option<Bytes> {
        loop {
            match self.hub.buffer.find(self.position) {
                NextEvent::Nothing => return None,
                NextEvent::Event(event, next) => {
                    self.position = next;
                    if self.filter.matches(&event) {
                        return Some(event.frame.clone());
                    }
                }
                NextEvent::Gap(id, next) => {
                    self.position = next;
                    let frame = format!(
                        "id: {id}\nevent: reset\ndata: {{\"reason\":\"events are missing; list again\"}}\n\n"
                    );
                    return Some(Bytes::from(frame));
                }
            }
        }
    }
}
