//! The server, as a client in another language sees it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nodeyard_driver::{Instance, Machines, Progress};
use nodeyard_driver_fake::{
    CallError, FailureRates, FakeDriver, Http, Quota, RemoteScan, Simulate, Span, Transport, World,
    serve,
};
use nodeyard_model::Clock;
use nodeyard_nodescan::{ScanTarget, Scanner};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::common::{PROVIDER, options, order, simulate};

struct Server {
    url: String,
    stop: oneshot::Sender<()>,
    task: JoinHandle<std::io::Result<()>>,
}

async fn start(simulate: Simulate) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let clouds = HashMap::from([(PROVIDER.to_owned(), simulate)]);
    let world = Arc::new(World::new(clouds, Clock::system()));
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(serve(listener, world, async {
        let _gone = stopped.await;
    }));
    Server { url, stop, task }
}

impl Server {
    fn client(&self) -> Http {
        Http::new(&self.url, PROVIDER).unwrap()
    }

    async fn ask(&self, method: &str, arguments: Value) -> Value {
        let body = arguments.to_string().into_bytes();
        let raw = self.client().call(method, body).await.unwrap();
        serde_json::from_str(raw.get()).unwrap()
    }

    /// A server, as soon as this is true of it.
    async fn once(&self, id: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let found = self.ask("get_server", json!({"id": id})).await;
            if condition(&found) {
                return found;
            }
            assert!(Instant::now() < deadline, "it stays so: {found}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Status and body of a request that no sane client would make.
    async fn raw(&self, request: &str) -> (u16, String) {
        let address = self.url.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer)
    }

    async fn post(&self, path: &str, body: &str) -> (u16, String) {
        let length = body.len();
        self.raw(&format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
        .await
    }
}

async fn launch(driver: &FakeDriver, number: u32) -> Instance {
    let progress = Progress::default();
    driver.create(&order(number), &progress).await.unwrap()
}

#[tokio::test]
async fn a_server_has_the_shape_that_nova_gives_it() {
    let server = start(simulate()).await;
    let flavors = server.ask("list_flavors", json!({})).await;
    let flavor = &flavors[0];
    assert_eq!(flavor["name"], "tiny");
    // As a client sends it that passes the cloud's own objects back.
    let made = server
        .ask(
            "create_server",
            json!({
                "name": "np0000000001", "flavor": flavor, "image": {"id": "fake-image-id"},
                "availability_zone": "az2", "key_name": "k", "config_drive": true,
                "nics": [], "meta": {"nodepool_node_id": "0000000001", "n": 1}, "wait": false,
            }),
        )
        .await;
    assert_eq!(made["status"], "BUILD");
    let id = made["id"].as_str().unwrap();
    let found = server.once(id, |found| found["status"] != "BUILD").await;
    assert_eq!(found["status"], "ACTIVE");
    for (key, value) in [
        ("name", json!("np0000000001")),
        ("hostId", json!("fake")),
        ("OS-EXT-AZ:availability_zone", json!("az2")),
        ("os-extended-volumes:volumes_attached", json!([])),
        (
            "metadata",
            json!({"nodepool_node_id": "0000000001", "n": "1"}),
        ),
        ("public_v4", json!("fake")),
        ("public_v6", json!("")),
        ("private_v4", json!("fake")),
        ("interface_ip", json!("fake")),
        ("key_name", json!("k")),
    ] {
        assert_eq!(found[key], value, "{key}");
    }
    assert_eq!(found["flavor"]["id"], flavor["id"]);
    assert_eq!(found["flavor"]["vcpus"], 2);
    assert_eq!(found["addresses"]["public"][0]["addr"], "fake");
    assert_eq!(server.ask("list_servers", json!({})).await, json!([found]));
    assert_eq!(
        server.ask("delete_server", json!({"id": id})).await,
        Value::Null
    );
    server.once(id, Value::is_null).await;
}

#[tokio::test]
async fn limits_and_lists_have_their_keys() {
    let server = start(simulate()).await;
    let limits = server.ask("get_compute_limits", json!({})).await;
    assert_eq!(limits["max_total_cores"], 100);
    assert_eq!(limits["max_total_instances"], 20);
    assert_eq!(limits["max_total_ram_size"], 1_000_000);
    let limits = server.ask("get_volume_limits", json!({})).await;
    assert_eq!(limits["absolute"]["maxTotalVolumes"], 100);
    assert_eq!(limits["absolute"]["maxTotalVolumeGigabytes"], 1_000_000);
    let zones = server.ask("list_availability_zone_names", json!({})).await;
    assert_eq!(zones, json!(["az1", "az2"]));
    let down = server.ask("list_ports", json!({"status": "DOWN"})).await;
    assert_eq!(down.as_array().unwrap().len(), 2);
    assert_eq!(
        server.ask("list_ports", json!({"status": "ACTIVE"})).await,
        json!([])
    );
    let network = server
        .ask(
            "get_network",
            json!({"name_or_id": "fake-public-network-name"}),
        )
        .await;
    let by_id = server
        .ask("get_network", json!({"name_or_id": network["id"]}))
        .await;
    assert_eq!(by_id, network);
    assert_eq!(
        server.ask("get_network", json!({"name_or_id": "x"})).await,
        Value::Null
    );
    assert_eq!(server.ask("list_volumes", json!({})).await, json!([]));
    assert_eq!(server.ask("list_floating_ips", json!({})).await, json!([]));
    assert_eq!(
        server.ask("get_server_console", json!({"id": "x"})).await,
        Value::Null
    );
}

#[tokio::test]
async fn a_client_that_waits_gets_its_image_when_it_is_active() {
    let server = start(simulate()).await;
    let image = server
        .ask(
            "create_image",
            json!({"name": "i", "filename": "/i.qcow2", "md5": "m", "nodepool_build_id": "b"}),
        )
        .await;
    assert_eq!(image["status"], "active");
    assert_eq!(image["properties"]["nodepool_build_id"], "b");
    // Had the answer not been held back, the image would still be on its way.
    let found = server.ask("get_image", json!({"name_or_id": "i"})).await;
    assert_eq!(found, image);
    server.ask("delete_image", json!({"id": image["id"]})).await;
    assert_eq!(
        server.ask("get_image", json!({"name_or_id": "i"})).await,
        Value::Null
    );
}

async fn refused(server: &Server, method: &str, arguments: Value) -> (u16, String, String) {
    let body = arguments.to_string().into_bytes();
    match server.client().call(method, body).await {
        Err(CallError::Refused(error)) => (error.status, error.class, error.message),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn errors_have_the_classes_that_clients_know() {
    let mut simulate = simulate();
    simulate.quota = Quota {
        instances: 1,
        ..Quota::default()
    };
    let server = start(simulate).await;
    let order = |extra: Value| {
        let mut order = json!({"name": "a", "flavor": "tiny", "image": "Fake Precise"});
        order
            .as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        order
    };
    for extra in [
        json!({"availability_zone": "mars"}),
        json!({"flavor": "huge"}),
        json!({"flavor": null}),
        json!({"image": "nothing"}),
        json!({"image": null}),
        json!({"nics": [{"net-id": "nowhere"}]}),
        json!({"boot_from_volume": true, "volume_size": -5}),
    ] {
        let (status, class, _) = refused(&server, "create_server", order(extra.clone())).await;
        assert_eq!(
            (status, class.as_str()),
            (400, "BadRequestException"),
            "{extra}"
        );
    }
    server.ask("create_server", order(json!({}))).await;
    let (status, class, message) = refused(&server, "create_server", order(json!({}))).await;
    assert_eq!((status, class.as_str()), (403, "HttpException"));
    assert!(message.contains("Quota exceeded"), "{message}");
    assert_eq!(refused(&server, "fly", json!({})).await.0, 404);
}

#[tokio::test]
async fn nonsense_is_refused_with_a_reason_and_harms_nobody() {
    let server = start(simulate()).await;
    let deep = "[".repeat(100_000);
    let create = format!("/{PROVIDER}/create_server");
    for body in [
        "x",
        "[]",
        "\"text\"",
        "{",
        "{}",
        r#"{"name": 5}"#,
        r#"{"name": "a", "nics": 1}"#,
        r#"{"name": "a", "meta": []}"#,
        &deep,
        "\u{0}",
        r#"{"name": "a", "flavor": [], "volume_size": 1e400}"#,
    ] {
        let (status, answer) = server.post(&create, body).await;
        assert_eq!(status, 400, "{body:.60}: {answer:.300}");
        assert!(answer.contains(r#"{"error":{"class":"#), "{answer:.300}");
    }
    let (status, answer) = server.post(&create, &" ".repeat(3 << 20)).await;
    assert_eq!(status, 413, "{answer:.300}");
    assert_eq!(server.post("/", "{}").await.0, 404);
    assert_eq!(server.post("/a/b/c", "{}").await.0, 404);
    assert_eq!(server.post("/nodescan", "5").await.0, 400);
    let (status, _) = server
        .raw("GET /x/list_servers HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        .await;
    assert_eq!(status, 405);
    assert_eq!(server.ask("list_servers", json!({})).await, json!([]));
}

#[tokio::test]
async fn providers_have_clouds_of_their_own() {
    let server = start(simulate()).await;
    let other = Http::new(&server.url, "a b/ü").unwrap();
    let body = br#"{"name": "a", "flavor": "Fake Flavor", "image": "Fake Precise"}"#;
    other.call("create_server", body.to_vec()).await.unwrap();
    assert_eq!(server.ask("list_servers", json!({})).await, json!([]));
}

#[tokio::test]
async fn a_lost_answer_is_a_broken_connection_and_the_call_is_done() {
    let mut simulate = simulate();
    let lost = FailureRates {
        lost: 1.0,
        ..FailureRates::default()
    };
    simulate.failures.insert("create_server".to_owned(), lost);
    let server = start(simulate).await;
    let body = br#"{"name": "a", "flavor": "tiny", "image": "Fake Precise"}"#;
    let error = server
        .client()
        .call("create_server", body.to_vec())
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::NoResponse(_)), "{error:?}");
    assert_eq!(
        server
            .ask("list_servers", json!({}))
            .await
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[tokio::test]
async fn a_call_that_hangs_does_not_keep_the_server_from_ending() {
    let mut simulate = simulate();
    let hang = FailureRates {
        hang: 1.0,
        ..FailureRates::default()
    };
    simulate.failures.insert("list_images".to_owned(), hang);
    let server = start(simulate).await;
    let client = server.client();
    let hanging = tokio::spawn(async move { client.call("list_images", b"{}".to_vec()).await });
    server.ask("list_servers", json!({})).await;
    server.stop.send(()).unwrap();
    assert!(hanging.await.unwrap().is_err());
    server.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn the_driver_speaks_the_protocol() {
    let server = start(simulate()).await;
    let driver = FakeDriver::new(options(|_| {}), Arc::new(server.client()));
    let instance = launch(&driver, 1).await;
    assert_eq!(instance.interface_ip.as_deref(), Some("fake"));
    assert_eq!(
        server.ask("list_servers", json!({})).await[0]["name"],
        "np0000000001"
    );

    let target = ScanTarget {
        provider: PROVIDER.into(),
        address: "fake".into(),
        port: 22,
        connection_type: "ssh".into(),
        timeout: Duration::from_secs(60),
    };
    let scanner = RemoteScan::new(&server.url).unwrap();
    assert_eq!(
        scanner.scan(&target).await.unwrap().keys[0].as_str(),
        "ssh-rsa FAKEKEY"
    );
}

#[tokio::test]
async fn machines_that_are_not_simulated_are_scanned_over_the_network() {
    let server = start(simulate()).await;
    let scanner = RemoteScan::new(&server.url).unwrap();
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let machine = ScanTarget {
        provider: "static".into(),
        address: "127.0.0.1".into(),
        port: listener.local_addr().unwrap().port(),
        connection_type: "winrm".into(),
        timeout: Duration::from_secs(60),
    };
    assert_eq!(scanner.scan(&machine).await.unwrap().keys, []);
    let reachable = scanner.is_reachable(&machine.address, machine.port, machine.timeout);
    assert!(reachable.await);
    drop(listener);
    let refused = ScanTarget {
        timeout: Duration::from_secs(1),
        ..machine
    };
    let error = scanner.scan(&refused).await.unwrap_err();
    assert!(error.to_string().contains("127.0.0.1 port"), "{error}");
}

#[tokio::test]
async fn addresses_that_are_no_cloud_are_refused() {
    for bad in [
        "",
        "x",
        "https://127.0.0.1",
        "http://",
        "ftp://x",
        "http://x?y",
        "127.0.0.1:80",
        "http://a b",
    ] {
        assert!(Http::new(bad, PROVIDER).is_err(), "{bad}");
    }
    Http::new("http://127.0.0.1:8080/", PROVIDER).unwrap();
}

/// Prints what a burst costs; it holds whatever the machine is busy with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_thousand_servers_in_a_burst() {
    const SERVERS: u32 = 3000;
    let mut simulate = simulate();
    simulate.boot_time = Span {
        min: Duration::from_millis(50),
        max: Duration::from_millis(150),
    };
    simulate.quota = Quota {
        cores: -1,
        instances: -1,
        ram: -1,
        volumes: -1,
        volume_gb: -1,
    };
    let server = start(simulate).await;
    let driver = Arc::new(FakeDriver::new(options(|_| {}), Arc::new(server.client())));
    let begin = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for first in 0..50 {
        let driver = Arc::clone(&driver);
        tasks.spawn(async move {
            for number in (first..SERVERS).step_by(50) {
                launch(&driver, number).await;
            }
        });
    }
    while let Some(end) = tasks.join_next().await {
        end.unwrap();
    }
    let burst = begin.elapsed();
    let begin = Instant::now();
    let all = driver.list().await.unwrap();
    eprintln!(
        "{SERVERS} servers, 50 at a time, ready after {burst:?}; a list of them takes {:?}",
        begin.elapsed()
    );
    assert_eq!(
        all.iter().filter(|r| r.tags.node.is_some()).count(),
        SERVERS as usize
    );
}
