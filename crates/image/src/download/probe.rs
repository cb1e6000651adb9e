//! Requests size, validators and range support of a file before the download.

use nodeyard_fetch::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, LAST_MODIFIED, RANGE,
};
use nodeyard_fetch::{HttpClient, HttpRequest, HttpResponse, StatusCode, Url};
use serde::{Deserialize, Serialize};

use super::TransferError;

/// Metadata of a file on a server, used to detect changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct RemoteFile {
    /// Without its query, which may be a secret that changes each time.
    url: Box<str>,
    pub(super) size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    etag: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    modified: Option<Box<str>>,
    ranges: bool,
}

impl RemoteFile {
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

    /// Returns the value of If-Range: a strong ETag or Last-Modified.
    pub(super) fn if_range(&self) -> Option<&str> {
        let etag = self.etag.as_deref().filter(|etag| !etag.starts_with("W/"));
        etag.or(self.modified.as_deref())
    }

    /// Returns whether the file can be fetched in ranges that are guaranteed to be of the same version.
    pub(super) fn supports_ranges(&self) -> bool {
        self.ranges && self.if_range().is_some() && self.size.is_some_and(|size| size > 0)
    }

    /// Returns whether data of `earlier` can be reused.
    pub(super) fn is_continuation_of(&self, earlier: &Self) -> bool {
        self.supports_ranges() && self == earlier
    }

    /// Returns whether the validators of a response, if any, are those of this file.
    pub(super) fn matches(&self, headers: &HeaderMap) -> bool {
        let same = |name, known: Option<&str>| {
            let said = headers.get(name).and_then(|value| value.to_str().ok());
            said.is_none() || known.is_none() || said == known
        };
        same(ETAG, self.etag.as_deref()) && same(LAST_MODIFIED, self.modified.as_deref())
    }
}

/// Requests the metadata of a file by HEAD, or by GET of one byte because servers with signed URLs reject HEAD.
pub(super) async fn probe(client: &HttpClient, url: &Url) -> Result<RemoteFile, TransferError> {
    let head = client.send(&HttpRequest::head(url.clone())).await?;
    if head.status.is_success() {
        let size = head
            .header(&CONTENT_LENGTH)
            .and_then(|length| length.parse().ok());
        let ranges = head.header(&ACCEPT_RANGES) != Some("none");
        return Ok(RemoteFile::new(url, &head.headers, size, ranges));
    }
    if !matches!(
        head.status,
        StatusCode::BAD_REQUEST
            | StatusCode::FORBIDDEN
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::NOT_IMPLEMENTED
    ) {
        return Err(TransferError::of_status(url, &head));
    }
    let first = HttpRequest::get(url.clone()).with(RANGE, "bytes=0-0");
    let first = client.send(&first).await?;
    match first.status {
        StatusCode::PARTIAL_CONTENT => {
            let size = content_range(&first).and_then(|(_, _, size)| size);
            Ok(RemoteFile::new(url, &first.headers, size, true))
        }
        status if status.is_success() => {
            let size = first
                .header(&CONTENT_LENGTH)
                .and_then(|length| length.parse().ok());
            Ok(RemoteFile::new(url, &first.headers, size, false))
        }
        _ => Err(TransferError::of_status(url, &first)),
    }
}

/// Parses Content-Range into first byte, last byte and total size.
pub(super) fn content_range(response: &HttpResponse) -> Option<(u64, u64, Option<u64>)> {
    let text = response.header(&CONTENT_RANGE)?.strip_prefix("bytes ")?;
    let (span, size) = text.split_once('/')?;
    let (first, last) = span.split_once('-')?;
    Some((
        first.trim().parse().ok()?,
        last.trim().parse().ok()?,
        size.trim().parse().ok(),
    ))
}
