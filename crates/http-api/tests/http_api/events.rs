//! Changes, as they happen.

use nodeyard_model::{ImageName, NodeState};
use nodeyard_store::registry::Patience;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::bed::{ALICE, Bed, OPERATOR, READER, at, node};
use crate::client::Event;
use crate::hand::Hand;

async fn new_node(bed: &Bed) -> String {
    let node = node("small", NodeState::Ready);
    let (id, _) = bed.registry.nodes().create(&node).await.unwrap();
    id.to_string()
}

fn about(id: &str) -> impl Fn(&Event) -> bool {
    move |event| event.data["id"] == id
}

#[tokio::test]
async fn a_node_is_followed_from_its_first_moment_to_its_last() {
    let bed = Bed::new().await;
    let mut events = bed.by(READER).events("?kind=node").await;
    let id = new_node(&bed).await;
    let event = events.until(about(&id)).await;
    assert_eq!(event.kind, "node");
    assert_eq!(event.data["change"], "created");
    assert_eq!(event.data["object"]["state"], "ready");

    let nodes = bed.registry.nodes();
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
async fn everything_that_changes_is_told() {
    let bed = Bed::new().await;
    let _hand = Hand::new(&bed.registry);
    let mut events = bed.by(READER).events("").await;
    let operator = bed.by(OPERATOR);
    let body = json!({"labels": ["small"], "scope": "mine"});
    let lease = bed.by(ALICE).post("/requests", &body).await.is(201);
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
    let _registered = bed.registry.components().register(&component).unwrap();
    let event = events.until(|event| event.kind == "component").await;
    assert_eq!(event.data["object"]["hostname"], "np01");
    let image = ImageName::new("debian").unwrap();
    crate::images::build(&bed.registry, &image).await;
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
async fn filters_leave_out_the_rest() {
    let bed = Bed::new().await;
    let _hand = Hand::new(&bed.registry);
    let body = json!({"labels": ["small"]});
    let lease = bed.by(ALICE).post("/requests", &body).await.is(201);
    let id = lease["id"].as_str().unwrap();
    let lease = bed
        .by(ALICE)
        .get(&format!("/leases/{id}?wait=60"))
        .await
        .is(200);
    let node = lease["nodes"][0]["id"].as_str().unwrap();
    let mut events = bed
        .by(READER)
        .events(&format!("?kind=node,lease&about={node}"))
        .await;
    new_node(&bed).await;
    bed.by(OPERATOR).put("/drains/label/small").await.is(201);
    bed.by(ALICE).delete(&format!("/leases/{id}")).await.is(200);
    new_node(&bed).await;
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
async fn who_comes_back_hears_what_was_missed() {
    let bed = Bed::new().await;
    let mut events = bed.by(READER).events("?kind=node").await;
    let first = new_node(&bed).await;
    let seen = events.until(about(&first)).await;
    drop(events);
    let missed = new_node(&bed).await;
    for again in [
        bed.by(READER)
            .with("last-event-id", &seen.id)
            .events("?kind=node")
            .await,
        bed.by(READER)
            .events(&format!("?kind=node&last_event_id={}", seen.id))
            .await,
    ] {
        let mut again = again;
        let event = again.until(about(&missed)).await;
        assert_eq!(event.data["change"], "created");
    }
}

#[tokio::test]
async fn who_missed_too_much_is_told_to_list_again() {
    let bed = Bed::new().await;
    for id in ["1-1", "nonsense", "", "ffffffffffffffff-ffffffffffffffff"] {
        let client = bed.by(READER).with("last-event-id", id);
        let mut events = client.events("?kind=node").await;
        let reset = events.next().await;
        assert_eq!(reset.kind, "reset", "{id}");
        // From there on it goes on as usual, and its id is good for coming back.
        let new = new_node(&bed).await;
        let event = events.until(about(&new)).await;
        assert_eq!(event.data["change"], "created");
        let client = bed.by(READER).with("last-event-id", &reset.id);
        let mut events = client.events("?kind=node").await;
        events.until(about(&new)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_listeners_hear_the_same() {
    let bed = Bed::new().await;
    let mut listeners = Vec::new();
    for _ in 0..2000 {
        listeners.push(bed.by(READER).events("?kind=node").await);
    }
    let id = new_node(&bed).await;
    for listener in &mut listeners {
        let event = listener.until(about(&id)).await;
        assert_eq!(event.data["change"], "created");
    }
    // They do not keep others from being answered.
    bed.by(READER).get("/info").await.is(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_read_holds_up_nobody() {
    let bed = Bed::new().await;
    let mut sleepers = Vec::new();
    for _ in 0..20 {
        sleepers.push(bed.by(READER).events("").await);
    }
    let mut events = bed.by(READER).events("?kind=node").await;
    // More than fits into the buffers on the way.
    let mut large = node("small", NodeState::Ready);
    large.comment = Some("x".repeat(100_000).into());
    for _ in 0..100 {
        let (id, _) = bed.registry.nodes().create(&large).await.unwrap();
        events.until(about(&id.to_string())).await;
    }
    // A sleeper that wakes up finds everything, or is told that it does not.
    let mut sleeper = sleepers.pop().unwrap();
    let event = sleeper.next().await;
    assert!(matches!(&*event.kind, "node" | "reset"), "{}", event.kind);
}

#[tokio::test]
async fn streams_end_with_the_server() {
    let mut bed = Bed::new().await;
    let events = bed.by(READER).events("").await;
    let alice = bed.by(ALICE);
    let body = json!({"labels": ["x"]});
    let lease = alice.post("/requests", &body).await.is(201);
    let path = format!("/leases/{}?wait=60", lease["id"].as_str().unwrap());
    let mut waiting = tokio::net::TcpStream::connect(bed.address).await.unwrap();
    let head = format!("GET /api/v1{path} HTTP/1.0\r\nauthorization: Bearer {READER}\r\n\r\n");
    waiting.write_all(head.as_bytes()).await.unwrap();
    bed.shutdown.cancel();
    let task = bed.task.take().unwrap();
    tokio::time::timeout(crate::bed::DEADLINE, task)
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
