//! What there is to know of a file before it is fetched.

use nodeyard_fetch::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, LAST_MODIFIED, RANGE,
};
use nodeyard_fetch::{Client, Request, Response, StatusCode, Url};
use serde::{Deserialize, Serialize};

use super::Trouble;

/// A file on a server, and how it is recognised.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Source {
    /// Without its query: that may be a signature, which is another one each time and not for a disk.
    url: Box<str>,
    pub(super) size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    etag: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    modified: Option<Box<str>>,
    ranges: bool,
}

impl Source {
    fn new(url: &Url, headers: &HeaderMap, size: Option<u64>, ranges: bool) -> Self {
        let text = |name| {
            let value = headers.get(name)?.to_str().ok()?;
            Some(Box::from(value))
        };
        Self {
            url: url.without_query().into(),
            size,
            etag: text(ETAG),
            modified: text(LAST_MODIFIED),
            ranges,
        }
    }

    /// What a server is told, so that it sends a piece only of the file that we know. A weak mark promises nothing
    /// about bytes.
    pub(super) fn mark(&self) -> Option<&str> {
        let etag = self.etag.as_deref().filter(|etag| !etag.starts_with("W/"));
        etag.or(self.modified.as_deref())
    }

    /// Whether pieces of it fit together.
    pub(super) fn has_pieces(&self) -> bool {
        self.ranges && self.mark().is_some() && self.size.is_some_and(|size| size > 0)
    }

    /// Whether bytes of that one are bytes of this one.
    pub(super) fn continues(&self, earlier: &Self) -> bool {
        self.has_pieces() && self == earlier
    }

    /// Whether an answer is about this file, as far as it says so.
    pub(super) fn is_of(&self, headers: &HeaderMap) -> bool {
        let same = |name, known: Option<&str>| {
            let said = headers.get(name).and_then(|value| value.to_str().ok());
            said.is_none() || known.is_none() || said == known
        };
        same(ETAG, self.etag.as_deref()) && same(LAST_MODIFIED, self.modified.as_deref())
    }
}

/// Asks for the size and the marks of a file. Servers that sign addresses refuse HEAD; then a GET for one byte says
/// the same.
pub(super) async fn probe(client: &Client, url: &Url) -> Result<Source, Trouble> {
    let head = client.send(&Request::head(url.clone())).await?;
    if head.status.is_success() {
        let size = head
            .header(&CONTENT_LENGTH)
            .and_then(|length| length.parse().ok());
        let ranges = head.header(&ACCEPT_RANGES) != Some("none");
        return Ok(Source::new(url, &head.headers, size, ranges));
    }
    if !matches!(
        head.status,
        StatusCode::BAD_REQUEST
            | StatusCode::FORBIDDEN
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::NOT_IMPLEMENTED
    ) {
        return Err(Trouble::of_status(url, &head));
    }
    let first = Request::get(url.clone()).with(RANGE, "bytes=0-0");
    let first = client.send(&first).await?;
    match first.status {
        StatusCode::PARTIAL_CONTENT => {
            let size = content_range(&first).and_then(|(_, _, size)| size);
            Ok(Source::new(url, &first.headers, size, true))
        }
        status if status.is_success() => {
            let size = first
                .header(&CONTENT_LENGTH)
                .and_then(|length| length.parse().ok());
            Ok(Source::new(url, &first.headers, size, false))
        }
        _ => Err(Trouble::of_status(url, &first)),
    }
}

/// First byte, last byte and size of the whole, as a piece says.
pub(super) fn content_range(response: &Response) -> Option<(u64, u64, Option<u64>)> {
    let text = response.header(&CONTENT_RANGE)?.strip_prefix("bytes ")?;
    let (span, size) = text.split_once('/')?;
    let (first, last) = span.split_once('-')?;
    Some((
        first.trim().parse().ok()?,
        last.trim().parse().ok()?,
        size.trim().parse().ok(),
    ))
}
