//! The same on ZooKeeper.

use nodeyard_store::Tree as _;
use nodeyard_store::zookeeper::{Host, Options, ZooKeeper};
use nodeyard_testbeds::ZooKeeperServer;
use serde_json::json;

use crate::bed::{ALICE, Bed, DEADLINE, READER, configuration, until};
use crate::hand::Hand;

#[tokio::test]
async fn nodes_are_had_by_way_of_zookeeper() {
    let server = ZooKeeperServer::start().unwrap();
    let host: Host = format!("127.0.0.1:{}", server.port()).parse().unwrap();
    let client = ZooKeeper::connect(Options::new(vec![host]));
    client.connected(DEADLINE).await.unwrap();
    let bed = Bed::on(client.clone(), configuration(""), None).await;
    let _hand = Hand::new(&bed.registry);
    let alice = bed.by(ALICE);
    let mut events = bed.by(READER).events("?kind=lease").await;
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
    bed.by(READER).get("/nodes").await.is(200);
    alice
        .post("/requests", &body)
        .await
        .problem(503, "unavailable");
    server.resume();
    until("it goes on", async || {
        alice.post("/requests", &body).await.status == 201
    })
    .await;
    drop(bed);
    client.close().await;
}
