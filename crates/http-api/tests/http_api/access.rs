//! Tokens, rights and tenants.

use std::sync::Arc;

use nodeyard_config::Config;
use nodeyard_http_api::LocalToken;
use nodeyard_model::NodeState;
use serde_json::json;

use crate::client::Client;
use crate::fake_launcher::FakeLauncher;
use crate::testbed::{
    ACME, ADMIN, ALICE, OPERATOR, OTHER, READER, Store, Testbed, configuration, node, until,
};

#[tokio::test]
async fn reading_needs_no_token_and_changing_needs_a_right() {
    let testbed = Testbed::new().await;
    let info = testbed.client().get("/info").await.is(200);
    assert_eq!(
        info["caller"],
        json!({"token": null, "right": "read", "tenant": null})
    );
    let info = testbed.by(ACME).get("/info").await.is(200);
    assert_eq!(
        info["caller"],
        json!({"token": "acme", "right": "request", "tenant": "acme"})
    );
    let body = json!({"labels": ["small"]});
    let answer = testbed.client().post("/requests", &body).await;
    assert!(answer.header("www-authenticate").starts_with("Bearer"));
    answer.problem(401, "unauthorized");
    let problem = testbed.by(READER).post("/requests", &body).await;
    assert_eq!(problem.problem(403, "forbidden")["right"], "request");
    let problem = testbed.by(ALICE).put("/drains/provider/cloud").await;
    assert_eq!(problem.problem(403, "forbidden")["right"], "operate");
    let build = format!("/builds/debian-{}", "0".repeat(32));
    let problem = testbed.by(OPERATOR).delete(&build).await;
    assert_eq!(problem.problem(403, "forbidden")["right"], "admin");
    testbed
        .by(ADMIN)
        .delete(&build)
        .await
        .problem(404, "not-found");
}

#[tokio::test]
async fn unknown_and_expired_tokens_are_refused_even_for_reading() {
    let testbed = Testbed::new().await;
    for header in [
        "Bearer nobody-has-this",
        "Bearer ",
        "Bearer",
        "",
        "Basic YWRtaW46YWRtaW4=",
        "Bearer the-token-of-alice\u{b}x",
        "Bearer the-token-of-alic",
        "Bearer the-token-of-alicee",
        "the-token-of-alice",
    ] {
        let client = testbed.client().with("authorization", header);
        let answer = client.get("/info").await;
        // What cannot be a header at all is refused before anybody looks at it.
        if answer.status != 400 {
            answer.problem(401, "unauthorized");
        }
    }
    let problem = testbed.by("the-token-of-old").get("/info").await;
    let problem = problem.problem(401, "unauthorized");
    assert!(problem["detail"].as_str().unwrap().contains("expired"));
    testbed
        .client()
        .with("authorization", "bearer  the-token-of-alice ")
        .get("/info")
        .await
        .is(200);
}

#[tokio::test]
async fn a_new_configuration_replaces_the_tokens() {
    let testbed = Testbed::new().await;
    testbed
        .by("brand-new-token-for-carol")
        .get("/info")
        .await
        .problem(401, "unauthorized");
    let more = "    - {name: carol, token: brand-new-token-for-carol, right: read}\n";
    let mut config = configuration(more);
    config.api.anonymous = nodeyard_config::AnonymousAccess::None;
    config
        .api
        .tokens
        .retain(|token| token.name.as_str() != "alice");
    testbed.config.send_replace(Arc::new(config));
    until("carol may come", async || {
        testbed
            .by("brand-new-token-for-carol")
            .get("/info")
            .await
            .status
            == 200
    })
    .await;
    testbed
        .by(ALICE)
        .get("/info")
        .await
        .problem(401, "unauthorized");
    testbed
        .client()
        .get("/info")
        .await
        .problem(401, "unauthorized");
    testbed
        .client()
        .get("/events")
        .await
        .problem(401, "unauthorized");
}

#[tokio::test]
async fn an_event_stream_ends_with_its_token() {
    let testbed = Testbed::new().await;
    let mut stays = testbed.by(READER).events("?kind=node").await;
    let gone = testbed.by(ALICE).events("").await;
    let confined = testbed.by(OPERATOR).events("").await;
    let nobody = testbed.client().events("").await;
    let mut config = configuration("");
    let tokens = &mut config.api.tokens;
    tokens.retain(|token| token.name.as_str() != "alice" && token.tenant.is_none());
    let mut tokens = tokens.iter_mut();
    let operator = tokens.find(|token| token.name.as_str() == "operator");
    operator.unwrap().tenant = Some("acme".to_owned());
    testbed.config.send_replace(Arc::new(config));
    for ended in [gone, confined] {
        assert!(ended.rest().await.contains(": access has changed"));
    }
    testbed
        .by(ALICE)
        .get("/events")
        .await
        .problem(401, "unauthorized");
    // Who may come back is told from there on what it may see now.
    let mut again = testbed.by(OPERATOR).events("?kind=node").await;
    let mut node = node("small", NodeState::Ready);
    let (free, _) = testbed.registry.nodes().create(&node).await.unwrap();
    node.tenant_name = Some("acme".into());
    let (owned, _) = testbed.registry.nodes().create(&node).await.unwrap();
    assert_eq!(again.next().await.data["id"], owned.to_string());
    let free = free.to_string();
    stays.until(|event| event.data["id"] == *free).await;
    // As long as there is a tenant, nothing changes for those without a token.
    testbed.config.send_replace(Arc::new(without_tenants()));
    nobody.rest().await;
}

#[tokio::test]
async fn the_local_token_allows_everything() {
    let store = Store::new();
    let token = LocalToken::ensure(store.directory.path()).unwrap();
    let config = configuration("");
    let testbed = Testbed::on(store.engine.session(), config, Some(token)).await;
    let found = LocalToken::find(store.directory.path()).unwrap();
    let info = testbed.by(found.reveal()).get("/info").await.is(200);
    assert_eq!(
        info["caller"],
        json!({"token": "local", "right": "admin", "tenant": null})
    );
}

/// Ids of what a client sees of a kind.
async fn ids(client: &Client, path: &str) -> Vec<String> {
    let page = client.get(path).await.is(200);
    let items = page["items"].as_array().unwrap();
    items
        .iter()
        .map(|item| {
            let id = item.get("id").or(item.get("name")).unwrap();
            id.as_str().unwrap().to_owned()
        })
        .collect()
}

#[tokio::test]
async fn a_tenant_sees_and_changes_only_its_own_data() {
    let testbed = Testbed::new().await;
    let _hand = FakeLauncher::new(&testbed.registry);
    let (acme, other) = (testbed.by(ACME), testbed.by(OTHER));
    let free = node("small", NodeState::Ready);
    testbed.registry.nodes().create(&free).await.unwrap();
    let mut heard = other.events("").await;
    let body = json!({"labels": ["small"], "scope": "shared-name"});
    let lease = acme.post("/requests", &body).await.is(201);
    assert_eq!(lease["tenant"], "acme");
    let id = lease["id"].as_str().unwrap();
    let lease = acme.get(&format!("/leases/{id}?wait=60")).await.is(200);
    let node = lease["nodes"][0]["id"].as_str().unwrap();
    let request = lease["request"].as_str().unwrap();

    for (path, own) in [
        ("/leases", id),
        ("/nodes", node),
        ("/scopes", "shared-name"),
    ] {
        until(path, async || ids(&acme, path).await == [own]).await;
        assert_eq!(ids(&other, path).await, [""; 0], "{path}");
    }
    until("both nodes are listed", async || {
        ids(&testbed.by(READER), "/nodes").await.len() == 2
    })
    .await;
    for path in [
        format!("/leases/{id}"),
        format!("/leases/{id}/explanation"),
        format!("/requests/{request}"),
        format!("/requests/{request}/explanation"),
        format!("/nodes/{node}"),
        format!("/nodes/{node}/connection"),
        "/scopes/shared-name".to_owned(),
        "/scopes/shared-name?tenant=acme".to_owned(),
        "/scopes/shared-name/inventory".to_owned(),
    ] {
        other.get(&path).await.problem(404, "not-found");
    }
    for path in [
        format!("/leases/{id}"),
        format!("/requests/{request}"),
        format!("/nodes/{node}"),
        "/scopes/shared-name".to_owned(),
    ] {
        other.delete(&path).await.problem(404, "not-found");
    }
    for path in [
        format!("/leases/{id}/renew"),
        format!("/nodes/{node}/hold"),
        format!("/nodes/{node}/release"),
        "/scopes/shared-name/renew".to_owned(),
    ] {
        other
            .ask("POST", &path, None)
            .await
            .problem(404, "not-found");
    }
    // Nor can it do anything in the name of another, or to what is everybody's.
    let body = json!({"labels": ["small"], "tenant": "acme"});
    other
        .post("/requests", &body)
        .await
        .problem(403, "forbidden");
    other
        .put("/drains/provider/cloud")
        .await
        .problem(403, "forbidden");
    other
        .ask("POST", "/images/debian/builds", None)
        .await
        .problem(403, "forbidden");

    // A scope of the same name is another one.
    let scope = json!({"name": "shared-name", "duration": 60});
    other.post("/scopes", &scope).await.is(201);
    let shown = other.get("/scopes/shared-name").await.is(200);
    assert_eq!(shown["tenant"], "other");
    let shown = testbed
        .by(ADMIN)
        .get("/scopes/shared-name?tenant=acme")
        .await;
    assert_eq!(shown.is(200)["tenant"], "acme");

    // All that the other tenant has heard is its own.
    let event = heard.until(|event| event.kind == "scope").await;
    assert_eq!(event.data["object"]["tenant"], "other");
}

fn without_tenants() -> Config {
    let mut config = configuration("");
    config.api.tokens.retain(|token| token.tenant.is_none());
    config
}

#[tokio::test]
async fn tenant_data_needs_a_token() {
    let testbed = Testbed::new().await;
    let _hand = FakeLauncher::new(&testbed.registry);
    let nobody = testbed.client();
    let mut heard = nobody.events("").await;
    let body = json!({"labels": ["small"], "scope": "secret-name"});
    let lease = testbed.by(ACME).post("/requests", &body).await.is(201);
    let id = lease["id"].as_str().unwrap();
    let path = format!("/leases/{id}?wait=60");
    let lease = testbed.by(ACME).get(&path).await.is(200);
    let node = lease["nodes"][0]["id"].as_str().unwrap();
    let request = lease["request"].as_str().unwrap();

    // Every path of the document is either closed or tells nothing of it.
    let document = crate::openapi::checked_in();
    for (path, item) in document["paths"].as_object().unwrap() {
        let path = path.strip_prefix("/api/v1").unwrap();
        if item.get("get").is_none() || path == "/events" {
            continue;
        }
        let own = match path.split('/').nth(1).unwrap() {
            "leases" => Some(id),
            "nodes" => Some(node),
            "requests" => Some(request),
            "scopes" => Some("secret-name"),
            _ => None,
        };
        let name = own.unwrap_or("cloud");
        let filled = path.replace("{id}", name).replace("{name}", name);
        let answer = nobody.get(&filled).await;
        if own.is_some() {
            answer.problem(401, "unauthorized");
            continue;
        }
        assert!(matches!(answer.status, 200 | 404), "{path}: {answer:?}");
        for secret in ["acme", "secret-name", id, node, request] {
            assert!(!answer.body.contains(secret), "{path}: {answer:?}");
        }
    }

    // Nor is it told as an event; who waits for one is told why in vain.
    testbed
        .by(OPERATOR)
        .put("/drains/label/small")
        .await
        .is(201);
    assert_eq!(heard.next().await.kind, "drain");
    for kind in ["node", "drain,lease", "scope", "request"] {
        let answer = nobody.get(&format!("/events?kind={kind}")).await;
        answer.problem(401, "unauthorized");
    }

    // Where there are no tenants, everybody may look.
    testbed.config.send_replace(Arc::new(without_tenants()));
    let shown = nobody.get(&format!("/nodes/{node}")).await.is(200);
    assert_eq!(shown["tenant"], "acme");
}

#[tokio::test]
async fn callers_are_rate_limited() {
    let testbed = Testbed::new().await;
    let mut config = configuration("");
    config.api.rate_limit = 1;
    testbed.config.send_replace(Arc::new(config));
    let mut answers = Vec::new();
    for _ in 0..50 {
        answers.push(testbed.by(ALICE).get("/info").await);
    }
    let refused = answers.iter().find(|answer| answer.status == 429).unwrap();
    let seconds: u64 = refused.header("retry-after").parse().unwrap();
    assert!(seconds >= 1);
    refused.clone().problem(429, "too-many-requests");
    // Others are not concerned; guesses are limited, too.
    testbed.by(ADMIN).get("/info").await.is(200);
    let mut guesses = Vec::new();
    for _ in 0..50 {
        guesses.push(testbed.by("a-guess").get("/info").await.status);
    }
    assert!(
        guesses.contains(&401) && guesses.contains(&429),
        "{guesses:?}"
    );
}
