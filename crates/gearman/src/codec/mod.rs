//! The wire format: a 12-byte header and arguments, or lines of text on the same connection.
//!
//! [`Codec`] reads and writes both directions. It never allocates by the length in a header: memory grows with the
//! bytes received, and a length above [`FrameLimits`] is rejected before its data is read. After an error the position
//! in the stream is unknown and the connection must be closed.

mod kind;
mod packet;
#[cfg(test)]
mod tests;

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio_util::codec::{Decoder, Encoder};

pub use self::kind::PacketKind;
pub use self::packet::{JobPriority, Packet};

pub(crate) const HEADER_LEN: usize = 12;

/// The first four bytes of a packet, which give its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Magic {
    /// Sent to the job server.
    Request,
    /// Sent by the job server.
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

/// Bounds on the memory that one frame from a peer may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// Maximum length of a packet's data, in bytes.
    pub max_frame: usize,
    /// Maximum length of a line of text, in bytes.
    pub max_line: usize,
}

impl Default for FrameLimits {
    fn default() -> Self {
        Self {
            max_frame: 16 << 20,
            max_line: 64 << 10,
        }
    }
}

/// One unit of a gearman stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GearmanFrame {
    Packet(Packet),
    /// A line of the admin protocol, without its line ending.
    Line(String),
}

/// An error decoding or encoding a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("invalid packet magic {0:02x?}")]
    BadMagic([u8; 4]),
    #[error("unknown packet type {0}")]
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
    #[error("{kind} has a NUL byte inside an argument other than the last")]
    NulInArgument { kind: PacketKind },
    #[error("line of text exceeds the limit of {max} bytes")]
    LineTooLong { max: usize },
    #[error("line of text is not UTF-8")]
    LineNotText,
    #[error("received an HTTP request on a gearman port")]
    Http,
    #[error("stream ended after {got} bytes of a frame")]
    Truncated { got: usize },
}

/// A failed read or write on a gearman stream.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error("malformed gearman stream")]
    Frame(#[from] FrameError),
    #[error("gearman connection failed")]
    Io(#[from] io::Error),
}

/// Encodes packets and decodes frames.
#[derive(Clone, Debug)]
pub struct Codec {
    magic: Magic,
    limits: FrameLimits,
    /// How many bytes of the incomplete line have been searched for a line end.
    searched: usize,
}

impl Codec {
    /// Creates a codec that writes packets with `magic` and reads packets with either.
    pub fn new(magic: Magic, limits: FrameLimits) -> Self {
        Self {
            magic,
            limits,
            searched: 0,
        }
    }

    fn packet(&self, src: &mut BytesMut) -> Result<Option<GearmanFrame>, FrameError> {
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
        Packet::parse(kind, src.split_to(len).freeze())
            .map(|packet| Some(GearmanFrame::Packet(packet)))
    }

    fn line(&mut self, src: &mut BytesMut) -> Result<Option<GearmanFrame>, FrameError> {
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
            Ok(text) => Ok(Some(GearmanFrame::Line(text.to_owned()))),
            Err(_) => Err(FrameError::LineNotText),
        }
    }
}

impl Decoder for Codec {
    type Item = GearmanFrame;
    type Error = StreamError;

    fn decode(&mut self, src: &mut BytesMut) -> Result<Option<GearmanFrame>, StreamError> {
        Ok(match src.first() {
            None => None,
            Some(0) => self.packet(src)?,
            Some(_) => self.line(src)?,
        })
    }

    fn decode_eof(&mut self, src: &mut BytesMut) -> Result<Option<GearmanFrame>, StreamError> {
        match self.decode(src)? {
            None if !src.is_empty() => Err(FrameError::Truncated { got: src.len() }.into()),
            frame => Ok(frame),
        }
    }
}

impl Encoder<&Packet> for Codec {
    type Error = StreamError;

    fn encode(&mut self, packet: &Packet, dst: &mut BytesMut) -> Result<(), StreamError> {
        Ok(packet.encode(self.magic, self.limits.max_frame, dst)?)
    }
}

/// Removes the NUL that some peers append to the last argument.
pub(crate) fn strip_trailing_nul(mut value: Bytes) -> Bytes {
    if value.last() == Some(&0) {
        value.truncate(value.len() - 1);
    }
    value
}
