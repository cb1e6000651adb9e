//! The wire format: a 12-byte header and arguments, or lines of text on the same connection.
//!
//! [`Codec`] works for both sides. Reading never trusts a header: a frame is only ever as large in memory as
//! the bytes that have arrived, and a length above the limit is refused before any of its data is awaited.
//! After an error the stream has no known position any more; whoever reads it closes the connection and
//! names the reason.

mod kind;
mod packet;
#[cfg(test)]
mod tests;

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio_util::codec::{Decoder, Encoder};

pub use self::kind::PacketKind;
pub use self::packet::{Packet, Priority};

pub(crate) const HEADER_LEN: usize = 12;

/// The first four bytes of a packet: which way it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Magic {
    /// Towards the job server.
    Request,
    /// From the job server.
    Response,
}

impl Magic {
    pub(crate) fn bytes(self) -> &'static [u8; 4] {
        match self {
            Self::Request => b"\0REQ",
            Self::Response => b"\0RES",
        }
    }
}

/// What a peer may make us hold in memory at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest data part of a packet, in bytes.
    pub max_frame: usize,
    /// Longest line of text, in bytes.
    pub max_line: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_frame: 16 << 20,
            max_line: 64 << 10,
        }
    }
}

/// One unit of a gearman stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    Packet(Packet),
    /// A line of the admin protocol, without its line ending.
    Line(String),
}

/// Why bytes are not a gearman stream, or a packet cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("packet starts with {0:02x?} instead of a request or response magic")]
    BadMagic([u8; 4]),
    #[error("packet type {0} is not part of the protocol")]
    UnknownType(u32),
    #[error("{kind} with {len} bytes exceeds the limit of {max} bytes")]
    TooLarge {
        kind: PacketKind,
        len: usize,
        max: usize,
    },
    #[error("{kind} ends before its argument \"{argument}\"")]
    MissingArgument {
        kind: PacketKind,
        argument: &'static str,
    },
    #[error("{kind} takes no arguments but carries {len} bytes")]
    UnexpectedData { kind: PacketKind, len: usize },
    #[error("{kind} has a NUL inside an argument that NUL must end")]
    NulInArgument { kind: PacketKind },
    #[error("line of text exceeds the limit of {max} bytes")]
    LineTooLong { max: usize },
    #[error("line of text is not UTF-8")]
    LineNotText,
    #[error("this is a request of HTTP, and this port speaks gearman")]
    Http,
    #[error("stream ends inside a frame, after {got} of its bytes")]
    Truncated { got: usize },
}

/// A failed read or write on a gearman stream.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    #[error("malformed gearman stream")]
    Frame(#[from] FrameError),
    #[error("gearman connection broke")]
    Io(#[from] io::Error),
}

/// Reads and writes frames.
#[derive(Clone, Debug)]
pub struct Codec {
    magic: Magic,
    limits: Limits,
    /// How much of the unread line has been searched for its end, so that a slow writer costs no repetition.
    searched: usize,
}

impl Codec {
    /// A codec that writes packets with `magic` and reads packets with either.
    pub fn new(magic: Magic, limits: Limits) -> Self {
        Self {
            magic,
            limits,
            searched: 0,
        }
    }

    fn packet(&self, src: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        let Some((header, _)) = src.split_first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let [m0, m1, m2, m3, t0, t1, t2, t3, l0, l1, l2, l3] = *header;
        let magic = [m0, m1, m2, m3];
        if magic != *Magic::Request.bytes() && magic != *Magic::Response.bytes() {
            return Err(FrameError::BadMagic(magic));
        }
        let number = u32::from_be_bytes([t0, t1, t2, t3]);
        let kind = PacketKind::from_number(number).ok_or(FrameError::UnknownType(number))?;
        let max = self.limits.max_frame;
        let len = usize::try_from(u32::from_be_bytes([l0, l1, l2, l3])).unwrap_or(usize::MAX);
        if len > max {
            return Err(FrameError::TooLarge { kind, len, max });
        }
        if src.len() - HEADER_LEN < len {
            return Ok(None);
        }
        src.advance(HEADER_LEN);
        Packet::parse(kind, src.split_to(len).freeze()).map(|packet| Some(Frame::Packet(packet)))
    }

    fn line(&mut self, src: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        let max = self.limits.max_line;
        let found = src
            .iter()
            .skip(self.searched)
            .position(|byte| *byte == b'\n');
        let Some(offset) = found else {
            if src.len() > max {
                return Err(FrameError::LineTooLong { max });
            }
            self.searched = src.len();
            return Ok(None);
        };
        let end = self.searched + offset;
        self.searched = 0;
        if end > max {
            return Err(FrameError::LineTooLong { max });
        }
        let line = src.split_to(end);
        src.advance(1);
        let text = line.strip_suffix(b"\r").unwrap_or(&line);
        match std::str::from_utf8(text) {
            Ok(text) => Ok(Some(Frame::Line(text.to_owned()))),
            Err(_) => Err(FrameError::LineNotText),
        }
    }
}

impl Decoder for Codec {
    type Item = Frame;
    type Error = WireError;

    fn decode(&mut self, src: &mut BytesMut) -> Result<Option<Frame>, WireError> {
        Ok(match src.first() {
            None => None,
            Some(0) => self.packet(src)?,
            Some(_) => self.line(src)?,
        })
    }

    fn decode_eof(&mut self, src: &mut BytesMut) -> Result<Option<Frame>, WireError> {
        match self.decode(src)? {
            None if !src.is_empty() => Err(FrameError::Truncated { got: src.len() }.into()),
            frame => Ok(frame),
        }
    }
}

impl Encoder<&Packet> for Codec {
    type Error = WireError;

    fn encode(&mut self, packet: &Packet, dst: &mut BytesMut) -> Result<(), WireError> {
        Ok(packet.encode(self.magic, self.limits.max_frame, dst)?)
    }
}

/// Drops the NUL that some peers put behind the last argument of a handle or a text.
pub(crate) fn without_trailing_nul(mut value: Bytes) -> Bytes {
    if value.last() == Some(&0) {
        value.truncate(value.len() - 1);
    }
    value
}
