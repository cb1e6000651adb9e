//! Converts protocol requests to store operations, and results to responses.

use crate::embedded::{WriteOps, WriteOutcome};
use crate::error::Error;
use crate::path::TreePath;
use crate::tree::{Op, Version};
use crate::zookeeper::wire::{Create, ErrorCode, MultiOp, MultiResult, Request, Response};

use super::watches::RestoredWatches;

/// The error code for storage failures.
const SYSTEM_ERROR: ErrorCode = ErrorCode::Other(-1);

/// The kind of response to a write.
#[derive(Debug)]
pub(super) enum ResponseShape {
    Create,
    Create2,
    SetData,
    Delete,
    Multi(Vec<ResponseShape>),
    Check,
}

pub(super) fn path(text: &str) -> Result<TreePath, ErrorCode> {
    TreePath::new(text).map_err(|_| ErrorCode::BadArguments)
}

pub(super) fn paths(texts: &[String]) -> Result<Vec<TreePath>, ErrorCode> {
    texts.iter().map(|text| path(text)).collect()
}

fn version(number: i32) -> Version {
    match number {
        -1 => Version::Any,
        number => Version::Exactly(number),
    }
}

/// Converts a request to store operations, if it is a write.
pub(super) fn parse_write(
    request: Request,
) -> Option<Result<(WriteOps, ResponseShape), ErrorCode>> {
    let one = match request {
        Request::Create(create) => MultiOp::Create(create),
        Request::Create2(create) => MultiOp::Create2(create),
        Request::Delete { path, version } => MultiOp::Delete { path, version },
        Request::SetData {
            path,
            data,
            version,
        } => MultiOp::SetData {
            path,
            data,
            version,
        },
        Request::Multi(ops) => return Some(multi(ops)),
        _ => return None,
    };
    Some(op(one).map(|(op, shape)| (WriteOps::One(op), shape)))
}

fn multi(ops: Vec<MultiOp>) -> Result<(WriteOps, ResponseShape), ErrorCode> {
    let ops: Result<Vec<_>, _> = ops.into_iter().map(op).collect();
    let (ops, shapes) = ops?.into_iter().unzip();
    Ok((WriteOps::All(ops), ResponseShape::Multi(shapes)))
}

fn op(op: MultiOp) -> Result<(Op, ResponseShape), ErrorCode> {
    Ok(match op {
        MultiOp::Create(create) => (create_op(create)?, ResponseShape::Create),
        MultiOp::Create2(create) => (create_op(create)?, ResponseShape::Create2),
        MultiOp::SetData {
            path: at,
            data,
            version: number,
        } => {
            let path = path(&at)?;
            let version = version(number);
            let op = Op::Set {
                path,
                data,
                version,
            };
            (op, ResponseShape::SetData)
        }
        MultiOp::Delete {
            path: at,
            version: number,
        } => {
            let (path, version) = (path(&at)?, version(number));
            (Op::Delete { path, version }, ResponseShape::Delete)
        }
        MultiOp::Check {
            path: at,
            version: number,
        } => {
            let (path, version) = (path(&at)?, version(number));
            (Op::Check { path, version }, ResponseShape::Check)
        }
    })
}

fn create_op(create: Create) -> Result<Op, ErrorCode> {
    let Create {
        path: at,
        data,
        mode,
    } = create;
    let path = match at.strip_suffix('/') {
        Some("") => TreePath::root(),
        Some(parent) if mode.is_sequential() => path(parent)?.unnamed_child(),
        _ => path(&at)?,
    };
    Ok(Op::Create { path, data, mode })
}

/// Parses the watches in a request to restore them.
pub(super) fn restored(request: Request) -> Result<RestoredWatches, ErrorCode> {
    Ok(match request {
        Request::SetWatches {
            relative_zxid,
            data,
            exist,
            child,
        } => RestoredWatches {
            since: relative_zxid,
            data: paths(&data)?,
            exist: paths(&exist)?,
            children: paths(&child)?,
            ..RestoredWatches::default()
        },
        Request::SetWatches2 {
            relative_zxid,
            data,
            exist,
            child,
            persistent,
            persistent_recursive,
        } => RestoredWatches {
            since: relative_zxid,
            data: paths(&data)?,
            exist: paths(&exist)?,
            children: paths(&child)?,
            persistent: paths(&persistent)?,
            recursive: paths(&persistent_recursive)?,
        },
        _ => return Err(ErrorCode::BadArguments),
    })
}

/// Returns the response to a write, or `None` if its outcome is unknown.
pub(super) fn write_response(
    shape: &ResponseShape,
    result: crate::error::Result<Vec<WriteOutcome>>,
) -> Option<Result<Response, ErrorCode>> {
    match (shape, result) {
        (_, Err(Error::ConnectionLoss)) => None,
        (ResponseShape::Multi(shapes), Err(Error::Multi { index, source })) => {
            let failed = |at: usize| match at.cmp(&index) {
                std::cmp::Ordering::Less => None,
                std::cmp::Ordering::Equal => Some(error_code(&source)),
                std::cmp::Ordering::Greater => Some(ErrorCode::RuntimeInconsistency),
            };
            let results = (0..shapes.len()).map(|at| MultiResult::Failed(failed(at)));
            Some(Ok(Response::Multi(results.collect())))
        }
        (_, Err(error)) => Some(Err(error_code(&error))),
        (ResponseShape::Multi(shapes), Ok(outcomes)) => {
            let results = shapes.iter().zip(outcomes);
            let results = results.map(|(shape, outcome)| multi_result(shape, outcome));
            Some(Ok(Response::Multi(results.collect())))
        }
        (shape, Ok(outcomes)) => {
            let response = match outcomes.into_iter().next() {
                Some(WriteOutcome::Created(created)) if matches!(shape, ResponseShape::Create) => {
                    Response::Create {
                        path: created.path.to_string(),
                    }
                }
                Some(WriteOutcome::Created(created)) => Response::Create2 {
                    path: created.path.to_string(),
                    stat: created.stat,
                },
                Some(WriteOutcome::Set(stat)) => Response::SetData(stat),
                Some(WriteOutcome::Deleted | WriteOutcome::Checked) | None => Response::Done,
            };
            Some(Ok(response))
        }
    }
}

fn multi_result(shape: &ResponseShape, outcome: WriteOutcome) -> MultiResult {
    match outcome {
        WriteOutcome::Created(created) if matches!(shape, ResponseShape::Create) => {
            MultiResult::Create {
                path: created.path.to_string(),
            }
        }
        WriteOutcome::Created(created) => MultiResult::Create2 {
            path: created.path.to_string(),
            stat: created.stat,
        },
        WriteOutcome::Set(stat) => MultiResult::SetData(stat),
        WriteOutcome::Deleted => MultiResult::Deleted,
        WriteOutcome::Checked => MultiResult::Checked,
    }
}

pub(super) fn error_code(error: &Error) -> ErrorCode {
    match error {
        Error::NoNode { .. } => ErrorCode::NoNode,
        Error::NodeExists { .. } => ErrorCode::NodeExists,
        Error::BadVersion { .. } => ErrorCode::BadVersion,
        Error::NotEmpty { .. } => ErrorCode::NotEmpty,
        Error::NoChildrenForEphemerals { .. } => ErrorCode::NoChildrenForEphemerals,
        Error::InvalidPath(_) | Error::TooLarge { .. } => ErrorCode::BadArguments,
        Error::SessionExpired | Error::Closed => ErrorCode::SessionExpired,
        Error::NoAuth { .. } => ErrorCode::NoAuth,
        Error::ConnectionLoss => ErrorCode::ConnectionLoss,
        Error::Multi { source, .. } => error_code(source),
        Error::LockTimeout(_)
        | Error::Malformed { .. }
        | Error::BadSystemId { .. }
        | Error::InUse { .. }
        | Error::Backend { .. } => SYSTEM_ERROR,
    }
}
