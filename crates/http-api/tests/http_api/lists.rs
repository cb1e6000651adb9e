//! Lists: pages, filters, and what is counted.

use nodeyard_model::{Component, ComponentKind, NodeState, PoolComponent, ProviderName};
use serde_json::{Value, json};

use crate::client::raw;
use crate::testbed::{OPERATOR, READER, Testbed, node, until};

fn names(page: &Value, key: &str) -> Vec<String> {
    let items = page["items"].as_array().unwrap();
    items
        .iter()
        .map(|item| item[key].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn pages_neither_repeat_nor_skip_objects() {
    let testbed = Testbed::new().await;
    let mut all = Vec::new();
    for number in 0..25 {
        let state = if number % 5 == 0 {
            NodeState::InUse
        } else {
            NodeState::Ready
        };
        let (id, _) = testbed
            .registry
            .nodes()
            .create(&node("small", state))
            .await
            .unwrap();
        all.push(id.to_string());
    }
    until("all are there", async || {
        let page = testbed.by(READER).get("/nodes").await.is(200);
        names(&page, "id").len() == 25
    })
    .await;
    let mut seen = Vec::new();
    let mut path = "/nodes?limit=10".to_owned();
    loop {
        let page = testbed.by(READER).get(&path).await.is(200);
        seen.extend(names(&page, "id"));
        // One that was seen goes, one that comes is last.
        let gone = seen[0].parse().unwrap();
        let nodes = testbed.registry.nodes();
        let attempt = nodes
            .lock(gone, nodeyard_store::registry::Patience::None)
            .await;
        if let Some(held) = attempt.unwrap().held() {
            nodes
                .delete(gone, held, crate::testbed::at(5.0))
                .await
                .unwrap();
        }
        match page["next"].as_str() {
            Some(next) => path = format!("/nodes?limit=10&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, all);
    let used = testbed
        .by(READER)
        .get("/nodes?state=in-use&limit=2")
        .await
        .is(200);
    assert_eq!(names(&used, "id"), [all[5].clone(), all[10].clone()]);
    assert!(used["next"].is_string());
    for nothing in [
        "label=large",
        "provider=elsewhere",
        "request=200-0000000001",
    ] {
        let none = testbed
            .by(READER)
            .get(&format!("/nodes?{nothing}"))
            .await
            .is(200);
        assert_eq!(none, json!({"items": [], "next": null}));
    }
}

#[tokio::test]
async fn providers_pools_and_labels_are_listed() {
    let testbed = Testbed::new().await;
    let mut pool = PoolComponent::new(
        "np01".into(),
        "np01-PoolWorker.cloud-main-0".into(),
        "main".into(),
        ProviderName::new("cloud").unwrap(),
    );
    pool.supported_labels = vec!["small".into()];
    let components = testbed.registry.components();
    let _pool = components.register_pool(&pool).unwrap();
    let launcher = Component::new("np01".into(), ComponentKind::Launcher);
    let _launcher = components.register(&launcher).unwrap();
    let builder = Component::new("nb01".into(), ComponentKind::Builder);
    let _builder = components.register(&builder).unwrap();
    let ready = node("small", NodeState::Ready);
    testbed.registry.nodes().create(&ready).await.unwrap();
    let mut old = node("gone", NodeState::Used);
    old.provider = Some(ProviderName::new("former").unwrap());
    testbed.registry.nodes().create(&old).await.unwrap();
    until("all are there", async || {
        let components = testbed.client().get("/components").await.is(200);
        let pools = testbed.client().get("/pools").await.is(200);
        let nodes = testbed.by(READER).get("/nodes").await.is(200);
        names(&components, "kind") == ["builder", "launcher"]
            && names(&pools, "name") == ["main"]
            && names(&nodes, "id").len() == 2
    })
    .await;
    let provider = testbed.client().get("/providers/cloud").await.is(200);
    assert_eq!(
        provider,
        json!({
            "name": "cloud", "driver": "fake", "pools": ["main"], "images": ["debian"],
            "running": true, "nodes": {"ready": 1},
        })
    );
    let former = testbed.client().get("/providers/former").await.is(200);
    assert_eq!(
        (&former["driver"], &former["running"]),
        (&json!(null), &json!(false))
    );
    let label = testbed.client().get("/labels/small").await.is(200);
    assert_eq!(
        label,
        json!({"name": "small", "min_ready": 2, "pools": ["cloud/main"], "nodes": {"ready": 1}})
    );
    // A name may hold anything.
    let odd = testbed.client().get("/labels/a%2Fb").await.is(200);
    assert_eq!(odd["name"], "a/b");
    let labels = testbed.client().get("/labels").await.is(200);
    assert_eq!(names(&labels, "name"), ["a/b", "gone", "small"]);
}

#[tokio::test]
async fn drains_begin_and_end() {
    let testbed = Testbed::new().await;
    let operator = testbed.by(OPERATOR);
    for path in [
        "/drains/launcher/np01",
        "/drains/provider/cloud",
        "/drains/label/a%2Fb",
        "/drains/pool/cloud/main",
    ] {
        operator.delete(path).await.problem(404, "not-found");
        let begun = operator.put(path).await.is(201);
        assert_eq!(begun["drained"], true);
        operator.put(path).await.is(200);
        let shown = testbed.client().get(path).await.is(200);
        assert_eq!(shown["since"], begun["since"]);
    }
    let drains = testbed.client().get("/drains").await.is(200);
    assert_eq!(
        names(&drains, "kind"),
        ["launcher", "provider", "pool", "label"]
    );
    assert_eq!(drains["items"][2]["provider"], "cloud");
    operator.delete("/drains/label/a%2Fb").await.is(204);
    testbed
        .client()
        .get("/drains/label/a%2Fb")
        .await
        .problem(404, "not-found");
}

#[tokio::test]
async fn requests_are_explained() {
    let testbed = Testbed::new().await;
    let path = "/requests/200-0000000007/explanation";
    let told = testbed.by(READER).get(path).await.is(200);
    assert_eq!(
        told,
        json!({"text": "it waits for room\n", "reasons": {"next": "room"}})
    );
    testbed
        .by(READER)
        .get("/requests/200-0000000008/explanation")
        .await
        .problem(404, "not-found");
}

#[tokio::test]
async fn the_root_links_to_every_list() {
    let testbed = Testbed::new().await;
    let index = raw(testbed.address, b"GET / HTTP/1.0\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(index.status, 200, "{index:?}");
    assert_eq!(index.header("content-type"), "text/html; charset=utf-8");
    let policy = index.header("content-security-policy");
    assert!(policy.starts_with("default-src 'none';"), "{policy}");
    let links = index.body.split("href=\"/api/v1").skip(1);
    let links: Vec<&str> = links.map(|rest| rest.split('"').next().unwrap()).collect();
    assert!(links.contains(&"/openapi.json"), "{links:?}");
    assert!(links.contains(&"/nodes"), "{links:?}");
    assert!(links.contains(&"/events"), "{links:?}");
    let client = testbed.by(READER);
    for path in links.into_iter().filter(|path| *path != "/events") {
        client.get(path).await.is(200);
    }
}
