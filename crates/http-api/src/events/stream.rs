//! A listener: a place in the ring, and what to send from there.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Fuse, FusedFuture as _};
use futures_util::stream::unfold;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

use super::ring::Found;
use super::{Filter, Hub, Resume};
use crate::access::Standing;

/// Shows a client that the connection lives, and us that the client does.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Comments are not seen by whoever listens.
const BEAT: &[u8] = b":\n\n";

const FAREWELL: &[u8] = b": what you may see has changed; come back to see it\n\n";

struct Stream {
    hub: Hub,
    filter: Filter,
    place: u64,
    news: watch::Receiver<()>,
    shutdown: CancellationToken,
    /// Comes when the listener is not any more who it was. Never comes again.
    lost: Fuse<BoxFuture<'static, ()>>,
    greeted: bool,
    /// Streams are counted.
    _permit: OwnedSemaphorePermit,
}

/// Sends events until the client goes or may not have them any more, or we go.
pub(crate) fn body(
    hub: Hub,
    filter: Filter,
    resume: Resume,
    standing: Standing,
    permit: OwnedSemaphorePermit,
    shutdown: CancellationToken,
) -> Body {
    let stream = Stream {
        news: hub.news.subscribe(),
        place: hub.ring.begin(resume),
        hub,
        filter,
        shutdown,
        lost: standing.lost().boxed().fuse(),
        greeted: false,
        _permit: permit,
    };
    Body::from_stream(unfold(stream, async |mut stream| {
        let frame = stream.next().await?;
        Some((Ok::<_, Infallible>(frame), stream))
    }))
}

impl Stream {
    async fn next(&mut self) -> Option<Bytes> {
        if !self.greeted {
            // The head of the answer goes with the first bytes.
            self.greeted = true;
            return Some(Bytes::from_static(BEAT));
        }
        if self.lost.is_terminated() {
            return None;
        }
        loop {
            // Before the look, so that nothing that comes after it is slept through.
            self.news.mark_unchanged();
            if (&mut self.lost).now_or_never().is_some() {
                return Some(Bytes::from_static(FAREWELL));
            }
            if let Some(frame) = self.look() {
                return Some(frame);
            }
            tokio::select! {
                changed = tokio::time::timeout(HEARTBEAT, self.news.changed()) => match changed {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return None,
                    Err(_) => return Some(Bytes::from_static(BEAT)),
                },
                () = &mut self.lost => return Some(Bytes::from_static(FAREWELL)),
                () = self.shutdown.cancelled() => return None,
            }
        }
    }

    /// The next thing to send, if there is one by now.
    fn look(&mut self) -> Option<Bytes> {
        loop {
            match self.hub.ring.find(self.place) {
                Found::Nothing => return None,
                Found::Event(event, next) => {
                    self.place = next;
                    if self.filter.wants(&event) {
                        return Some(event.frame.clone());
                    }
                }
                Found::Gap(id, next) => {
                    self.place = next;
                    let frame = format!(
                        "id: {id}\nevent: reset\ndata: {{\"reason\":\"events are missing; list again\"}}\n\n"
                    );
                    return Some(Bytes::from(frame));
                }
            }
        }
    }
}
