//! Fetches a file by parallel range requests or a single request.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nodeyard_fetch::header::{CONTENT_LENGTH, IF_RANGE, RANGE};
use nodeyard_fetch::{HttpClient, HttpRequest, ResponseBody, StatusCode, Url};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::growing_file::GrowingFile;
use super::probe::{RemoteFile, content_range};
use super::ranges::ByteRange;
use super::retry_policy::RetryPolicy;
use super::staging::StagingFile;
use super::throttle::Throttle;
use super::{DownloadError, TransferError};
use crate::repository::Repository;

/// The size of the write buffer.
const BUFFER_SIZE: usize = 1 << 20;
/// A partly filled buffer is written after this time.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// For files of unknown size, disk space is checked after each of these many bytes.
const SPACE_CHECK_INTERVAL: u64 = 64 << 20;

#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) client: HttpClient,
    pub(super) url: Url,
    pub(super) source: RemoteFile,
    pub(super) staging: Arc<StagingFile>,
    /// The number of this attempt.
    pub(super) attempt: u64,
    pub(super) growing_file: Arc<GrowingFile>,
    pub(super) throttle: Throttle,
    pub(super) retry_policy: Arc<RetryPolicy>,
    /// Whether blocks of zeros are skipped, as the file already has its final size.
    pub(super) sparse: bool,
}

/// The ranges to fetch, lowest offset first.
#[derive(Debug)]
struct RangeQueue(Mutex<VecDeque<ByteRange>>);

impl RangeQueue {
    fn next(&self) -> Option<ByteRange> {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queue.pop_front()
    }

    fn requeue(&self, span: ByteRange) {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_front(span);
    }
}

impl Transfer {
    /// Fetches ranges over several connections, with retries.
    pub(super) async fn fetch_ranges(
        self: Arc<Self>,
        pieces: Vec<ByteRange>,
        connections: usize,
    ) -> Result<(), TransferError> {
        let queue = Arc::new(RangeQueue(Mutex::new(pieces.into())));
        let mut workers = JoinSet::new();
        for _ in 0..connections.max(1) {
            let (transfer, queue) = (Arc::clone(&self), Arc::clone(&queue));
            workers.spawn(async move { transfer.run_connection(&queue).await });
        }
        while let Some(worked) = workers.join_next().await {
            worked.map_err(|_| TransferError::Permanent(DownloadError::ShuttingDown))??;
        }
        Ok(())
    }

    async fn run_connection(&self, queue: &RangeQueue) -> Result<(), TransferError> {
        while let Some(span) = queue.next() {
            let mut at = span.start;
            let fetched = self.fetch_range(span, &mut at).await;
            let rest = ByteRange {
                start: at,
                end: span.end,
            };
            if rest.length() > 0 {
                queue.requeue(rest);
            }
            let error = match fetched {
                Ok(()) if rest.length() == 0 => continue,
                Ok(()) => TransferError::transient(DownloadError::Truncated {
                    url: self.url.clone(),
                }),
                Err(error) => error,
            };
            self.retry_policy
                .wait_for_retry(error, self.growing_file.total())
                .await?;
        }
        Ok(())
    }

    async fn fetch_range(&self, span: ByteRange, at: &mut u64) -> Result<(), TransferError> {
        let range = format!("bytes={}-{}", span.start, span.end - 1);
        let mut request = HttpRequest::get(self.url.clone()).with(RANGE, &range);
        if let Some(validator) = self.source.if_range() {
            request = request.with(IF_RANGE, validator);
        }
        let response = self.client.send(&request).await?;
        match response.status {
            StatusCode::PARTIAL_CONTENT => {
                let fits = content_range(&response).is_some_and(|(first, last, size)| {
                    first == span.start
                        && last < span.end
                        && (size.is_none() || size == self.source.size)
                });
                if !fits || !self.source.matches(&response.headers) {
                    return Err(TransferError::Changed);
                }
            }
            status if status.is_success() => {
                let size = response.header(&CONTENT_LENGTH);
                let size = size.and_then(|length| length.parse().ok());
                let same = self.source.matches(&response.headers) && size == self.source.size;
                return Err(if same {
                    TransferError::RangesUnsupported
                } else {
                    TransferError::Changed
                });
            }
            _ => return Err(TransferError::of_status(&self.url, &response)),
        }
        self.receive_range(response.body, span.end, at).await
    }

    /// Fetches the file by a single request.
    pub(super) async fn fetch_whole(
        &self,
        limit: Option<u64>,
        repository: Option<&Repository>,
    ) -> Result<(), TransferError> {
        let response = self
            .client
            .send(&HttpRequest::get(self.url.clone()))
            .await?;
        if response.status != StatusCode::OK {
            return Err(match response.status {
                StatusCode::PARTIAL_CONTENT => TransferError::Changed,
                _ => TransferError::of_status(&self.url, &response),
            });
        }
        let mut body = response.body;
        let mut at = 0;
        let mut checked = 0;
        loop {
            if at >= checked {
                let room = repository.map_or(Ok(()), |repository| {
                    repository.check_space(SPACE_CHECK_INTERVAL)
                });
                room.map_err(|error| TransferError::Permanent(error.into()))?;
                checked += SPACE_CHECK_INTERVAL;
            }
            let end = limit.map_or(checked, |limit| checked.min(limit + 1));
            let before = at;
            self.receive(&mut body, end, &mut at).await?;
            if let Some(limit) = limit
                && at > limit
            {
                return Err(TransferError::Permanent(DownloadError::TooLarge {
                    size: at,
                    limit,
                }));
            }
            if at == before || at < end {
                break;
            }
        }
        self.growing_file.set_size(at);
        Ok(())
    }

    async fn receive_range(
        &self,
        mut body: ResponseBody,
        end: u64,
        at: &mut u64,
    ) -> Result<(), TransferError> {
        self.receive(&mut body, end, at).await?;
        if *at == end {
            // Reads the end of the body, so that the connection is reused.
            let _ignored = body.next_chunk().await;
        }
        Ok(())
    }

    /// Writes received data until `end` or the end of the body, and advances `at`.
    async fn receive(
        &self,
        body: &mut ResponseBody,
        end: u64,
        at: &mut u64,
    ) -> Result<(), TransferError> {
        let mut buffer = Vec::with_capacity(BUFFER_SIZE);
        let mut written = Instant::now();
        loop {
            let wanted = end.saturating_sub(*at + buffer.len() as u64);
            if wanted == 0 {
                break;
            }
            let data = match body.next_chunk_up_to(wanted).await {
                Ok(Some(data)) => data,
                Ok(None) => break,
                Err(error) => {
                    // Keeps what was received before the error.
                    self.write(buffer, at).await?;
                    return Err(error.into());
                }
            };
            self.throttle.take(data.len() as u64).await;
            buffer.extend_from_slice(&data);
            // Flushes regularly, so that slow downloads make progress too.
            if buffer.len() >= BUFFER_SIZE || written.elapsed() >= FLUSH_INTERVAL {
                let full = std::mem::replace(&mut buffer, Vec::with_capacity(BUFFER_SIZE));
                self.write(full, at).await?;
                written = Instant::now();
            }
        }
        self.write(buffer, at).await
    }

    async fn write(&self, bytes: Vec<u8>, at: &mut u64) -> Result<(), TransferError> {
        let span = ByteRange {
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
            .map_err(|_| TransferError::Permanent(DownloadError::ShuttingDown))?
            .map_err(|error| TransferError::Permanent(error.into()))?;
        self.growing_file.add(span);
        *at = span.end;
        Ok(())
    }
}
