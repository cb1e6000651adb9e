//! Errors of the cluster as errors of the driver, each with its class and the remedy.

use kube::core::Status;
use nodeyard_driver::{Error, ErrorClass};

/// Messages whose class differs from that of their status code.
struct KnownMessage {
    code: u16,
    words: &'static [&'static str],
    class: ErrorClass,
}

const KNOWN: &[KnownMessage] = &[
    KnownMessage {
        code: 403,
        words: &["exceeded quota", "maximum number of", "limit is"],
        class: ErrorClass::Quota,
    },
    // The account `default` of a new namespace, or the deletion of an old one, takes a moment.
    KnownMessage {
        code: 403,
        words: &["error looking up service account", "being terminated"],
        class: ErrorClass::Retry,
    },
    KnownMessage {
        code: 403,
        words: &[
            "failed quota",
            "violates podsecurity",
            "unable to validate against any",
        ],
        class: ErrorClass::Permanent,
    },
    KnownMessage {
        code: 500,
        words: &["database space exceeded"],
        class: ErrorClass::Capacity,
    },
    KnownMessage {
        code: 500,
        words: &[
            "leader changed",
            "request timed out",
            "failed calling webhook",
        ],
        class: ErrorClass::Retry,
    },
];

/// `call` is what was attempted, in the infinitive.
pub(crate) fn driver_error(call: &str, error: kube::Error) -> Error {
    match error {
        kube::Error::Api(status) => refused(call, &status),
        kube::Error::Auth(_) | kube::Error::RustlsTls(_) => Error::new(
            ErrorClass::Credentials,
            format!("failed to {call}: invalid credentials in the kubeconfig"),
        )
        .because(error),
        kube::Error::BuildRequest(_) | kube::Error::HttpError(_) => {
            Error::permanent(format!("failed to {call}: invalid request")).because(error)
        }
        kube::Error::Service(cause) => {
            Error::retry(format!("failed to {call}: the API server does not respond"))
                .because(cause)
        }
        error => Error::retry(format!("failed to {call}: invalid response")).because(error),
    }
}

fn refused(call: &str, status: &Status) -> Error {
    let lower = status.message.to_lowercase();
    let known = KNOWN.iter().find(|known| {
        known.code == status.code && known.words.iter().any(|word| lower.contains(word))
    });
    let class = known.map_or_else(|| class_of(status.code), |known| known.class);
    let message = if status.message.is_empty() {
        format!("status {}", status.code)
    } else {
        status.message.clone()
    };
    let remedy = match (status.code, class) {
        (401, _) => "; renew the credentials of the kubeconfig",
        (403, ErrorClass::Credentials) => {
            "; give the account of the kubeconfig this right (docs/kubernetes.md lists all that are needed)"
        }
        _ => "",
    };
    Error::new(
        class,
        format!("the cluster refused to {call}: {message}{remedy}"),
    )
}

fn class_of(code: u16) -> ErrorClass {
    match code {
        401 | 403 => ErrorClass::Credentials,
        // Creating an object in a deleted namespace fails with 404.
        404 | 408 | 409 | 410 | 429 => ErrorClass::Retry,
        400..=499 => ErrorClass::Permanent,
        500 => ErrorClass::Failed,
        _ => ErrorClass::Retry,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16, message: &str) -> kube::Error {
        let status = serde_json::json!({"status": "Failure", "code": code, "message": message});
        kube::Error::Api(serde_json::from_value(status).unwrap())
    }

    #[test]
    fn answers_of_clusters_have_classes() {
        for (code, message, class) in [
            (401, "Unauthorized", ErrorClass::Credentials),
            (
                403,
                r#"namespaces is forbidden: User "u" cannot create resource "namespaces" in API group "" at the cluster scope"#,
                ErrorClass::Credentials,
            ),
            (
                403,
                r#"pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"#,
                ErrorClass::Quota,
            ),
            (
                403,
                r#"pods "p" is forbidden: failed quota: q: must specify limits.cpu"#,
                ErrorClass::Permanent,
            ),
            (
                403,
                r#"pods "p" is forbidden: error looking up service account n/default: serviceaccount "default" not found"#,
                ErrorClass::Retry,
            ),
            (
                403,
                r#"pods "p" is forbidden: unable to create new content in namespace n because it is being terminated"#,
                ErrorClass::Retry,
            ),
            (404, r#"namespaces "n" not found"#, ErrorClass::Retry),
            (409, "the object has been modified", ErrorClass::Retry),
            (410, "too old resource version", ErrorClass::Retry),
            (422, r#"Pod "p" is invalid"#, ErrorClass::Permanent),
            (429, "too many requests", ErrorClass::Retry),
            (500, "Internal error occurred", ErrorClass::Failed),
            (
                500,
                r#"Internal error occurred: failed calling webhook "w""#,
                ErrorClass::Retry,
            ),
            (
                500,
                "etcdserver: mvcc: database space exceeded",
                ErrorClass::Capacity,
            ),
            (503, "apiserver is shutting down", ErrorClass::Retry),
            (504, "", ErrorClass::Retry),
        ] {
            let error = driver_error("make a pod", status(code, message));
            assert_eq!(error.class(), class, "{code} {message}");
            assert!(error.to_string().contains(message), "{error}");
        }
    }
}
