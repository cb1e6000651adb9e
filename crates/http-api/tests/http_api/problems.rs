//! Everything that can be wrong with a request has one shape.

use serde_json::json;

use crate::testbed::{ADMIN, ALICE, READER, Testbed};

#[tokio::test]
async fn an_invalid_field_is_named() {
    let testbed = Testbed::new().await;
    let alice = testbed.by(ALICE).with("content-type", "application/json");
    let long = "x".repeat(300);
    for (body, pointer) in [
        (json!({}), ""),
        (json!([]), ""),
        (json!("labels"), ""),
        (json!(null), ""),
        (json!({"labels": "small"}), "/labels"),
        (json!({"labels": []}), "/labels"),
        (json!({"labels": [5]}), "/labels/0"),
        (json!({"labels": [""]}), "/labels"),
        (json!({"labels": ["a\u{0}b"]}), "/labels"),
        (json!({"labels": [long]}), "/labels"),
        (json!({"labels": vec!["small"; 101]}), "/labels"),
        (json!({"labels": ["small"], "duration": 0}), "/duration"),
        (json!({"labels": ["small"], "duration": -1}), "/duration"),
        (json!({"labels": ["small"], "duration": 1.5}), "/duration"),
        (json!({"labels": ["small"], "duration": "1h"}), "/duration"),
        (json!({"labels": ["small"], "duration": 1e99}), "/duration"),
        (
            json!({"labels": ["small"], "duration": 99_999_999}),
            "/duration",
        ),
        (
            json!({"labels": ["small"], "priority": "urgent"}),
            "/priority",
        ),
        (
            json!({"labels": ["small"], "relative_priority": "x"}),
            "/relative_priority",
        ),
        (
            json!({"labels": ["small"], "relative_priority": 10_000_000}),
            "/relative_priority",
        ),
        (json!({"labels": ["small"], "provider": "a/b"}), "/provider"),
        (json!({"labels": ["small"], "provider": ""}), "/provider"),
        (json!({"labels": ["small"], "scope": "a b"}), "/scope"),
        (json!({"labels": ["small"], "scope": ".."}), "/scope"),
        (json!({"labels": ["small"], "tenant": ""}), "/tenant"),
        (json!({"labels": ["small"], "lables": []}), "/lables"),
    ] {
        let answer = alice
            .ask("POST", "/requests", Some(&body.to_string()))
            .await;
        let problem = answer.problem(422, "invalid-body");
        assert_eq!(
            problem["errors"][0]["pointer"], pointer,
            "{body}: {problem}"
        );
    }
    let unknown = alice
        .ask(
            "POST",
            "/requests",
            Some(r#"{"labels": ["small"], "lables": []}"#),
        )
        .await;
    assert!(unknown.body.contains("unknown field `lables`"));
    assert_eq!(
        testbed.by(READER).get("/leases").await.json()["items"],
        json!([])
    );
}

#[tokio::test]
async fn name_lengths_count_characters() {
    let testbed = Testbed::new().await;
    let admin = testbed.by(ADMIN);
    let name = "ü".repeat(200);
    let request = json!({"labels": [name], "tenant": name});
    admin.post("/requests", &request).await.is(201);
    let scope = json!({"name": "debugging", "duration": 60, "tenant": name});
    admin.post("/scopes", &scope).await.is(201);
    let drain = |length| format!("/drains/label/{}", "%C3%BC".repeat(length));
    admin.put(&drain(200)).await.is(201);
    admin.put(&drain(256)).await.problem(404, "not-found");
}

#[tokio::test]
async fn bodies_that_are_not_json_are_problems() {
    let testbed = Testbed::new().await;
    let alice = testbed.by(ALICE);
    let json = alice
        .clone()
        .with("content-type", "application/json; charset=utf-8");
    for body in [
        "",
        "{",
        "{\"labels\": [\"small\"]} {}",
        "labels=small",
        "\u{feff}{}",
    ] {
        let answer = json.ask("POST", "/requests", Some(body)).await;
        answer.problem(400, "bad-request");
    }
    let deep = "[".repeat(10_000);
    json.ask("POST", "/requests", Some(&deep))
        .await
        .problem(400, "bad-request");
    for kind in [
        "text/plain",
        "application/xml",
        "multipart/form-data",
        "json",
    ] {
        let client = alice.clone().with("content-type", kind);
        client
            .ask("POST", "/requests", Some("{}"))
            .await
            .problem(415, "unsupported-media-type");
    }
    alice
        .ask("POST", "/requests", Some("{}"))
        .await
        .problem(415, "unsupported-media-type");
    let huge = format!("{{\"labels\": [\"{}\"]}}", "x".repeat(100_000));
    json.ask("POST", "/requests", Some(&huge))
        .await
        .problem(413, "body-too-large");
}

#[tokio::test]
async fn missing_objects_are_not_found() {
    let testbed = Testbed::new().await;
    let admin = testbed.by(ADMIN);
    let build = format!("debian-{}", "0".repeat(32));
    for path in [
        "",
        "/",
        "/nonsense",
        "/nodes/",
        "/nodes/0000000001",
        "/nodes/1",
        "/nodes/%2e%2e%2f",
        "/nodes/%ff",
        "/nodes/0000000001/connection",
        "/requests/200-0000000001",
        "/requests/x",
        "/requests/200-0000000001/explanation",
        &format!("/leases/{}", "0".repeat(32)),
        "/leases/x",
        "/scopes/nobodys",
        "/scopes/a%20b",
        "/images/unheard-of",
        "/images/a%2fb",
        &format!("/builds/{build}"),
        "/builds/x",
        &format!("/uploads/{build}/cloud/0000000001"),
        "/uploads/x/y/z",
        "/providers/unheard-of",
        "/labels/unheard-of",
        "/drains/provider/cloud",
        "/drains/pool/cloud/main",
        "/drains/pool/cloud",
        "/drains/nonsense/cloud",
    ] {
        admin.get(path).await.problem(404, "not-found");
    }
    let answer = crate::client::raw(testbed.address, b"GET /elsewhere HTTP/1.0\r\n\r\n").await;
    answer.unwrap().problem(404, "not-found");
}

#[tokio::test]
async fn a_wrong_method_gets_the_allowed_ones() {
    let testbed = Testbed::new().await;
    for (method, path, allowed) in [
        ("PATCH", "/requests", ["GET", "POST"]),
        ("POST", "/nodes/0000000001", ["GET", "DELETE"]),
        ("POST", "/images/debian/pause", ["PUT", "DELETE"]),
        ("TRACE", "/info", ["GET", "HEAD"]),
        ("POST", "/openapi.json", ["GET", "HEAD"]),
    ] {
        let answer = testbed.by(ADMIN).ask(method, path, None).await;
        for name in allowed {
            assert!(
                answer.header("allow").contains(name),
                "{method} {path}: {answer:?}"
            );
        }
        answer.problem(405, "method-not-allowed");
    }
}

#[tokio::test]
async fn invalid_query_parameters_are_named() {
    let testbed = Testbed::new().await;
    for (path, named) in [
        ("/nodes?limit=0", "limit"),
        ("/nodes?limit=1001", "limit"),
        ("/nodes?limit=many", "limit"),
        ("/nodes?limit=-1", "limit"),
        ("/nodes?limit=1&limit=2", "limit"),
        ("/nodes?cursor=x", "cursor"),
        ("/nodes?state=broken", "state"),
        ("/nodes?sate=ready", "sate"),
        ("/requests?state=", "state"),
        ("/leases?phase=x", "phase"),
        ("/events?kind=node,nonsense", "nonsense"),
        ("/labels?label=x", "label"),
        ("/requests/200-0000000001?wait=61", "wait"),
        ("/requests/200-0000000001?wait=x", "wait"),
    ] {
        let problem = testbed
            .by(READER)
            .get(path)
            .await
            .problem(400, "bad-request");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(named), "{path}: {detail}");
    }
}

#[tokio::test]
async fn optional_bodies_are_validated() {
    let testbed = Testbed::new().await;
    let lease = testbed
        .by(ALICE)
        .post("/requests", &json!({"labels": ["small"]}))
        .await
        .is(201);
    let path = format!("/leases/{}/renew", lease["id"].as_str().unwrap());
    let alice = testbed.by(ALICE);
    for (body, pointer) in [
        (json!({"duration": 0}), "/duration"),
        (json!({"duration": "x"}), "/duration"),
        (json!({"time": 5}), "/time"),
        (json!([]), ""),
    ] {
        let problem = alice.post(&path, &body).await.problem(422, "invalid-body");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    let text = alice.with("content-type", "text/plain");
    text.ask("POST", &path, Some("{}"))
        .await
        .problem(415, "unsupported-media-type");
    text.ask("POST", &path, None).await.is(200);
}
