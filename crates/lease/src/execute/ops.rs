//! The operations of transactions.

use bytes::Bytes;
use nodeyard_model::{Node, NodeId, Record as _};
use nodeyard_store::{CreateMode, Error, Op, Result, TreePath, Version};

use crate::context::{json, node_path};

/// Returns true if a record was changed since it was read.
pub(super) fn is_conflict(error: &Error) -> bool {
    match error {
        Error::Multi { source, .. } => is_conflict(source),
        Error::BadVersion { .. }
        | Error::NoNode { .. }
        | Error::NodeExists { .. }
        | Error::NotEmpty { .. } => true,
        _ => false,
    }
}

pub(super) fn create(path: &TreePath, data: Bytes, mode: CreateMode) -> Op {
    Op::Create {
        path: path.clone(),
        data,
        mode,
    }
}

pub(super) fn set(path: &TreePath, value: &impl serde::Serialize, version: i32) -> Result<Op> {
    Ok(Op::Set {
        path: path.clone(),
        data: json(path, value)?,
        version: Version::Exactly(version),
    })
}

pub(super) fn set_node(id: NodeId, node: &Node, version: i32) -> Result<Op> {
    Ok(Op::Set {
        path: node_path(id)?,
        data: Bytes::from(node.to_json()),
        version: Version::Exactly(version),
    })
}

pub(super) fn delete(path: TreePath) -> Op {
    Op::Delete {
        path,
        version: Version::Any,
    }
}
