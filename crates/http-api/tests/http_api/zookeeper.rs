//! The same on ZooKeeper.

use nodeyard_store::Tree as _;
use nodeyard_store::zookeeper::{Host, Options, ZooKeeper};
use nodeyard_testbeds::ZooKeeperServer;
use serde_json::json;

use crate::fake_launcher::FakeLauncher;
use crate::testbed::{ALICE, DEADLINE, READER, Testbed, configuration, until};

#[tokio::test]
async fn nodes_are_leased_over_zookeeper() {
    let server = ZooKeeperServer::start().unwrap();
    let host: Host = format!("127.0.0.1:{}", server.port()).parse().unwrap();
    let client = ZooKeeper::connect(Options::new(vec![host]));
    client.connected(DEADLINE).await.unwrap();
    let testbed = Testbed::on(client.clone(), configuration(""), None).await;
    let _hand = FakeLauncher::new(&testbed.registry);
    let alice = testbed.by(ALICE);
    let mut events = testbed.by(READER).events("?kind=lease").await;
    let body = json!({"labels": ["small"]});
    let lease = alice.post("/requests", &body).await.is(201);
    let id = lease["id"].as_str().unwrap();
    let lease = alice.get(&format!("/leases/{id}?wait=60")).await.is(200);
    assert_eq!(lease["phase"], "active");
    alice.delete(&format!("/leases/{id}")).await.is(200);
    let ended = events
        .until(|event| event.data["object"]["phase"] == "ended")
        .await;
    assert_eq!(ended.data["id"], id);

    // Without the store one may still look at what was last heard of, and is not left waiting for the rest.
    server.pause();
    testbed.by(READER).get("/nodes").await.is(200);
    alice
        .post("/requests", &body)
        .await
        .problem(503, "unavailable");
    server.resume();
    until("it goes on", async || {
        alice.post("/requests", &body).await.status == 201
    })
    .await;
    drop(testbed);
    client.close().await;
}
