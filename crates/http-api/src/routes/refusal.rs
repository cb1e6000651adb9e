//! Why leases and scopes refuse what they are asked for, as problems.

use nodeyard_lease::Error;

use crate::access::Right;
use crate::problem::Problem;

pub(super) fn refused(error: Error) -> Problem {
    match error {
        Error::Invalid { what, why } => match pointer(what) {
            Some(pointer) => Problem::invalid_body(pointer, why),
            None => Problem::bad_request(format!("this {what} cannot be used: {why}")),
        },
        Error::NoSuchLease { .. } | Error::NoSuchScope { .. } | Error::NoSuchNode { .. } => {
            Problem::not_found(error.to_string())
        }
        Error::OtherTenant { .. } => Problem::forbidden(Right::Operate, error.to_string()),
        Error::Store(error) => error.into(),
        other => Problem::conflict(other.to_string()),
    }
}

/// Which field of a body is meant.
fn pointer(what: &str) -> Option<&'static str> {
    Some(match what {
        "list of labels" | "label" => "/labels",
        "duration" => "/duration",
        "tenant" => "/tenant",
        "name of a scope" => "/scope",
        "comment" => "/comment",
        _ => return None,
    })
}
