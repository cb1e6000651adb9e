//! The console that streams what jobs print: Zuul's part is played here, word for word.

use std::time::{Duration, Instant};

use nodeyard_driver_kubernetes::exec::{Container, Credentials};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::common::{
    PATIENCE, create, credentials, delete_node, driver, json, options, order, own_cluster,
};

async fn run(container: &Container, script: &str) {
    let command = ["sh", "-c", script].map(ToOwned::to_owned);
    let code = container.run(&command, None::<&[u8]>, Vec::new(), Vec::new());
    assert_eq!(code.await.unwrap(), 0, "{script}");
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_streamed_without_anybody_starting_a_console() {
    let Some(cluster) = own_cluster() else { return };
    let label = format!("type: pod, image: '{}', console: inject", cluster.image());
    let driver = driver(cluster, options("console", "kubernetes", &label));
    let order = order("console", 90);
    let instance = create(&driver, &order).await.unwrap();
    let read: Credentials = serde_json::from_value(credentials(&instance)).unwrap();
    let container = Container {
        client: read.client().unwrap(),
        namespace: read.namespace.clone(),
        pod: "small".to_owned(),
        container: None,
    };
    let pod = json(
        cluster,
        &["get", "pod", "small", "--namespace", &read.namespace],
    );
    let address = pod["status"]["podIP"].as_str().unwrap();
    let deadline = Instant::now() + PATIENCE;
    let stream = loop {
        match TcpStream::connect((address, 19885)).await {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let (from, mut to) = stream.into_split();
    let mut lines = BufReader::new(from).lines();
    let mut next = async || {
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
        line.unwrap().unwrap().unwrap()
    };
    to.write_all(b"v:0\n").await.unwrap();
    assert_eq!(next().await, "1");
    // It is asked for before the task has begun.
    to.write_all(b"s:abc-1\n").await.unwrap();
    assert_eq!(next().await, "[Zuul] Log not found");
    run(&container, "echo one > /tmp/console-abc-1.log").await;
    let mut line = next().await;
    while line == "[Zuul] Log not found" {
        line = next().await;
    }
    assert_eq!(line, "one");
    run(&container, "echo two >> /tmp/console-abc-1.log").await;
    assert_eq!(next().await, "two");

    let mut second = TcpStream::connect((address, 19885)).await.unwrap();
    second
        .write_all(b"f:abc-1\nf:../../etc/passwd\nv:1\n")
        .await
        .unwrap();
    let mut lines = BufReader::new(second).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("1"));
    run(
        &container,
        "test ! -e /tmp/console-abc-1.log && test -e /etc/passwd",
    )
    .await;
    delete_node(&driver, &order).await;
}
