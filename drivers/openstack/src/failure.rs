//! What went wrong, as a class to act on.

use nodeyard_driver::{Error, ErrorClass};
use nodeyard_openstack::{self as openstack, ErrorKind, Server};

/// The cloud said no, or said nothing.
pub(crate) fn failed(error: openstack::Error) -> Error {
    let class = match error.kind() {
        ErrorKind::Auth | ErrorKind::Forbidden => ErrorClass::Credentials,
        ErrorKind::Quota => ErrorClass::Quota,
        ErrorKind::NoRoom => ErrorClass::Capacity,
        ErrorKind::Fault => ErrorClass::Failed,
        // What something depends on has gone meanwhile, or is busy.
        ErrorKind::NotFound
        | ErrorKind::Conflict
        | ErrorKind::TooManyRequests
        | ErrorKind::Unavailable
        | ErrorKind::Malformed => ErrorClass::Retry,
        ErrorKind::Refused | ErrorKind::NoService | ErrorKind::Setup => ErrorClass::Permanent,
    };
    of_class(class, error)
}

/// With another class than it usually has.
pub(crate) fn of_class(class: ErrorClass, error: openstack::Error) -> Error {
    let text = error.to_string();
    match error.into_source() {
        Some(source) => Error::new(class, text).because(source),
        None => Error::new(class, text),
    }
}

/// The error that a broken server is.
pub(crate) fn broken(server: &Server) -> Error {
    let fault = server.fault.as_ref().map(|fault| &*fault.message);
    let fault = fault
        .filter(|text| !text.is_empty())
        .unwrap_or("the cloud gives no reason");
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

/// Something that was asked for is not there: what was asked for, where, and what there is.
pub(crate) fn missing<'n>(
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
    fn what_is_missing_is_named_and_so_is_what_is_there() {
        let error = missing("label big", "flavor", "m1.hug", ["m1.huge", "m1.small", ""]);
        assert_eq!(
            error.to_string(),
            r#"label big: the cloud has no flavor "m1.hug"; there are m1.huge, m1.small"#
        );
        let names: Vec<_> = (0..50).map(|n| format!("f{n:02}")).collect();
        let error = missing("label big", "flavor", "x", names.iter().map(String::as_str));
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
            let error = broken(&server);
            assert_eq!(error.class(), class);
            assert!(error.to_string().contains(message));
        }
    }
}
