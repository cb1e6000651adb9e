//! The document that describes the API.

use nodeyard_lease::{MAX_DURATION, MAX_LABELS};
use nodeyard_testbeds::checkout;
use serde_json::Value;

use crate::testbed::Testbed;

/// Returns the document that is checked in.
pub(crate) fn checked_in() -> Value {
    let json = std::fs::read(checkout().join("docs/openapi.json")).unwrap();
    serde_json::from_slice(&json).unwrap()
}

#[test]
fn documented_limits_match_those_of_leases() {
    let document = checked_in();
    let schemas = &document["components"]["schemas"];
    let labels = &schemas["NewRequest"]["properties"]["labels"];
    assert_eq!(labels["maxItems"], MAX_LABELS);
    for body in ["NewRequest", "NewScope", "Renewal"] {
        let duration = &schemas[body]["properties"]["duration"];
        assert_eq!(duration["maximum"], MAX_DURATION.as_secs(), "{body}");
    }
}

#[tokio::test]
async fn the_server_serves_the_document() {
    let testbed = Testbed::new().await;
    let served = testbed.client().get("/openapi.json").await.is(200);
    assert_eq!(served, checked_in());
}

#[test]
fn every_operation_documents_rights_and_responses() {
    let document = checked_in();
    assert_eq!(document["openapi"], "3.1.0");
    let mut ids = std::collections::BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        assert!(path.starts_with("/api/v1/"), "{path}");
        for (method, operation) in item.as_object().unwrap() {
            let what = format!("{method} {path}");
            assert!(operation["summary"].is_string(), "{what} has no summary");
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id.to_owned()), "{id} is there twice");
            let security = operation["security"].as_array().unwrap();
            assert!(!security.is_empty(), "{what} does not say who may do it");
            let free = security.iter().any(|way| way == &serde_json::json!({}));
            assert_eq!(free, method == "get" && !needs_token(path), "{what}");
            let responses = operation["responses"].as_object().unwrap();
            for status in ["401", "403", "429", "500", "503"] {
                assert!(responses.contains_key(status), "{what} lacks {status}");
            }
            if operation.get("requestBody").is_some() {
                assert!(responses.contains_key("422"), "{what} lacks 422");
            }
            for (status, response) in responses {
                let description = response["description"].as_str().unwrap();
                assert!(!description.is_empty(), "{what} {status}");
                if status.starts_with(['4', '5']) {
                    let content = &response["content"]["application/problem+json"];
                    assert_eq!(
                        content["schema"]["$ref"], "#/components/schemas/Problem",
                        "{what} {status}"
                    );
                }
            }
        }
    }
}

/// Reports whether reading this path shows secrets.
fn needs_token(path: &str) -> bool {
    path.ends_with("/connection") || path.ends_with("/inventory")
}
