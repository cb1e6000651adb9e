//! Errors of the cloud as errors of the driver, each with its class.

use nodeyard_driver::{Error, ErrorClass};
use nodeyard_openstack::{self as openstack, ErrorKind, Server};

pub(crate) fn driver_error(error: openstack::Error) -> Error {
    let class = match error.kind() {
        ErrorKind::Auth | ErrorKind::Forbidden => ErrorClass::Credentials,
        ErrorKind::Quota => ErrorClass::Quota,
        ErrorKind::NoCapacity => ErrorClass::Capacity,
        ErrorKind::Fault => ErrorClass::Failed,
        // Something that the call depends on is gone or busy.
        ErrorKind::NotFound
        | ErrorKind::Conflict
        | ErrorKind::TooManyRequests
        | ErrorKind::Unavailable
        | ErrorKind::Malformed => ErrorClass::Retry,
        ErrorKind::Refused | ErrorKind::NoService | ErrorKind::Setup => ErrorClass::Permanent,
    };
    with_class(class, error)
}

/// Converts an error whose class the caller knows better.
pub(crate) fn with_class(class: ErrorClass, error: openstack::Error) -> Error {
    let text = error.to_string();
    match error.into_source() {
        Some(source) => Error::new(class, text).because(source),
        None => Error::new(class, text),
    }
}

/// Returns the error of a server in status ERROR.
pub(crate) fn server_error(server: &Server) -> Error {
    let fault = server.fault.as_ref().map(|fault| &*fault.message);
    let fault = fault
        .filter(|text| !text.is_empty())
        .unwrap_or("no reason given");
    let lower = fault.to_lowercase();
    let class = if lower.contains("quota") {
        ErrorClass::Quota
    } else if lower.contains("no valid host") || lower.contains("no more ip addresses") {
        ErrorClass::Capacity
    } else {
        ErrorClass::Failed
    };
    let text = format!(
        "server {} ({}) is in error: {fault}",
        server.id, server.name
    );
    Error::new(class, text)
}

/// Returns the error for something that `place` in the configuration names and the cloud does not have. Names what it
/// has.
pub(crate) fn not_found<'n>(
    place: &str,
    what: &str,
    wanted: &str,
    there: impl IntoIterator<Item = &'n str>,
) -> Error {
    const MOST: usize = 30;
    let mut there: Vec<_> = there.into_iter().filter(|name| !name.is_empty()).collect();
    there.sort_unstable();
    there.dedup();
    let more = there.len().saturating_sub(MOST);
    there.truncate(MOST);
    let there = match (there.is_empty(), more) {
        (true, _) => "there is none".to_owned(),
        (false, 0) => format!("there are {}", there.join(", ")),
        (false, more) => format!("there are {} and {more} more", there.join(", ")),
    };
    Error::permanent(format!(
        "{place}: the cloud has no {what} {wanted:?}; {there}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_found_is_named_with_what_exists() {
        let error = not_found("label big", "flavor", "m1.hug", ["m1.huge", "m1.small", ""]);
        assert_eq!(
            error.to_string(),
            r#"label big: the cloud has no flavor "m1.hug"; there are m1.huge, m1.small"#
        );
        let names: Vec<_> = (0..50).map(|n| format!("f{n:02}")).collect();
        let error = not_found("label big", "flavor", "x", names.iter().map(String::as_str));
        assert!(error.to_string().ends_with("f29 and 20 more"), "{error}");
    }

    #[test]
    fn the_fault_of_a_server_has_a_class() {
        for (message, class) in [
            (
                "No valid host was found. There are not enough hosts available.",
                ErrorClass::Capacity,
            ),
            (
                "Requested volume exceeds allowed gigabytes quota",
                ErrorClass::Quota,
            ),
            ("Build of instance x aborted", ErrorClass::Failed),
        ] {
            let server = serde_json::json!({"id": "1", "status": "ERROR", "fault": {"code": 500, "message": message}});
            let server: Server = serde_json::from_value(server).unwrap();
            let error = server_error(&server);
            assert_eq!(error.class(), class);
            assert!(error.to_string().contains(message));
        }
    }
}
