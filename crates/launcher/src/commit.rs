//! Several records in one write, which outlasts a lost connection.
//!
//! Only an ended session ends the work under a lock. When merely the connection was lost, a write may or may not
//! have happened. Writing a whole record again is harmless; of a multi, the contender it deletes tells.

use bytes::Bytes;
use nodeyard_model::{Node, NodeId, NodeRequest, Record as _, RequestId, layout};
use nodeyard_store::ext::{self, persist_in_session};
use nodeyard_store::lock::LockGuard;
use nodeyard_store::{Error, Op, OpOutcome, Result, TreePath, Version};

/// Applies all of `ops`, the last of which deletes the contender of `guard`. None if that happened and its answer
/// was lost.
pub(crate) async fn commit(guard: &LockGuard, ops: Vec<Op>) -> Result<Option<Vec<OpOutcome>>> {
    let tree = &**guard.tree();
    loop {
        match tree.multi(ops.clone()).await {
            Err(Error::ConnectionLoss) => {}
            result => return result.map(Some),
        }
        ext::reconnected(tree).await?;
        if persist_in_session(tree, || tree.stat(guard.path()))
            .await?
            .is_none()
        {
            return Ok(None);
        }
    }
}

pub(crate) fn set_node(id: NodeId, node: &Node, version: i32) -> Result<Op> {
    Ok(Op::Set {
        path: TreePath::new(layout::node(id))?,
        data: Bytes::from(node.to_json()),
        version: Version::Exactly(version),
    })
}

pub(crate) fn set_request(id: RequestId, request: &NodeRequest, version: i32) -> Result<Op> {
    Ok(Op::Set {
        path: TreePath::new(layout::request(id))?,
        data: Bytes::from(request.to_json()),
        version: Version::Exactly(version),
    })
}

pub(crate) fn unlock(guard: &LockGuard) -> Op {
    Op::Delete {
        path: guard.path().clone(),
        version: Version::Any,
    }
}
