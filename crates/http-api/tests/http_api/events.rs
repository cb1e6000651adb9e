//! Changes, as they happen.

use nodeyard_model::{ImageName, NodeState};
use nodeyard_store::registry::Patience;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::client::Event;
use crate::fake_launcher::FakeLauncher;
use crate::testbed::{ALICE, OPERATOR, READER, Testbed, at, node};

async fn new_node(testbed: &Testbed) -> String {
    let node = node("small", NodeState::Ready);
    let (id, _) = testbed.registry.nodes().create(&node).await.unwrap();
    id.to_string()
}

fn about(id: &str) -> impl Fn(&Event) -> bool {
    move |event| event.data["id"] == id
}

#[tokio::test]
async fn events_cover_the_life_of_a_node() {
    let testbed = Testbed::new().await;
    let mut events = testbed.by(READER).events("?kind=node").await;
    let id = new_node(&testbed).await;
    let event = events.until(about(&id)).await;
    assert_eq!(event.kind, "node");
    assert_eq!(event.data["change"], "created");
    assert_eq!(event.data["object"]["state"], "ready");

    let nodes = testbed.registry.nodes();
    let number = id.parse().unwrap();
    let mut held = nodes
        .lock(number, Patience::None)
        .await
        .unwrap()
        .held()
        .unwrap();
    held.value.set_state(NodeState::Hold, at(9.0));
    nodes.store(&held.guard, number, &held.value).await.unwrap();
    let wanted = |event: &Event| event.data["object"]["state"] == "hold";
    let event = events.until(wanted).await;
    assert_eq!(event.data["change"], "changed");
    nodes.delete(number, held, at(10.0)).await.unwrap();
    let event = events
        .until(|event| event.data["change"] == "deleted")
        .await;
    assert_eq!(event.data["id"], id.as_str());
    assert_eq!(event.data["object"], json!(null));
}

#[tokio::test]
async fn every_kind_of_object_has_events() {
    let testbed = Testbed::new().await;
    let _hand = FakeLauncher::new(&testbed.registry);
    let mut events = testbed.by(READER).events("").await;
    let operator = testbed.by(OPERATOR);
    let body = json!({"labels": ["small"], "scope": "mine"});
    let lease = testbed.by(ALICE).post("/requests", &body).await.is(201);
    let id = lease["id"].as_str().unwrap();
    let active = |event: &Event| event.kind == "lease" && event.data["object"]["phase"] == "active";
    let mut kinds = std::collections::BTreeSet::new();
    loop {
        let event = events.next().await;
        kinds.insert(event.kind.clone());
        if active(&event) {
            assert_eq!(event.data["id"], id);
            // Events are for everybody who may look, so they do not say how to get in.
            assert_eq!(event.data["object"]["nodes"][0].get("connection"), None);
            break;
        }
    }
    operator
        .ask("POST", "/images/debian/builds", None)
        .await
        .is(202);
    events.until(|event| event.kind == "image").await;
    operator.put("/images/debian/pause").await.is(200);
    events
        .until(|event| event.kind == "image" && event.data["object"]["paused"] == true)
        .await;
    operator.put("/drains/label/small").await.is(201);
    let event = events.until(|event| event.kind == "drain").await;
    assert_eq!(event.data["object"]["name"], "small");
    let component =
        nodeyard_model::Component::new("np01".into(), nodeyard_model::ComponentKind::Launcher);
    let _registered = testbed.registry.components().register(&component).unwrap();
    let event = events.until(|event| event.kind == "component").await;
    assert_eq!(event.data["object"]["hostname"], "np01");
    let image = ImageName::new("debian").unwrap();
    crate::images::build(&testbed.registry, &image).await;
    events.until(|event| event.kind == "build").await;
    events.until(|event| event.kind == "upload").await;
    assert!(
        kinds.is_superset(
            &["lease", "node", "request", "scope"]
                .map(String::from)
                .into()
        )
    );
}

#[tokio::test]
async fn filters_select_events() {
    let testbed = Testbed::new().await;
    let _hand = FakeLauncher::new(&testbed.registry);
    let body = json!({"labels": ["small"]});
    let lease = testbed.by(ALICE).post("/requests", &body).await.is(201);
    let id = lease["id"].as_str().unwrap();
    let lease = testbed
        .by(ALICE)
        .get(&format!("/leases/{id}?wait=60"))
        .await
        .is(200);
    let node = lease["nodes"][0]["id"].as_str().unwrap();
    let mut events = testbed
        .by(READER)
        .events(&format!("?kind=node,lease&about={node}"))
        .await;
    new_node(&testbed).await;
    testbed
        .by(OPERATOR)
        .put("/drains/label/small")
        .await
        .is(201);
    testbed
        .by(ALICE)
        .delete(&format!("/leases/{id}"))
        .await
        .is(200);
    new_node(&testbed).await;
    let mut ended = false;
    let mut used = false;
    while !(ended && used) {
        let event = events.next().await;
        match &*event.kind {
            "lease" => {
                assert_eq!(event.data["id"], id);
                ended |= event.data["object"]["phase"] == "ended";
            }
            "node" => {
                assert_eq!(event.data["id"], node);
                used |= event.data["object"]["state"] == "used";
            }
            kind => panic!("nobody asked for {kind}"),
        }
    }
}

#[tokio::test]
async fn a_resumed_stream_sends_missed_events() {
    let testbed = Testbed::new().await;
    let mut events = testbed.by(READER).events("?kind=node").await;
    let first = new_node(&testbed).await;
    let seen = events.until(about(&first)).await;
    drop(events);
    let missed = new_node(&testbed).await;
    for again in [
        testbed
            .by(READER)
            .with("last-event-id", &seen.id)
            .events("?kind=node")
            .await,
        testbed
            .by(READER)
            .events(&format!("?kind=node&last_event_id={}", seen.id))
            .await,
    ] {
        let mut again = again;
        let event = again.until(about(&missed)).await;
        assert_eq!(event.data["change"], "created");
    }
}

#[tokio::test]
async fn a_stream_with_a_gap_sends_a_reset() {
    let testbed = Testbed::new().await;
    for id in ["1-1", "nonsense", "", "ffffffffffffffff-ffffffffffffffff"] {
        let client = testbed.by(READER).with("last-event-id", id);
        let mut events = client.events("?kind=node").await;
        let reset = events.next().await;
        assert_eq!(reset.kind, "reset", "{id}");
        // From there on it goes on as usual, and its id is good for coming back.
        let new = new_node(&testbed).await;
        let event = events.until(about(&new)).await;
        assert_eq!(event.data["change"], "created");
        let client = testbed.by(READER).with("last-event-id", &reset.id);
        let mut events = client.events("?kind=node").await;
        events.until(about(&new)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_streams_get_the_same_events() {
    let testbed = Testbed::new().await;
    let mut listeners = Vec::new();
    for _ in 0..2000 {
        listeners.push(testbed.by(READER).events("?kind=node").await);
    }
    let id = new_node(&testbed).await;
    for listener in &mut listeners {
        let event = listener.until(about(&id)).await;
        assert_eq!(event.data["change"], "created");
    }
    // They do not keep others from being answered.
    testbed.by(READER).get("/info").await.is(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_delays_no_other() {
    let testbed = Testbed::new().await;
    let mut sleepers = Vec::new();
    for _ in 0..20 {
        sleepers.push(testbed.by(READER).events("").await);
    }
    let mut events = testbed.by(READER).events("?kind=node").await;
    // More than fits into the buffers on the way.
    let mut large = node("small", NodeState::Ready);
    large.comment = Some("x".repeat(100_000).into());
    for _ in 0..100 {
        let (id, _) = testbed.registry.nodes().create(&large).await.unwrap();
        events.until(about(&id.to_string())).await;
    }
    // A sleeper that wakes up finds everything, or is told that it does not.
    let mut sleeper = sleepers.pop().unwrap();
    let event = sleeper.next().await;
    assert!(matches!(&*event.kind, "node" | "reset"), "{}", event.kind);
}

#[tokio::test]
async fn streams_end_on_shutdown() {
    let mut testbed = Testbed::new().await;
    let events = testbed.by(READER).events("").await;
    let alice = testbed.by(ALICE);
    let body = json!({"labels": ["x"]});
    let lease = alice.post("/requests", &body).await.is(201);
    let path = format!("/leases/{}?wait=60", lease["id"].as_str().unwrap());
    let mut waiting = tokio::net::TcpStream::connect(testbed.address)
        .await
        .unwrap();
    let head = format!("GET /api/v1{path} HTTP/1.0\r\nauthorization: Bearer {READER}\r\n\r\n");
    waiting.write_all(head.as_bytes()).await.unwrap();
    testbed.shutdown.cancel();
    let task = testbed.task.take().unwrap();
    tokio::time::timeout(crate::testbed::DEADLINE, task)
        .await
        .unwrap()
        .unwrap();
    events.rest().await;
    // It is told, unless it came too late to be heard at all.
    let mut answer = String::new();
    let read = waiting.read_to_string(&mut answer).await;
    assert!(
        read.is_err() || answer.is_empty() || answer.contains(" 503 "),
        "{answer}"
    );
}
