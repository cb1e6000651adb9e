//! ZooKeeper's jute serialization: big-endian numbers, and a signed length of four bytes
//! before variable-length data.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{WireError, WireResult};
use crate::tree::Stat;

/// Appends one frame with the content that `content` writes.
pub(super) fn frame(out: &mut BytesMut, content: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.put_i32(0);
    content(out);
    let size = length(out.len() - start - 4);
    if let Some(field) = out.get_mut(start..start + 4) {
        field.copy_from_slice(&size.to_be_bytes());
    }
}

/// Converts a length. Lengths above 2 GiB saturate; receivers reject such packets anyway.
fn length(len: usize) -> i32 {
    i32::try_from(len).unwrap_or(i32::MAX)
}

pub(super) fn put_bool(out: &mut BytesMut, value: bool) {
    out.put_u8(u8::from(value));
}

pub(super) fn put_buffer(out: &mut BytesMut, value: &[u8]) {
    out.put_i32(length(value.len()));
    out.put_slice(value);
}

pub(super) fn put_string(out: &mut BytesMut, value: &str) {
    put_buffer(out, value.as_bytes());
}

pub(super) fn put_strings(out: &mut BytesMut, values: &[String]) {
    out.put_i32(length(values.len()));
    for value in values {
        put_string(out, value);
    }
}

pub(super) fn put_stat(out: &mut BytesMut, stat: &Stat) {
    out.put_i64(stat.czxid);
    out.put_i64(stat.mzxid);
    out.put_i64(stat.ctime);
    out.put_i64(stat.mtime);
    out.put_i32(stat.version);
    out.put_i32(stat.cversion);
    out.put_i32(stat.aversion);
    out.put_i64(stat.ephemeral_owner);
    out.put_i32(stat.data_length);
    out.put_i32(stat.num_children);
    out.put_i64(stat.pzxid);
}

/// Reads the content of one frame.
#[derive(Debug)]
pub(super) struct JuteReader {
    rest: Bytes,
}

const SHORT: WireError = WireError::Malformed("unexpected end");

impl JuteReader {
    pub(super) fn new(frame: Bytes) -> Self {
        Self { rest: frame }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Fails if there are unread bytes.
    pub(super) fn finish(self) -> WireResult<()> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(WireError::Malformed("unexpected trailing bytes"))
        }
    }

    pub(super) fn i32(&mut self) -> WireResult<i32> {
        self.rest.try_get_i32().map_err(|_| SHORT)
    }

    pub(super) fn i64(&mut self) -> WireResult<i64> {
        self.rest.try_get_i64().map_err(|_| SHORT)
    }

    pub(super) fn bool(&mut self) -> WireResult<bool> {
        match self.rest.try_get_u8().map_err(|_| SHORT)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Malformed("invalid boolean")),
        }
    }

    /// Reads a length; null, encoded as -1, is 0.
    fn length(&mut self) -> WireResult<usize> {
        match self.i32()? {
            -1 => Ok(0),
            len => usize::try_from(len).map_err(|_| WireError::Malformed("negative length")),
        }
    }

    fn take(&mut self) -> WireResult<Bytes> {
        let len = self.length()?;
        if len > self.rest.len() {
            return Err(SHORT);
        }
        Ok(self.rest.split_to(len))
    }

    /// Reads a buffer. Copied, because a slice would keep the whole receive buffer alive.
    pub(super) fn buffer(&mut self) -> WireResult<Bytes> {
        Ok(Bytes::copy_from_slice(&self.take()?))
    }

    pub(super) fn string(&mut self) -> WireResult<String> {
        let bytes = self.take()?;
        match std::str::from_utf8(&bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(WireError::Malformed("string is not UTF-8")),
        }
    }

    /// Reads the number of elements of a list, each of which has at least `least` bytes.
    pub(super) fn count(&mut self, least: usize) -> WireResult<usize> {
        let count = self.length()?;
        if count > self.rest.len() / least.max(1) {
            return Err(SHORT);
        }
        Ok(count)
    }

    pub(super) fn strings(&mut self) -> WireResult<Vec<String>> {
        let count = self.count(4)?;
        (0..count).map(|_| self.string()).collect()
    }

    pub(super) fn stat(&mut self) -> WireResult<Stat> {
        Ok(Stat {
            czxid: self.i64()?,
            mzxid: self.i64()?,
            ctime: self.i64()?,
            mtime: self.i64()?,
            version: self.i32()?,
            cversion: self.i32()?,
            aversion: self.i32()?,
            ephemeral_owner: self.i64()?,
            data_length: self.i32()?,
            num_children: self.i32()?,
            pzxid: self.i64()?,
        })
    }
}
