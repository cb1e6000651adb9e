//! Size limits of requests.
//!
//! ZooKeeper closes the connection on packets that are too large, so they must not be sent. The embedded store has the
//! same limits, so that its records can be written to every backend.

use crate::error::{Error, Result};
use crate::path::TreePath;
use crate::tree::{MAX_DATA, Op};
use crate::zookeeper::wire::MAX_REQUEST;

/// An upper bound on the packet size without path and data.
const PACKET_OVERHEAD: usize = 64;

/// Checks the size of a request; `prefix` is the chroot.
pub(crate) fn check_size(prefix: &str, path: &TreePath, data: usize) -> Result<()> {
    let around = prefix.len() + path.as_str().len() + 2 * PACKET_OVERHEAD;
    let limit = MAX_DATA.min(MAX_REQUEST.saturating_sub(around));
    if data > limit {
        return Err(Error::TooLarge {
            path: path.clone(),
            size: data,
            limit,
        });
    }
    Ok(())
}

/// Checks the size of each operation and of the whole packet.
pub(crate) fn check_multi(prefix: &str, ops: &[Op]) -> Result<()> {
    let mut total = PACKET_OVERHEAD;
    for (index, op) in ops.iter().enumerate() {
        let failed = |source| Error::Multi {
            index,
            source: Box::new(source),
        };
        check_size(prefix, op.path(), data_length(op)).map_err(failed)?;
        total += prefix.len() + op.path().as_str().len() + data_length(op) + PACKET_OVERHEAD;
        if total > MAX_REQUEST {
            return Err(failed(Error::TooLarge {
                path: op.path().clone(),
                size: total,
                limit: MAX_REQUEST,
            }));
        }
    }
    Ok(())
}

fn data_length(op: &Op) -> usize {
    match op {
        Op::Create { data, .. } | Op::Set { data, .. } => data.len(),
        Op::Delete { .. } | Op::Check { .. } => 0,
    }
}
