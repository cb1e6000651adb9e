//! Maps errors of leases and scopes to problems.

use nodeyard_lease::Error;

use crate::access::Right;
use crate::problem::ApiProblem;

pub(super) fn lease_problem(error: Error) -> ApiProblem {
    match error {
        Error::Invalid { what, why } => match pointer(what) {
            Some(pointer) => ApiProblem::invalid_body(pointer, why),
            None => ApiProblem::bad_request(format!("invalid {what}: {why}")),
        },
        Error::NoSuchLease { .. } | Error::NoSuchScope { .. } | Error::NoSuchNode { .. } => {
            ApiProblem::not_found(error.to_string())
        }
        Error::OtherTenant { .. } => ApiProblem::forbidden(Right::Operate, error.to_string()),
        Error::Store(error) => error.into(),
        other => ApiProblem::conflict(other.to_string()),
    }
}

/// Returns the field of the body that an error is about.
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
