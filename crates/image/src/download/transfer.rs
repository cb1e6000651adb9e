//! Fetching: several pieces at once, or the whole in one go.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nodeyard_fetch::header::{CONTENT_LENGTH, IF_RANGE, RANGE};
use nodeyard_fetch::{Body, Client, Request, StatusCode, Url};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::flow::Flow;
use super::patience::Patience;
use super::probe::{Source, content_range};
use super::ranges::Span;
use super::staging::Staging;
use super::throttle::Throttle;
use super::{DownloadError, Trouble};
use crate::repository::Repository;

/// Bytes that are written at once.
const BUFFER: usize = 1 << 20;
/// Fewer are written after so long.
const SLOW: Duration = Duration::from_secs(1);
/// After so many bytes of a file of unknown size it is asked again whether there is room.
const STEP: u64 = 64 << 20;

#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) client: Client,
    pub(super) url: Url,
    pub(super) source: Source,
    pub(super) staging: Arc<Staging>,
    /// The number of the attempt that this is.
    pub(super) attempt: u64,
    pub(super) flow: Arc<Flow>,
    pub(super) throttle: Throttle,
    pub(super) patience: Arc<Patience>,
    /// Whether zeros are left out, since the file has its size already.
    pub(super) sparse: bool,
}

/// What is still to be fetched, the first bytes first.
#[derive(Debug)]
struct Queue(Mutex<VecDeque<Span>>);

impl Queue {
    fn next(&self) -> Option<Span> {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queue.pop_front()
    }

    fn put_back(&self, span: Span) {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_front(span);
    }
}

impl Transfer {
    /// Fetches these pieces over several connections. Each failure is waited out as far as there is patience.
    pub(super) async fn pieces(
        self: Arc<Self>,
        pieces: Vec<Span>,
        connections: usize,
    ) -> Result<(), Trouble> {
        let queue = Arc::new(Queue(Mutex::new(pieces.into())));
        let mut workers = JoinSet::new();
        for _ in 0..connections.max(1) {
            let (transfer, queue) = (Arc::clone(&self), Arc::clone(&queue));
            workers.spawn(async move { transfer.work(&queue).await });
        }
        while let Some(worked) = workers.join_next().await {
            worked.map_err(|_| Trouble::Final(DownloadError::Ending))??;
        }
        Ok(())
    }

    async fn work(&self, queue: &Queue) -> Result<(), Trouble> {
        while let Some(span) = queue.next() {
            let mut at = span.start;
            let fetched = self.piece(span, &mut at).await;
            let rest = Span {
                start: at,
                end: span.end,
            };
            if rest.length() > 0 {
                queue.put_back(rest);
            }
            let trouble = match fetched {
                Ok(()) if rest.length() == 0 => continue,
                Ok(()) => Trouble::passing(DownloadError::Short {
                    url: self.url.clone(),
                }),
                Err(trouble) => trouble,
            };
            self.patience.bear(trouble, self.flow.total()).await?;
        }
        Ok(())
    }

    async fn piece(&self, span: Span, at: &mut u64) -> Result<(), Trouble> {
        let range = format!("bytes={}-{}", span.start, span.end - 1);
        let mut request = Request::get(self.url.clone()).with(RANGE, &range);
        if let Some(mark) = self.source.mark() {
            request = request.with(IF_RANGE, mark);
        }
        let response = self.client.send(&request).await?;
        match response.status {
            StatusCode::PARTIAL_CONTENT => {
                let fits = content_range(&response).is_some_and(|(first, last, size)| {
                    first == span.start
                        && last < span.end
                        && (size.is_none() || size == self.source.size)
                });
                if !fits || !self.source.is_of(&response.headers) {
                    return Err(Trouble::Changed);
                }
            }
            status if status.is_success() => {
                let size = response.header(&CONTENT_LENGTH);
                let size = size.and_then(|length| length.parse().ok());
                let same = self.source.is_of(&response.headers) && size == self.source.size;
                return Err(if same {
                    Trouble::Whole
                } else {
                    Trouble::Changed
                });
            }
            _ => return Err(Trouble::of_status(&self.url, &response)),
        }
        self.take(response.body, span.end, at).await
    }

    /// Fetches the file from its beginning to its end, however long it is.
    pub(super) async fn whole(
        &self,
        limit: Option<u64>,
        repository: Option<&Repository>,
    ) -> Result<(), Trouble> {
        let response = self.client.send(&Request::get(self.url.clone())).await?;
        if response.status != StatusCode::OK {
            return Err(match response.status {
                StatusCode::PARTIAL_CONTENT => Trouble::Changed,
                _ => Trouble::of_status(&self.url, &response),
            });
        }
        let mut body = response.body;
        let mut at = 0;
        let mut asked = 0;
        loop {
            if at >= asked {
                let room = repository.map_or(Ok(()), |repository| repository.check_room(STEP));
                room.map_err(|error| Trouble::Final(error.into()))?;
                asked += STEP;
            }
            let end = limit.map_or(asked, |limit| asked.min(limit + 1));
            let before = at;
            self.take_some(&mut body, end, &mut at).await?;
            if let Some(limit) = limit
                && at > limit
            {
                return Err(Trouble::Final(DownloadError::TooLarge { size: at, limit }));
            }
            if at == before || at < end {
                break;
            }
        }
        self.flow.end_at(at);
        Ok(())
    }

    async fn take(&self, mut body: Body, end: u64, at: &mut u64) -> Result<(), Trouble> {
        self.take_some(&mut body, end, at).await?;
        if *at == end {
            // So that the connection is free for the next piece.
            let _broken = body.next().await;
        }
        Ok(())
    }

    /// Writes what comes until `end` or until nothing comes any more; `at` is moved as far as it is written.
    async fn take_some(&self, body: &mut Body, end: u64, at: &mut u64) -> Result<(), Trouble> {
        let mut buffer = Vec::with_capacity(BUFFER);
        let mut written = Instant::now();
        loop {
            let wanted = end.saturating_sub(*at + buffer.len() as u64);
            if wanted == 0 {
                break;
            }
            let data = match body.up_to(wanted).await {
                Ok(Some(data)) => data,
                Ok(None) => break,
                Err(error) => {
                    // What has come is not asked for again.
                    self.write(buffer, at).await?;
                    return Err(error.into());
                }
            };
            self.throttle.take(data.len() as u64).await;
            buffer.extend_from_slice(&data);
            // What comes slowly is not lost either.
            if buffer.len() >= BUFFER || written.elapsed() >= SLOW {
                let full = std::mem::replace(&mut buffer, Vec::with_capacity(BUFFER));
                self.write(full, at).await?;
                written = Instant::now();
            }
        }
        self.write(buffer, at).await
    }

    async fn write(&self, bytes: Vec<u8>, at: &mut u64) -> Result<(), Trouble> {
        let span = Span {
            start: *at,
            end: *at + bytes.len() as u64,
        };
        if span.length() == 0 {
            return Ok(());
        }
        let (staging, attempt, sparse) = (Arc::clone(&self.staging), self.attempt, self.sparse);
        let written =
            tokio::task::spawn_blocking(move || staging.write(attempt, &bytes, span.start, sparse));
        written
            .await
            .map_err(|_| Trouble::Final(DownloadError::Ending))?
            .map_err(|error| Trouble::Final(error.into()))?;
        self.flow.add(span);
        *at = span.end;
        Ok(())
    }
}
