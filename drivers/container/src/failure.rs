//! What went wrong, as a class to act on and a text with the remedy.
//!
//! Runtimes tell most things with status 500 and a sentence, so the sentence has to be read. What it is searched for
//! are words of the kernel and of the OCI runtimes, which have not changed in years.

use nodeyard_driver::{Error, ErrorClass};
use serde::Deserialize;

use crate::transport::{Answer, CallError};

/// Words, the class of an error that has one of them, and what to do about it.
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
        "the runtime may not raise this limit: set `ulimits` of the label to what the host allows",
    ),
    (
        &["cgroups in hybrid mode", "creating cgroup directory"],
        ErrorClass::Permanent,
        "the OCI runtime cannot use the control groups of this host: install runc, and set `runtime = \"runc\"` \
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
        "the image has no such program: set `command` of the label, or use another image",
    ),
    (
        &["apply caps"],
        ErrorClass::Permanent,
        "root of this host lacks rights that a privileged container has: remove `privileged` of the label",
    ),
    (
        &[
            "network not found",
            "unable to find network",
            "no such network",
        ],
        ErrorClass::Permanent,
        "make the network, or change `network` of the provider",
    ),
    (
        &["iptables", "nftables", "netavark", "cni plugin"],
        ErrorClass::Permanent,
        "the runtime cannot set up networks on this host: install iptables and the runtime's network plugins, or set \
         `network` to one that works, such as `host`",
    ),
    (
        &["oci runtime", "oci permission denied"],
        ErrorClass::Permanent,
        "the host's container runtime cannot start containers: see whether `podman run` or `docker run` can",
    ),
    (
        &[
            "unauthorized",
            "authentication required",
            "access to the resource is denied",
        ],
        ErrorClass::Credentials,
        "the registry wants a login: log the runtime in, or pull the image beforehand",
    ),
    (
        &["manifest unknown", "no such image", "name unknown"],
        ErrorClass::Permanent,
        "",
    ),
];

/// The runtime said no to `call`.
pub(crate) fn refused(call: &str, answer: &Answer) -> Error {
    told(call, answer.status, &message(answer))
}

/// The runtime said what went wrong after it had agreed, or with an odd status.
pub(crate) fn told(call: &str, status: u16, message: &str) -> Error {
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

/// Docker has a message; Podman adds causes, which are in it already.
pub(crate) fn message(answer: &Answer) -> String {
    #[derive(Deserialize)]
    struct Refusal {
        message: String,
    }
    match serde_json::from_slice::<Refusal>(&answer.body) {
        Ok(refusal) => refusal.message,
        Err(_) => {
            let text = String::from_utf8_lossy(&answer.body);
            let text = text.trim();
            if text.is_empty() {
                format!("status {}", answer.status)
            } else {
                text.chars().take(500).collect()
            }
        }
    }
}

/// There was no answer to `call`.
pub(crate) fn unanswered(call: &str, error: CallError) -> Error {
    use std::io::ErrorKind;
    let (class, text) = match &error {
        CallError::Unreachable { socket, cause } => match cause.kind() {
            ErrorKind::PermissionDenied => (
                ErrorClass::Credentials,
                format!(
                    "the container runtime at {socket} does not let us in: run as root, as a member of the socket's \
                     group, or set `socket` to one of our own"
                ),
            ),
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => (
                ErrorClass::Retry,
                format!(
                    "no container runtime listens at {socket}: start one with `systemctl start podman.socket` or \
                     `systemctl start docker`, or set `socket` of the provider"
                ),
            ),
            _ => (
                ErrorClass::Retry,
                format!("the container runtime at {socket} cannot be reached"),
            ),
        },
        CallError::NoAnswer(_) | CallError::TooLate(_) => (
            ErrorClass::Retry,
            format!("the container runtime was told to {call}, and did not answer"),
        ),
    };
    Error::new(class, text).because(error)
}

/// The runtime said something that is not an answer to `call`.
pub(crate) fn garbled(call: &str, cause: serde_json::Error) -> Error {
    let text = format!("what the container runtime answered when told to {call} makes no sense");
    Error::retry(text).because(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> Answer {
        Answer {
            status,
            body: body.to_owned().into(),
        }
    }

    /// Real answers, each with its class and a word of the remedy.
    #[test]
    fn answers_have_the_right_class() {
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
            let error = refused("start a container", &answer(status, body));
            assert_eq!(error.class(), class, "{error}");
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn a_closed_socket_is_not_a_missing_one() {
        let at = |kind: std::io::ErrorKind| {
            let socket = "/run/x.sock".to_owned();
            let cause = kind.into();
            unanswered("list containers", CallError::Unreachable { socket, cause })
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
