//! Errors of the runtime: their class, and a text with the remedy.
//!
//! Runtimes report most errors with status 500 and a message, so the message decides on the class. It is searched for
//! messages of the kernel and of the OCI runtimes, which have not changed in years.

use nodeyard_driver::{Error, ErrorClass};
use serde::Deserialize;

use crate::transport::{RuntimeCallError, RuntimeResponse};

/// Parts of messages, the class of an error with one of them, and the remedy.
const KNOWN: &[(&[&str], ErrorClass, &str)] = &[
    (
        &["no space left on device", "cannot allocate memory"],
        ErrorClass::Capacity,
        "",
    ),
    (
        &[
            "disk quota exceeded",
            "address pools",
            "no free ip",
            "no ip addresses available",
            "failed to find an available ip",
        ],
        ErrorClass::Quota,
        "",
    ),
    (
        &["setting rlimit", "rlimit type"],
        ErrorClass::Permanent,
        "the runtime is not permitted to raise this limit; set `ulimits` of the label to what the host allows",
    ),
    (
        &["cgroups in hybrid mode", "creating cgroup directory"],
        ErrorClass::Permanent,
        "the OCI runtime does not support the control groups of this host; install runc, and set `runtime = \"runc\"` \
         under `[engine]` in /etc/containers/containers.conf",
    ),
    (
        &[
            "command that was not found",
            "container process: exec:",
            "executable file",
            "exec format error",
        ],
        ErrorClass::Permanent,
        "the image has no such program; set `command` of the label, or use another image",
    ),
    (
        &["apply caps"],
        ErrorClass::Permanent,
        "root of this host lacks capabilities of a privileged container; remove `privileged` of the label",
    ),
    (
        &[
            "network not found",
            "unable to find network",
            "no such network",
        ],
        ErrorClass::Permanent,
        "create the network, or change `network` of the provider",
    ),
    (
        &["iptables", "nftables", "netavark", "cni plugin"],
        ErrorClass::Permanent,
        "the runtime cannot set up networks on this host; install iptables and the runtime's network plugins, or set \
         `network` to one that works, such as `host`",
    ),
    (
        &["oci runtime", "oci permission denied"],
        ErrorClass::Permanent,
        "the container runtime of this host cannot start containers; check whether `podman run` or `docker run` can",
    ),
    (
        &[
            "unauthorized",
            "authentication required",
            "access to the resource is denied",
        ],
        ErrorClass::Credentials,
        "the registry requires a login; log the runtime in, or pull the image beforehand",
    ),
    // Podman lists or inspects images while another one is being removed.
    (
        &["retrieving parent of image", "locating image with id"],
        ErrorClass::Retry,
        "",
    ),
    (
        &["manifest unknown", "no such image", "name unknown"],
        ErrorClass::Permanent,
        "",
    ),
];

/// Returns the error of a call that the runtime refused.
pub(crate) fn refusal_error(call: &str, response: &RuntimeResponse) -> Error {
    message_error(call, response.status, &message(response))
}

/// Returns the error for a message of the runtime.
pub(crate) fn message_error(call: &str, status: u16, message: &str) -> Error {
    let lower = message.to_lowercase();
    let known = KNOWN
        .iter()
        .find(|(words, ..)| words.iter().any(|word| lower.contains(word)));
    let (class, remedy) = match known {
        Some((_, class, remedy)) => (*class, *remedy),
        None => (class_of(status), ""),
    };
    let text = if remedy.is_empty() {
        format!("the container runtime refused to {call}: {message}")
    } else {
        format!("the container runtime refused to {call}: {message}; {remedy}")
    };
    Error::new(class, text)
}

fn class_of(status: u16) -> ErrorClass {
    match status {
        401 | 403 => ErrorClass::Credentials,
        408 | 409 | 429 => ErrorClass::Retry,
        400..=499 => ErrorClass::Permanent,
        500 => ErrorClass::Failed,
        _ => ErrorClass::Retry,
    }
}

/// Returns the message of a refusal. The causes that Podman adds are part of it already.
pub(crate) fn message(response: &RuntimeResponse) -> String {
    #[derive(Deserialize)]
    struct ErrorBody {
        message: String,
    }
    match serde_json::from_slice::<ErrorBody>(&response.body) {
        Ok(body) => body.message,
        Err(_) => {
            let text = String::from_utf8_lossy(&response.body);
            let text = text.trim();
            if text.is_empty() {
                format!("status {}", response.status)
            } else {
                text.chars().take(500).collect()
            }
        }
    }
}

/// Returns the error of a call without a response.
pub(crate) fn call_error(call: &str, error: RuntimeCallError) -> Error {
    use std::io::ErrorKind;
    let (class, text) = match &error {
        RuntimeCallError::Unreachable { socket, cause } => match cause.kind() {
            ErrorKind::PermissionDenied => (
                ErrorClass::Credentials,
                format!(
                    "the container runtime at {socket} denied access; run as root or as a member of the socket's group, or \
                     set `socket` to another one"
                ),
            ),
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => (
                ErrorClass::Retry,
                format!(
                    "no container runtime listens at {socket}; start one with `systemctl start podman.socket` or \
                     `systemctl start docker`, or set `socket` of the provider"
                ),
            ),
            _ => (
                ErrorClass::Retry,
                format!("failed to connect to the container runtime at {socket}"),
            ),
        },
        RuntimeCallError::Disconnected(_) | RuntimeCallError::Timeout(_) => (
            ErrorClass::Retry,
            format!("failed to {call}: the container runtime did not respond"),
        ),
    };
    Error::new(class, text).because(error)
}

/// Returns the error of a call whose response cannot be parsed.
pub(crate) fn invalid_response(call: &str, cause: serde_json::Error) -> Error {
    let text = format!("failed to {call}: invalid response of the container runtime");
    Error::retry(text).because(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: u16, body: &str) -> RuntimeResponse {
        RuntimeResponse {
            status,
            body: body.to_owned().into(),
        }
    }

    /// Responses of real runtimes, each with its class and a part of the remedy.
    #[test]
    fn responses_have_the_right_class() {
        let cases = [
            (
                500,
                r#"{"cause":"OCI permission denied","message":"runc: runc create failed: unable to start container process: error during container init: error setting rlimits for ready process: error setting rlimit type 7: operation not permitted: OCI permission denied","response":500}"#,
                ErrorClass::Permanent,
                "ulimits",
            ),
            (
                500,
                r#"{"message":"OCI runtime error: crun: cgroups in hybrid mode not supported, drop all controllers from cgroupv2"}"#,
                ErrorClass::Permanent,
                "runc",
            ),
            (
                500,
                r#"{"message":"runc: runc create failed: unable to start container process: exec: \"/x\": stat /x: no such file or directory: OCI runtime attempted to invoke a command that was not found"}"#,
                ErrorClass::Permanent,
                "command",
            ),
            (
                400,
                r#"{"message":"failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: exec: \"/x\": stat /x: no such file or directory: unknown"}"#,
                ErrorClass::Permanent,
                "command",
            ),
            (
                400,
                r#"{"message":"failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: unable to apply caps: operation not permitted: unknown"}"#,
                ErrorClass::Permanent,
                "privileged",
            ),
            (
                500,
                r#"{"message":"unable to find network with name or ID x: network not found"}"#,
                ErrorClass::Permanent,
                "network",
            ),
            (
                404,
                r#"{"message":"pull access denied for x, repository does not exist or may require 'docker login': denied: requested access to the resource is denied"}"#,
                ErrorClass::Credentials,
                "registry",
            ),
            (
                500,
                r#"{"message":"write /x: no space left on device"}"#,
                ErrorClass::Capacity,
                "",
            ),
            (
                500,
                r#"{"message":"no available IPv4 addresses on this network's address pools: bridge"}"#,
                ErrorClass::Quota,
                "",
            ),
            (
                409,
                r#"{"message":"removal already in progress"}"#,
                ErrorClass::Retry,
                "",
            ),
            (
                400,
                r#"{"message":"invalid reference format"}"#,
                ErrorClass::Permanent,
                "",
            ),
            (503, "", ErrorClass::Retry, "status 503"),
            (500, "page not found", ErrorClass::Failed, "page not found"),
        ];
        for (status, body, class, word) in cases {
            let error = refusal_error("start a container", &response(status, body));
            assert_eq!(error.class(), class, "{error}");
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn a_forbidden_socket_differs_from_a_missing_one() {
        let at = |kind: std::io::ErrorKind| {
            let socket = "/run/x.sock".to_owned();
            let cause = kind.into();
            call_error(
                "list containers",
                RuntimeCallError::Unreachable { socket, cause },
            )
        };
        let denied = at(std::io::ErrorKind::PermissionDenied);
        assert_eq!(denied.class(), ErrorClass::Credentials);
        let missing = at(std::io::ErrorKind::NotFound);
        assert_eq!(missing.class(), ErrorClass::Retry);
        assert!(
            missing
                .to_string()
                .contains("systemctl start podman.socket")
        );
    }
}
