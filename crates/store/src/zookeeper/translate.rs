//! Converts store operations to protocol requests, and responses to results.

use super::call::SessionCallError;
use super::wire::{Create, ErrorCode, MAX_REPLY, MultiOp, MultiResult, WireError};
use crate::error::{Error, Result};
use crate::path::{InvalidPath, TreePath};
use crate::tree::{CreateMode, Op, OpOutcome, Version};

/// An error code without a corresponding store error.
#[derive(Debug, thiserror::Error)]
#[error("ZooKeeper error {}", .0.number())]
pub struct ServerError(ErrorCode);

/// Prepends the chroot, which has no trailing slash.
pub(super) fn absolute(chroot: &str, path: &TreePath) -> String {
    match (chroot, path.as_str()) {
        ("", path) => path.to_owned(),
        (chroot, "/") => chroot.to_owned(),
        (chroot, path) => format!("{chroot}{path}"),
    }
}

/// As [`absolute`], but a sequential create of the root creates a child whose name is only digits.
pub(super) fn absolute_to_create(chroot: &str, path: &TreePath, mode: CreateMode) -> String {
    if path.is_root() && mode.is_sequential() {
        format!("{chroot}/")
    } else {
        absolute(chroot, path)
    }
}

/// Removes the chroot from a path that the server sent.
pub(super) fn relative(chroot: &str, path: &str) -> Result<TreePath> {
    let below = match path.strip_prefix(chroot) {
        Some("") => "/",
        Some(below) => below,
        None => {
            return Err(backend(
                format!("{path}: the server answered with a path outside of {chroot}"),
                WireError::Malformed("unexpected path"),
            ));
        }
    };
    Ok(TreePath::new(below)?)
}

pub(super) fn number(version: Version) -> i32 {
    match version {
        Version::Any => -1,
        Version::Exactly(version) => version,
    }
}

pub(super) fn backend(
    context: String,
    source: impl std::error::Error + Send + Sync + 'static,
) -> Error {
    Error::Backend {
        context,
        source: Box::new(source),
    }
}

pub(super) fn unexpected(path: &TreePath) -> Error {
    backend(
        format!("{path}: the server gave an answer of the wrong kind"),
        WireError::Malformed("unexpected response type"),
    )
}

pub(super) fn error(failure: SessionCallError, path: &TreePath) -> Error {
    let owned = || path.clone();
    match failure {
        SessionCallError::Server(code) => match code {
            ErrorCode::NoNode => Error::NoNode { path: owned() },
            ErrorCode::NodeExists => Error::NodeExists { path: owned() },
            ErrorCode::BadVersion => Error::BadVersion { path: owned() },
            ErrorCode::NotEmpty => Error::NotEmpty { path: owned() },
            ErrorCode::NoChildrenForEphemerals => Error::NoChildrenForEphemerals { path: owned() },
            ErrorCode::NoAuth => Error::NoAuth { path: owned() },
            ErrorCode::BadArguments => Error::InvalidPath(InvalidPath {
                path: path.to_string(),
                reason: "rejected by the server",
            }),
            ErrorCode::Unimplemented => backend(
                format!("{path}: the server is too old for this; use ZooKeeper 3.6 or later"),
                ServerError(code),
            ),
            code => backend(
                format!("{path}: the server could not do it; the reason is in its log"),
                ServerError(code),
            ),
        },
        SessionCallError::TooLarge(size) => backend(
            format!("{path}: the answer is too large"),
            WireError::TooLarge {
                size,
                limit: MAX_REPLY,
            },
        ),
        SessionCallError::ConnectionLoss => Error::ConnectionLoss,
        SessionCallError::SessionExpired => Error::SessionExpired,
        SessionCallError::Closed => Error::Closed,
    }
}

pub(super) fn multi_op(chroot: &str, op: &Op) -> MultiOp {
    let path = absolute(chroot, op.path());
    match op {
        Op::Create { data, mode, .. } => MultiOp::Create(Create {
            path: absolute_to_create(chroot, op.path(), *mode),
            data: data.clone(),
            mode: *mode,
        }),
        Op::Set { data, version, .. } => MultiOp::SetData {
            path,
            data: data.clone(),
            version: number(*version),
        },
        Op::Delete { version, .. } => MultiOp::Delete {
            path,
            version: number(*version),
        },
        Op::Check { version, .. } => MultiOp::Check {
            path,
            version: number(*version),
        },
    }
}

pub(super) fn multi_outcomes(
    chroot: &str,
    ops: &[Op],
    results: Vec<MultiResult>,
) -> Result<Vec<OpOutcome>> {
    for (index, (op, result)) in ops.iter().zip(&results).enumerate() {
        match result {
            // Operations before and after the one that failed.
            MultiResult::Failed(None | Some(ErrorCode::RuntimeInconsistency)) => {}
            MultiResult::Failed(Some(code)) => {
                return Err(Error::Multi {
                    index,
                    source: Box::new(error(SessionCallError::Server(*code), op.path())),
                });
            }
            _ => {}
        }
    }
    if results.len() != ops.len() {
        return Err(unexpected(ops.first().map_or(&TreePath::root(), Op::path)));
    }
    ops.iter()
        .zip(results)
        .map(|(op, result)| match result {
            MultiResult::Create { path } | MultiResult::Create2 { path, .. } => {
                Ok(OpOutcome::Created(relative(chroot, &path)?))
            }
            MultiResult::SetData(stat) => Ok(OpOutcome::Set(stat)),
            MultiResult::Deleted => Ok(OpOutcome::Deleted),
            MultiResult::Checked => Ok(OpOutcome::Checked),
            MultiResult::Failed(_) => Err(unexpected(op.path())),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> TreePath {
        TreePath::new(text).unwrap()
    }

    #[test]
    fn a_chroot_is_added_and_taken_off() {
        for (chroot, below, full) in [
            ("", "/", "/"),
            ("", "/a", "/a"),
            ("/np", "/", "/np"),
            ("/np", "/a/b", "/np/a/b"),
        ] {
            assert_eq!(absolute(chroot, &path(below)), full);
            assert_eq!(relative(chroot, full).unwrap(), path(below));
        }
        assert!(relative("/np", "/other").is_err());
    }

    #[test]
    fn the_failing_operation_of_a_multi_is_found() {
        let ops: Vec<Op> = ["/a", "/b", "/c"]
            .map(|name| Op::Delete {
                path: path(name),
                version: Version::Any,
            })
            .into();
        let results = vec![
            MultiResult::Failed(None),
            MultiResult::Failed(Some(ErrorCode::NotEmpty)),
            MultiResult::Failed(Some(ErrorCode::RuntimeInconsistency)),
        ];
        let error = multi_outcomes("", &ops, results).unwrap_err();
        let Error::Multi { index: 1, source } = error else {
            panic!("{error:?}");
        };
        assert!(matches!(*source, Error::NotEmpty { path } if path.as_str() == "/b"));
    }
}
