//! Writes several records atomically, across lost connections.
//!
//! Only the end of the session ends the work under a lock. After a lost connection a write may or may not have
//! happened. Repeating the write of a record is harmless; for a multi, the contender that it deletes shows whether it
//! happened.

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
        // The server that answers now may not have seen the write yet.
        let contender = persist_in_session(tree, || async {
            tree.sync().await?;
            tree.stat(guard.path()).await
        });
        if contender.await?.is_none() {
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use futures_util::FutureExt as _;
    use nodeyard_store::embedded::Embedded;
    use nodeyard_store::lock::Locks;
    use nodeyard_store::testing::{Call, Fate, Staged};

    use super::*;

    /// A server that has not seen the write yet would say that the contender is there, and the write would be repeated
    /// and fail.
    #[tokio::test]
    async fn a_commit_whose_answer_is_lost_is_looked_for_on_an_up_to_date_server() {
        let directory = tempfile::tempdir().unwrap();
        let store = Embedded::open(directory.path()).unwrap();
        let calls = Arc::new(Mutex::new(Vec::new()));
        let staged = Staged::new(store.session(), {
            let calls = Arc::clone(&calls);
            move |call| {
                let (name, fate) = match call {
                    Call::Write([_, _]) => ("commit", Fate::AnswerLost),
                    Call::Write(_) => ("lock", Fate::Done),
                    Call::Read(_) => ("read", Fate::Done),
                    Call::Sync => ("sync", Fate::Done),
                };
                calls.lock().unwrap().push(name);
                async move { fate }.boxed()
            }
        });
        let locks = Locks::new(staged);
        let guard = locks.lock(TreePath::new("/lock").unwrap()).acquire().await;
        let guard = guard.unwrap();
        let check = Op::Check {
            path: TreePath::new("/lock").unwrap(),
            version: Version::Any,
        };
        calls.lock().unwrap().clear();
        let committed = commit(&guard, vec![check, unlock(&guard)]).await;
        assert_eq!(committed.unwrap(), None);
        assert_eq!(*calls.lock().unwrap(), ["commit", "sync", "read"]);
        guard.forget();
    }
}
