//! Getting nodes, keeping them, giving them back.

use serde_json::json;

use crate::fake_launcher::FakeLauncher;
use crate::testbed::{ADMIN, ALICE, BOB, OPERATOR, READER, Testbed, until};

#[tokio::test]
async fn nodes_are_requested_used_and_released() {
    let testbed = Testbed::new().await;
    let _hand = FakeLauncher::new(&testbed.registry);
    let alice = testbed.by(ALICE);
    let asked = alice
        .post(
            "/requests",
            &json!({"labels": ["small", "small"], "duration": 600}),
        )
        .await;
    assert!(asked.header("location").starts_with("/api/v1/leases/"));
    let lease = asked.is(201);
    let id = lease["id"].as_str().unwrap().to_owned();
    assert_eq!(lease["requestor"], "alice");
    assert_eq!(lease["labels"], json!(["small", "small"]));

    let lease = alice.get(&format!("/leases/{id}?wait=60")).await.is(200);
    assert_eq!(lease["phase"], "active", "{lease}");
    let nodes = lease["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 2);
    assert_eq!(nodes[0]["state"], "leased");
    assert_eq!(nodes[0]["connection"]["host"], "192.0.2.7");
    assert_eq!(nodes[0]["connection"]["port"], 2222);
    let node = nodes[0]["id"].as_str().unwrap().to_owned();

    // Others see it, but not how to get in.
    let seen = testbed
        .by(READER)
        .get(&format!("/leases/{id}"))
        .await
        .is(200);
    assert_eq!(seen["nodes"][0]["connection"], json!(null));
    let path = format!("/nodes/{node}/connection");
    testbed
        .client()
        .get(&path)
        .await
        .problem(401, "unauthorized");
    testbed
        .by(READER)
        .get(&path)
        .await
        .problem(403, "forbidden");
    testbed.by(BOB).get(&path).await.problem(403, "forbidden");
    let connection = alice.get(&path).await.is(200);
    assert_eq!(connection["host_keys"], json!(["ssh-ed25519 AAAA"]));
    assert_eq!(connection["user"], "zuul");

    let renew = format!("/leases/{id}/renew");
    testbed
        .by(BOB)
        .post(&renew, &json!({}))
        .await
        .problem(403, "forbidden");
    let renewed = alice.post(&renew, &json!({"duration": 7200})).await.is(200);
    assert!(renewed["expires"].as_str() > lease["expires"].as_str());
    // Without a body it is the time that was asked for.
    alice.ask("POST", &renew, None).await.is(200);

    testbed
        .by(BOB)
        .delete(&format!("/leases/{id}"))
        .await
        .problem(403, "forbidden");
    let ended = alice.delete(&format!("/leases/{id}")).await.is(200);
    assert_eq!(ended["phase"], "ended");
    assert_eq!(ended["end"]["cause"], "released");
    assert_eq!(ended["nodes"][0]["state"], "returned");
    let again = alice.delete(&format!("/leases/{id}")).await.is(200);
    assert_eq!(again["end"], ended["end"]);
    alice
        .post(&renew, &json!({}))
        .await
        .problem(409, "conflict");
    until("its node is used", async || {
        let node = testbed.by(READER).get(&format!("/nodes/{node}")).await;
        node.json()["state"] == "used"
    })
    .await;
}

#[tokio::test]
async fn a_waiting_request_is_cancelled() {
    let testbed = Testbed::new().await;
    let alice = testbed.by(ALICE);
    let body = json!({"labels": ["unheard-of"]});
    let lease = alice.post("/requests", &body).await.is(201);
    let id = lease["id"].as_str().unwrap();
    // Nobody serves it; the answer comes when the time is over.
    let lease = alice.get(&format!("/leases/{id}?wait=1")).await.is(200);
    assert_eq!(lease["phase"], "waiting");
    let requests = async || {
        let requests = testbed.by(READER).get("/requests?state=requested").await;
        requests.is(200)["items"].clone()
    };
    until("its request is listed", async || {
        requests().await != json!([])
    })
    .await;
    let requests = requests().await;
    let request = &requests[0];
    assert_eq!(request["lease"], id);
    let request = request["id"].as_str().unwrap();
    testbed
        .by(BOB)
        .delete(&format!("/requests/{request}"))
        .await
        .problem(403, "forbidden");
    let ended = alice.delete(&format!("/requests/{request}")).await.is(200);
    assert_eq!(ended["end"]["cause"], "cancelled");
    let gone = alice.get(&format!("/requests/{request}?wait=5")).await;
    assert_eq!(gone.is(200)["state"], "failed");
}

#[tokio::test]
async fn a_request_is_shown_after_its_nodes_were_taken() {
    let testbed = Testbed::new().await;
    let alice = testbed.by(ALICE);
    let body = json!({"labels": ["small"]});
    let lease = alice.post("/requests", &body).await.is(201);
    let id = lease["id"].as_str().unwrap();
    let request = || async {
        let lease = alice.get(&format!("/leases/{id}")).await.is(200);
        lease["request"].as_str().map(str::to_owned)
    };
    until("the number of the request is known", async || {
        request().await.is_some()
    })
    .await;
    let request = request().await.unwrap();
    let path = format!("/requests/{request}?wait=60");
    let waiting = tokio::spawn({
        let alice = alice.clone();
        async move { alice.get(&path).await }
    });
    let _hand = FakeLauncher::new(&testbed.registry);
    let found = waiting.await.unwrap().is(200);
    assert_eq!(found["state"], "fulfilled");
    alice.get(&format!("/leases/{id}?wait=60")).await.is(200);
    until("the record of the request is gone", async || {
        let left = testbed.by(READER).get("/requests").await.is(200);
        left["items"] == json!([])
    })
    .await;
    let found = alice.get(&format!("/requests/{request}")).await.is(200);
    assert_eq!(found["state"], "fulfilled");
    assert_eq!(found["nodes"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn idempotency_keys_prevent_duplicates() {
    let testbed = Testbed::new().await;
    let alice = testbed.by(ALICE).with("idempotency-key", "6f0a2f0e");
    let body = json!({"labels": ["small"]});
    let (one, two) = tokio::join!(
        alice.post("/requests", &body),
        alice.post("/requests", &body)
    );
    let mut statuses = [one.status, two.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 201]);
    assert_eq!(one.json()["id"], two.json()["id"]);
    let other = json!({"labels": ["large"]});
    alice
        .post("/requests", &other)
        .await
        .problem(409, "conflict");
    let listed = async || {
        let leases = testbed.by(READER).get("/leases").await.is(200);
        leases["items"].as_array().unwrap().len()
    };
    until("it is listed", async || listed().await > 0).await;
    assert_eq!(listed().await, 1);
    // Somebody else's key is another one.
    let bob = testbed.by(BOB).with("idempotency-key", "6f0a2f0e");
    let lease = bob.post("/requests", &body).await.is(201);
    assert_eq!(lease["requestor"], "bob");
    for bad in ["", "a b", &"x".repeat(129)] {
        let client = testbed.by(ALICE).with("idempotency-key", bad);
        client
            .post("/requests", &body)
            .await
            .problem(400, "bad-request");
    }
}

#[tokio::test]
async fn a_node_is_held_and_released() {
    let testbed = Testbed::new().await;
    let _hand = FakeLauncher::new(&testbed.registry);
    let (alice, operator) = (testbed.by(ALICE), testbed.by(OPERATOR));
    let body = json!({"labels": ["small", "small", "small"]});
    let lease = alice.post("/requests", &body).await.is(201);
    let id = lease["id"].as_str().unwrap();
    let lease = alice.get(&format!("/leases/{id}?wait=60")).await.is(200);
    let node = |index: usize| lease["nodes"][index]["id"].as_str().unwrap().to_owned();

    let hold = format!("/nodes/{}/hold", node(0));
    alice
        .post(&hold, &json!({}))
        .await
        .problem(403, "forbidden");
    let comment = json!({"comment": "the tests hang on it", "expiration": 3600});
    let held = operator.post(&hold, &comment).await.is(200);
    assert_eq!(held["state"], "hold");
    assert_eq!(held["comment"], "the tests hang on it");
    assert_eq!(held["hold_expiration"], 3600);

    // One is given back, one is deleted, and the one on hold outlives them.
    let release = format!("/nodes/{}/release", node(1));
    testbed
        .by(BOB)
        .ask("POST", &release, None)
        .await
        .problem(403, "forbidden");
    alice.ask("POST", &release, None).await.is(200);
    let path = format!("/nodes/{}", node(2));
    alice.delete(&path).await.problem(403, "forbidden");
    operator.delete(&path).await.is(202);
    let lease = alice.get(&format!("/leases/{id}")).await.is(200);
    let states: Vec<_> = lease["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["state"].clone())
        .collect();
    assert_eq!(states, ["held", "returned", "returned"]);

    let release = format!("/nodes/{}/release", node(0));
    let released = operator.ask("POST", &release, None).await.is(200);
    assert_eq!(released["state"], "used");
}

#[tokio::test]
async fn unleased_nodes_are_changed_as_by_the_command_line() {
    let testbed = Testbed::new().await;
    let free = crate::testbed::node("small", nodeyard_model::NodeState::Ready);
    let (free, _) = testbed.registry.nodes().create(&free).await.unwrap();
    let used = crate::testbed::node("small", nodeyard_model::NodeState::InUse);
    let (used, _) = testbed.registry.nodes().create(&used).await.unwrap();
    let nodes = testbed.registry.nodes();
    let lock = nodes.lock(used, nodeyard_store::registry::Patience::None);
    let _lock = lock.await.unwrap().held().unwrap();
    let operator = testbed.by(OPERATOR);
    until("both are there", async || {
        testbed.by(READER).get("/nodes").await.json()["items"]
            .as_array()
            .unwrap()
            .len()
            == 2
    })
    .await;
    let release = format!("/nodes/{free}/release");
    testbed
        .by(ADMIN)
        .ask("POST", &release, None)
        .await
        .problem(409, "conflict");
    let hold = format!("/nodes/{free}/hold");
    let held = operator.ask("POST", &hold, None).await.is(200);
    assert_eq!(held["state"], "hold");
    testbed
        .by(ALICE)
        .ask("POST", &release, None)
        .await
        .problem(403, "forbidden");
    let released = operator.ask("POST", &release, None).await.is(200);
    assert_eq!(released["state"], "deleting");
    // Zuul has it.
    operator
        .delete(&format!("/nodes/{used}"))
        .await
        .problem(409, "conflict");
}

#[tokio::test]
async fn a_scope_owns_leases_until_it_is_closed() {
    let testbed = Testbed::new().await;
    let _hand = FakeLauncher::new(&testbed.registry);
    let alice = testbed.by(ALICE);
    let scope = json!({"name": "afternoon", "duration": 600});
    let opened = alice.post("/scopes", &scope).await.is(201);
    assert_eq!(opened["owner"], "alice");
    alice.post("/scopes", &scope).await.problem(409, "conflict");
    let body = json!({"labels": ["small"], "scope": "afternoon"});
    let lease = alice.post("/requests", &body).await.is(201);
    let id = lease["id"].as_str().unwrap();
    alice.get(&format!("/leases/{id}?wait=60")).await.is(200);

    let shown = async || testbed.by(READER).get("/scopes/afternoon").await.is(200);
    until("it is where its node is", async || {
        shown().await["provider"] == "cloud"
    })
    .await;
    let shown = shown().await;
    assert_eq!(shown["leases"], json!([id]));
    let path = "/scopes/afternoon/inventory";
    testbed
        .client()
        .get(path)
        .await
        .problem(401, "unauthorized");
    testbed.by(BOB).get(path).await.problem(403, "forbidden");
    until("the node is in the inventory", async || {
        let inventory = alice.get(path).await.is(200);
        let host = &inventory["small"]["hosts"][0];
        host.as_str()
            .is_some_and(|host| inventory["_meta"]["hostvars"][host]["ansible_port"] == 2222)
    })
    .await;
    let renewed = alice
        .post("/scopes/afternoon/renew", &json!({"duration": 7200}))
        .await
        .is(200);
    assert!(renewed["expires"].as_str() > shown["expires"].as_str());

    testbed
        .by(BOB)
        .delete("/scopes/afternoon")
        .await
        .problem(403, "forbidden");
    let closed = alice.delete("/scopes/afternoon").await.is(202);
    assert_eq!(closed["closing"], true);
    until("its lease is over", async || {
        let lease = alice.get(&format!("/leases/{id}")).await.is(200);
        lease["end"]["cause"] == "scope-ended"
    })
    .await;
    until("it is gone", async || {
        testbed.by(READER).get("/scopes/afternoon").await.status == 404
    })
    .await;
}
