//! What the events of a pod say about an image that cannot be pulled, as a pure function.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Event;

/// The beginning of the kubelet's message for each failed pull.
const PULL_FAILED: &str = "Failed to pull image";
/// How often a registry has to refuse an image.
const REFUSALS: i32 = 2;

/// What registries and container runtimes say of an image that does not exist, or that we may not have.
const REFUSED: &[&str] = &[
    "not found",
    "manifest unknown",
    "name unknown",
    "does not exist",
    "access denied",
    "access to the resource is denied",
    "authorization failed",
    "unauthorized",
    "403 forbidden",
];
const TOO_MANY_REQUESTS: &[&str] = &["429", "toomanyrequests", "too many requests"];

/// Returns the message of a pull that a registry has refused repeatedly, so that more pulls are of no use.
pub(crate) fn refusal(events: &[Event]) -> Option<&str> {
    // A pod may have several containers with the same image.
    let mut refusals: BTreeMap<Option<&str>, i32> = BTreeMap::new();
    for event in events {
        let message = event.message.as_deref().unwrap_or_default();
        if !message.starts_with(PULL_FAILED) || !is_refusal(message) {
            continue;
        }
        let series = event.series.as_ref().and_then(|series| series.count);
        let times = event.count.max(series).unwrap_or(1);
        let container = event.involved_object.field_path.as_deref();
        let all = refusals.entry(container).or_default();
        *all = all.saturating_add(times);
        if *all >= REFUSALS {
            return Some(message);
        }
    }
    None
}

fn is_refusal(message: &str) -> bool {
    let lower = message.to_lowercase();
    let contains = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    contains(REFUSED) && !contains(TOO_MANY_REQUESTS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MISSING: &str = "Failed to pull image \"r.example/ci:1\": failed to resolve reference \"r.example/ci:1\": \
                           r.example/ci:1: not found";

    fn event(container: &str, count: Option<i32>, message: &str) -> Event {
        let object = json!({"kind": "Pod", "fieldPath": format!("spec.containers{{{container}}}")});
        let event = json!({
            "metadata": {"name": "e"}, "involvedObject": object, "type": "Warning", "reason": "Failed",
            "message": message, "count": count,
        });
        serde_json::from_value(event).unwrap()
    }

    #[test]
    fn a_registry_that_refuses_twice_is_believed() {
        for message in [
            MISSING,
            "Failed to pull image \"r/i\": pull access denied, repository does not exist or may require authorization",
            "Failed to pull image \"r/i\": unexpected status from HEAD request to https://r/v2/i: 401 Unauthorized",
            "Failed to pull image \"r/i\": reading manifest 1 in r/i: manifest unknown",
        ] {
            assert_eq!(refusal(&[event("c", Some(1), message)]), None, "{message}");
            assert_eq!(refusal(&[event("c", Some(2), message)]), Some(message));
            let twice = [event("c", None, message), event("c", None, message)];
            assert_eq!(refusal(&twice), Some(message));
            let two_containers = [event("c", Some(1), message), event("d", Some(1), message)];
            assert_eq!(refusal(&two_containers), None);
        }
    }

    #[test]
    fn a_registry_in_trouble_is_no_refusal() {
        for message in [
            "Failed to pull image \"r/i\": unexpected status from GET request to https://r/token: 429 Too Many Requests: \
             toomanyrequests: unauthorized",
            "Failed to pull image \"r/i\": unexpected status from HEAD request to https://r/v2/i: 503 Service Unavailable",
            "Failed to pull image \"r/i\": dial tcp: lookup r on 10.96.0.10:53: no such host",
            "Failed to pull image \"r/i\": dial tcp 127.0.0.1:9: connect: connection refused",
            "Error: ErrImagePull: not found",
        ] {
            assert_eq!(refusal(&[event("c", Some(9), message)]), None, "{message}");
        }
    }
}
