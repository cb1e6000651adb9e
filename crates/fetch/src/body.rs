//! Streaming response bodies.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::client::IdleConnection;
use crate::error::Error;
use crate::url::Url;

/// The body of a response. Once it is read to the end, its connection is reused.
#[derive(Debug)]
pub struct ResponseBody {
    pub(crate) incoming: Incoming,
    pub(crate) url: Url,
    /// Received bytes that were not returned yet.
    pub(crate) rest: Option<Bytes>,
    /// Timeout for each chunk.
    pub(crate) read_timeout: Duration,
    pub(crate) connection: Option<IdleConnection>,
    pub(crate) pool: Arc<crate::client::ConnectionPool>,
}

impl ResponseBody {
    /// Returns the next bytes, or `None` at the end. A truncated body is an error.
    pub async fn next_chunk(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let frame = tokio::time::timeout(self.read_timeout, self.incoming.frame()).await;
            let frame = frame.map_err(|_| Error::TimedOut {
                origin: self.url.origin().clone(),
                what: "send data",
                seconds: self.read_timeout.as_secs(),
            })?;
            match frame {
                None => {
                    if let Some(connection) = self.connection.take() {
                        self.pool.put(self.url.origin(), connection);
                    }
                    return Ok(None);
                }
                Some(Err(source)) => {
                    return Err(Error::ConnectionFailed {
                        origin: self.url.origin().clone(),
                        source,
                    });
                }
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data()
                        && !data.is_empty()
                    {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// Returns at most `limit` of the next bytes, or `None` at the end.
    pub async fn next_chunk_up_to(&mut self, limit: u64) -> Result<Option<Bytes>, Error> {
        let mut data = match self.rest.take() {
            Some(data) => data,
            None => match self.next_chunk().await? {
                Some(data) => data,
                None => return Ok(None),
            },
        };
        if let Ok(limit) = usize::try_from(limit)
            && data.len() > limit
        {
            self.rest = Some(data.split_off(limit));
        }
        Ok(Some(data))
    }

    /// Reads the whole body. Fails if it has more than `limit` bytes.
    pub async fn read_all(mut self, limit: usize) -> Result<Vec<u8>, Error> {
        let mut whole = Vec::new();
        while let Some(data) = self.next_chunk().await? {
            if whole.len() + data.len() > limit {
                return Err(Error::TooLarge {
                    url: self.url,
                    limit,
                });
            }
            whole.extend_from_slice(&data);
        }
        Ok(whole)
    }
}
