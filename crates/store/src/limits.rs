//! What fits into one request.
//!
//! A server of ZooKeeper closes the connection on a packet that is too large, so it must not be sent. The embedded
//! store could take more, and refuses the same: what was written to one backend can be written to every other.

use crate::error::{Error, Result};
use crate::path::TreePath;
use crate::tree::{MAX_DATA, Op};
use crate::zookeeper::wire::MAX_REQUEST;

/// What surrounds path and data in a packet, generously.
const ENVELOPE: usize = 64;

/// `prefix` is what the server puts before each path.
pub(crate) fn check_size(prefix: &str, path: &TreePath, data: usize) -> Result<()> {
    let around = prefix.len() + path.as_str().len() + 2 * ENVELOPE;
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

/// The single operations must fit, and all of them together into one packet.
pub(crate) fn check_multi(prefix: &str, ops: &[Op]) -> Result<()> {
    let mut total = ENVELOPE;
    for (index, op) in ops.iter().enumerate() {
        let failed = |source| Error::Multi {
            index,
            source: Box::new(source),
        };
        check_size(prefix, op.path(), data_length(op)).map_err(failed)?;
        total += prefix.len() + op.path().as_str().len() + data_length(op) + ENVELOPE;
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
