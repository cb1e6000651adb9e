//! From the protocol's terms to the store's and back.

use crate::embedded::{Outcome, Work};
use crate::error::Error;
use crate::path::TreePath;
use crate::tree::{Op, Version};
use crate::zookeeper::wire::{Create, ErrorCode, MultiOp, MultiResult, Request, Response};

use super::watches::Restored;

/// Storage that fails has no number of its own in the protocol; this one is "system error".
const SYSTEM_ERROR: ErrorCode = ErrorCode::Other(-1);

/// How the answer to a write has to look.
#[derive(Debug)]
pub(super) enum Shape {
    Create,
    Create2,
    SetData,
    Delete,
    Multi(Vec<Shape>),
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

/// The request as work for the engine, if it is a write.
pub(super) fn work(request: Request) -> Option<Result<(Work, Shape), ErrorCode>> {
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
    Some(op(one).map(|(op, shape)| (Work::One(op), shape)))
}

fn multi(ops: Vec<MultiOp>) -> Result<(Work, Shape), ErrorCode> {
    let ops: Result<Vec<_>, _> = ops.into_iter().map(op).collect();
    let (ops, shapes) = ops?.into_iter().unzip();
    Ok((Work::All(ops), Shape::Multi(shapes)))
}

fn op(op: MultiOp) -> Result<(Op, Shape), ErrorCode> {
    Ok(match op {
        MultiOp::Create(create) => (create_op(create)?, Shape::Create),
        MultiOp::Create2(create) => (create_op(create)?, Shape::Create2),
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
            (op, Shape::SetData)
        }
        MultiOp::Delete {
            path: at,
            version: number,
        } => {
            let (path, version) = (path(&at)?, version(number));
            (Op::Delete { path, version }, Shape::Delete)
        }
        MultiOp::Check {
            path: at,
            version: number,
        } => {
            let (path, version) = (path(&at)?, version(number));
            (Op::Check { path, version }, Shape::Check)
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

/// The watches in a request that restores them.
pub(super) fn restored(request: Request) -> Result<Restored, ErrorCode> {
    Ok(match request {
        Request::SetWatches {
            relative_zxid,
            data,
            exist,
            child,
        } => Restored {
            since: relative_zxid,
            data: paths(&data)?,
            exist: paths(&exist)?,
            children: paths(&child)?,
            ..Restored::default()
        },
        Request::SetWatches2 {
            relative_zxid,
            data,
            exist,
            child,
            persistent,
            persistent_recursive,
        } => Restored {
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

/// The answer to a write; none if nobody can know what became of it.
pub(super) fn answer(
    shape: &Shape,
    result: crate::error::Result<Vec<Outcome>>,
) -> Option<Result<Response, ErrorCode>> {
    match (shape, result) {
        (_, Err(Error::ConnectionLoss)) => None,
        (Shape::Multi(shapes), Err(Error::Multi { index, source })) => {
            let failed = |at: usize| match at.cmp(&index) {
                std::cmp::Ordering::Less => None,
                std::cmp::Ordering::Equal => Some(code(&source)),
                std::cmp::Ordering::Greater => Some(ErrorCode::RuntimeInconsistency),
            };
            let results = (0..shapes.len()).map(|at| MultiResult::Failed(failed(at)));
            Some(Ok(Response::Multi(results.collect())))
        }
        (_, Err(error)) => Some(Err(code(&error))),
        (Shape::Multi(shapes), Ok(outcomes)) => {
            let results = shapes.iter().zip(outcomes);
            let results = results.map(|(shape, outcome)| one_of_many(shape, outcome));
            Some(Ok(Response::Multi(results.collect())))
        }
        (shape, Ok(outcomes)) => {
            let response = match outcomes.into_iter().next() {
                Some(Outcome::Created(created)) if matches!(shape, Shape::Create) => {
                    Response::Create {
                        path: created.path.to_string(),
                    }
                }
                Some(Outcome::Created(created)) => Response::Create2 {
                    path: created.path.to_string(),
                    stat: created.stat,
                },
                Some(Outcome::Set(stat)) => Response::SetData(stat),
                Some(Outcome::Deleted | Outcome::Checked) | None => Response::Done,
            };
            Some(Ok(response))
        }
    }
}

fn one_of_many(shape: &Shape, outcome: Outcome) -> MultiResult {
    match outcome {
        Outcome::Created(created) if matches!(shape, Shape::Create) => MultiResult::Create {
            path: created.path.to_string(),
        },
        Outcome::Created(created) => MultiResult::Create2 {
            path: created.path.to_string(),
            stat: created.stat,
        },
        Outcome::Set(stat) => MultiResult::SetData(stat),
        Outcome::Deleted => MultiResult::Deleted,
        Outcome::Checked => MultiResult::Checked,
    }
}

pub(super) fn code(error: &Error) -> ErrorCode {
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
        Error::Multi { source, .. } => code(source),
        Error::LockTimeout(_)
        | Error::Malformed { .. }
        | Error::BadSystemId { .. }
        | Error::InUse { .. }
        | Error::Backend { .. } => SYSTEM_ERROR,
    }
}
