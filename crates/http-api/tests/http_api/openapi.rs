//! The document that describes the API.

use nodeyard_lease::{MAX_DURATION, MAX_LABELS};
use nodeyard_testbeds::checkout;
use serde_json::Value;

use crate::bed::Bed;

#[test]
fn the_checked_in_document_is_the_golden_one() {
    let path = checkout().join("docs/openapi.json");
    let made = nodeyard_http_api::openapi_json();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        made, kept,
        "docs/openapi.json is not what the program serves; `make generate` writes it again"
    );
}

#[test]
fn limits_are_those_of_leases() {
    let document: Value = serde_json::from_str(&nodeyard_http_api::openapi_json()).unwrap();
    let schemas = &document["components"]["schemas"];
    let labels = &schemas["NewRequest"]["properties"]["labels"];
    assert_eq!(labels["maxItems"], MAX_LABELS);
    for body in ["NewRequest", "NewScope", "Renewal"] {
        let duration = &schemas[body]["properties"]["duration"];
        assert_eq!(duration["maximum"], MAX_DURATION.as_secs(), "{body}");
    }
}

#[tokio::test]
async fn the_server_tells_the_same() {
    let bed = Bed::new().await;
    let served = bed.client().get("/openapi.json").await.is(200);
    let made: Value = serde_json::from_str(&nodeyard_http_api::openapi_json()).unwrap();
    assert_eq!(served, made);
}

#[test]
fn every_operation_says_what_it_needs_and_answers() {
    let document: Value = serde_json::from_str(&nodeyard_http_api::openapi_json()).unwrap();
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

/// Reading that shows secrets.
fn needs_token(path: &str) -> bool {
    path.ends_with("/connection") || path.ends_with("/inventory")
}
