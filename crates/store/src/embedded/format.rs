//! The file format: tables, keys and the encoding of records.
//!
//! The key of a record is its parent's path, a zero byte, and its name, so the children of a record are one contiguous
//! range of keys. The root has the key `/`.
//!
//! A value is a header of [`HEADER`] bytes, little-endian, and then the data.

use std::ops::Range;

use bytes::Bytes;
use redb::TableDefinition;

use crate::path::TreePath;
use crate::tree::{Record, Stat};

/// The version of the file format, incremented by incompatible changes.
pub(super) const FORMAT: i64 = 1;

pub(super) const NODES: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("nodes");
/// Ephemeral records and their sessions, which are deleted when the file is opened.
pub(super) const EPHEMERALS: TableDefinition<'static, &str, i64> =
    TableDefinition::new("ephemerals");
pub(super) const META: TableDefinition<'static, &str, i64> = TableDefinition::new("meta");

pub(super) const META_FORMAT: &str = "format";
/// How often the file was opened. The upper half of transaction and session ids, which makes them unique.
pub(super) const META_EPOCH: &str = "epoch";
/// The last durable transaction id.
pub(super) const META_ZXID: &str = "zxid";

const HEADER: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct NodeValue {
    pub(super) czxid: i64,
    pub(super) mzxid: i64,
    pub(super) pzxid: i64,
    pub(super) ctime: i64,
    pub(super) mtime: i64,
    /// The number of children that were ever created, which is the next sequence number.
    pub(super) creates: i64,
    pub(super) owner: i64,
    pub(super) version: i32,
    pub(super) num_children: i32,
    pub(super) data: Bytes,
}

#[derive(Debug, thiserror::Error)]
#[error("truncated record: {0} bytes are fewer than its header")]
pub(super) struct TruncatedRecord(usize);

impl NodeValue {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + self.data.len());
        for number in [
            self.czxid,
            self.mzxid,
            self.pzxid,
            self.ctime,
            self.mtime,
            self.creates,
            self.owner,
        ] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.num_children.to_le_bytes());
        out.extend_from_slice(&self.data);
        out
    }

    pub(super) fn decode(value: &[u8]) -> Result<Self, TruncatedRecord> {
        let mut rest = value;
        let short = || TruncatedRecord(value.len());
        let mut long = || {
            let (head, tail) = rest.split_first_chunk::<8>()?;
            rest = tail;
            Some(i64::from_le_bytes(*head))
        };
        let mut node = NodeValue {
            czxid: long().ok_or_else(short)?,
            mzxid: long().ok_or_else(short)?,
            pzxid: long().ok_or_else(short)?,
            ctime: long().ok_or_else(short)?,
            mtime: long().ok_or_else(short)?,
            creates: long().ok_or_else(short)?,
            owner: long().ok_or_else(short)?,
            ..NodeValue::default()
        };
        let (version, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
        let (num_children, data) = rest.split_first_chunk::<4>().ok_or_else(short)?;
        node.version = i32::from_le_bytes(*version);
        node.num_children = i32::from_le_bytes(*num_children);
        node.data = Bytes::copy_from_slice(data);
        Ok(node)
    }

    pub(super) fn stat(&self) -> Stat {
        // ZooKeeper shows additions and removals, but counts additions: every child that was ever
        // created and is not there any more has been removed.
        let removed = self.creates.wrapping_sub(self.num_children.into());
        let cversion = self.creates.wrapping_add(removed);
        Stat {
            czxid: self.czxid,
            mzxid: self.mzxid,
            pzxid: self.pzxid,
            ctime: self.ctime,
            mtime: self.mtime,
            version: self.version,
            cversion: cversion as i32,
            aversion: 0,
            ephemeral_owner: self.owner,
            data_length: i32::try_from(self.data.len()).unwrap_or(i32::MAX),
            num_children: self.num_children,
        }
    }

    pub(super) fn is_ephemeral(&self) -> bool {
        self.owner != 0
    }

    pub(super) fn into_record(self) -> Record {
        Record {
            stat: self.stat(),
            data: self.data,
        }
    }
}

pub(super) fn key(path: &TreePath) -> Vec<u8> {
    match path.parent() {
        None => path.as_str().into(),
        Some(parent) => below(&parent, path.name()),
    }
}

/// Returns the key range of all children of `parent`.
pub(super) fn children(parent: &TreePath) -> Range<Vec<u8>> {
    let start = below(parent, "");
    let mut end = start.clone();
    if let Some(separator) = end.last_mut() {
        *separator += 1;
    }
    start..end
}

/// Returns the name in the key of a child of `parent`.
pub(super) fn child_name<'a>(parent: &TreePath, key: &'a [u8]) -> Option<&'a str> {
    std::str::from_utf8(key.get(parent.as_str().len() + 1..)?).ok()
}

fn below(parent: &TreePath, name: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(parent.as_str().len() + 1 + name.len());
    key.extend_from_slice(parent.as_str().as_bytes());
    key.push(0);
    key.extend_from_slice(name.as_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> TreePath {
        TreePath::new(text).unwrap()
    }

    #[test]
    fn a_record_comes_back_from_its_bytes() {
        let node = NodeValue {
            czxid: 1,
            mzxid: 2,
            pzxid: 3,
            ctime: 4,
            mtime: 5,
            creates: 6,
            owner: -7,
            version: 8,
            num_children: 9,
            data: Bytes::from_static(b"text"),
        };
        let bytes = node.encode();
        assert_eq!(bytes.len(), HEADER + 4);
        assert_eq!(NodeValue::decode(&bytes).unwrap(), node);
        assert!(NodeValue::decode(&bytes[..HEADER - 1]).is_err());
    }

    #[test]
    fn the_range_of_children_has_children_only() {
        let range = children(&path("/a"));
        assert!(range.contains(&key(&path("/a/b"))));
        assert!(range.contains(&key(&path("/a/\u{10ffff}"))));
        for other in ["/", "/a", "/a/b/c", "/ab", "/a!/b", "/b", "/a/b!/c"] {
            assert!(!range.contains(&key(&path(other))), "{other}");
        }
        let top = children(&TreePath::root());
        assert!(top.contains(&key(&path("/a"))));
        assert!(!top.contains(&key(&path("/a/b"))));
        assert!(!top.contains(&key(&TreePath::root())));
        assert_eq!(child_name(&path("/a"), &key(&path("/a/b"))), Some("b"));
    }
}
