//! The bytes of an answer, as they come.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::client::Idle;
use crate::error::Error;
use crate::url::Url;

/// The bytes of an answer. When all of them have come, the connection serves the next request.
#[derive(Debug)]
pub struct Body {
    pub(crate) incoming: Incoming,
    pub(crate) url: Url,
    /// What came and was not asked for yet.
    pub(crate) rest: Option<Bytes>,
    /// How long the server may send nothing.
    pub(crate) quiet: Duration,
    pub(crate) connection: Option<Idle>,
    pub(crate) pool: Arc<crate::client::Pool>,
}

impl Body {
    /// The next bytes; none at the end. An answer that ends early is an error.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let frame = tokio::time::timeout(self.quiet, self.incoming.frame()).await;
            let frame = frame.map_err(|_| Error::TimedOut {
                origin: self.url.origin().clone(),
                what: "send anything",
                seconds: self.quiet.as_secs(),
            })?;
            match frame {
                None => {
                    if let Some(connection) = self.connection.take() {
                        self.pool.put(self.url.origin(), connection);
                    }
                    return Ok(None);
                }
                Some(Err(source)) => {
                    return Err(Error::Broken {
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

    /// The next bytes, `limit` of them at most.
    pub async fn up_to(&mut self, limit: u64) -> Result<Option<Bytes>, Error> {
        let mut data = match self.rest.take() {
            Some(data) => data,
            None => match self.next().await? {
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

    /// All of it, as long as it is not more than `limit`.
    pub async fn whole(mut self, limit: usize) -> Result<Vec<u8>, Error> {
        let mut whole = Vec::new();
        while let Some(data) = self.next().await? {
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
