//! ZooKeeper's wire protocol, for clients and servers.
//!
//! The client encodes requests and decodes replies; the socket of the embedded store does the reverse. There is no I/O
//! here. Input is untrusted: invalid lengths and unknown codes are [`WireError`]s, and nothing is allocated by a length
//! that was not received.
//!
//! A connection starts with a [`ConnectRequest`] and a [`ConnectResponse`]. Then the client sends [`Request`]s, each
//! with an `xid`, and the server sends a [`Reply`] to each in the same order. Decoding a reply requires the [`OpCode`]
//! of its request. [`Event`]s are interleaved and have the `xid` [`XID_EVENT`].
//!
//! Frames have a length prefix of four bytes; [`take_frame`] removes them from
//! a receive buffer, and the `encode` functions append complete frames.

mod jute;
mod reply;
mod request;

#[cfg(test)]
mod tests;

use bytes::{Buf, Bytes, BytesMut};

pub use reply::{
    ConnectResponse, ErrorCode, Event, EventKind, MultiResult, Reply, ReplyHeader, Response,
};
pub use request::{AddWatchMode, ConnectRequest, Create, MultiOp, OpCode, Request, WatcherKind};

/// The `xid` of a watch event.
pub const XID_EVENT: i32 = -1;
/// The `xid` of a ping and of its reply.
pub(crate) const XID_PING: i32 = -2;
/// The `xid` of the request that restores watches.
pub(crate) const XID_SET_WATCHES: i32 = -8;

/// The default limit of a request (`jute.maxbuffer`), without the length field. The server closes the connection on
/// larger requests.
pub const MAX_REQUEST: usize = 0xf_ffff;
/// The client's limit of a reply, sufficient for a list of a million children. Servers do not limit replies.
pub(crate) const MAX_REPLY: usize = 64 * 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    #[error("malformed packet: {0}")]
    Malformed(&'static str),
    #[error("a packet of {size} bytes is larger than the {limit} allowed")]
    TooLarge { size: usize, limit: usize },
    /// The request could be answered with [`ErrorCode::Unimplemented`].
    #[error("request {xid} has the unknown operation code {code}")]
    UnknownOperation { xid: i32, code: i32 },
}

pub type WireResult<T> = Result<T, WireError>;

/// Cuts the next complete frame out of what has been received, without its length.
///
/// None means that more bytes are needed. Room for them is not reserved by the claimed length, so that
/// a few bytes cannot make us allocate many.
pub fn take_frame(received: &mut BytesMut, limit: usize) -> WireResult<Option<Bytes>> {
    let Some(size) = received.first_chunk::<4>() else {
        return Ok(None);
    };
    let size = usize::try_from(i32::from_be_bytes(*size))
        .map_err(|_| WireError::Malformed("negative length of a frame"))?;
    if size > limit {
        return Err(WireError::TooLarge { size, limit });
    }
    if received.len() - 4 < size {
        return Ok(None);
    }
    received.advance(4);
    Ok(Some(received.split_to(size).freeze()))
}
