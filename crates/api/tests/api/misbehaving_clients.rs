//! Visitors who send what they should not.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::http::{ask, get, raw};
use crate::testbed::{DEADLINE, TestServer, embedded, node};
use nodeyard_model::NodeState;

#[tokio::test]
async fn large_heads_are_refused_and_other_requests_served() {
    let (registry, _store, _directory) = embedded();
    let served = TestServer::start(&registry).await;
    let huge = "x".repeat(1_000_000);
    let answer = ask(served.address, "GET", "/label-list", &[("Cookie", &huge)]).await;
    // It may hang up before it has heard everything, and then the answer can get lost.
    if let Ok(answer) = answer {
        assert_eq!(answer.status, 431);
    }
    let many: Vec<(&str, &str)> = (0..1000).map(|_| ("X-Header", "1")).collect();
    let answer = ask(served.address, "GET", "/label-list", &many).await;
    if let Ok(answer) = answer {
        assert_eq!(answer.status, 431);
    }
    for nonsense in [
        &b"\r\n\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"GET /label-list HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /label-list HTTP/1.0\r\nContent-Length: many\r\n\r\n",
        b"GET /label-list?%=%zz&fields=%ff%fe&node_id HTTP/1.0\r\nAccept: \xff\r\n\r\n",
    ] {
        let asked = tokio::time::timeout(DEADLINE, raw(served.address, nonsense));
        let _ = asked.await.unwrap();
    }
    assert_eq!(get(served.address, "/live", &[]).await.status, 200);
}

#[tokio::test]
async fn a_large_body_is_not_read() {
    let (registry, _store, _directory) = embedded();
    let served = TestServer::start(&registry).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let head = "POST /label-list HTTP/1.1\r\nHost: test\r\nContent-Length: 99999999999\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let reading = stream.read_to_end(&mut answer);
    // It answers and hangs up, although nothing of the body ever came.
    let _ = tokio::time::timeout(DEADLINE, reading).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
}

#[tokio::test]
async fn idle_connections_do_not_delay_shutdown() {
    let (registry, _store, _directory) = embedded();
    let served = TestServer::start(&registry).await;
    let mut silent = TcpStream::connect(served.address).await.unwrap();
    assert_eq!(get(served.address, "/live", &[]).await.status, 200);
    served.shutdown.cancel();
    tokio::time::timeout(DEADLINE, served.task)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(silent.read(&mut [0]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn a_long_list_is_sent_whole() {
    let (registry, _store, _directory) = embedded();
    for _ in 0..500 {
        let node = node("cloud", &["small"], NodeState::Ready);
        registry.nodes().create(&node).await.unwrap();
    }
    let served = TestServer::start(&registry).await;
    let json = [("Accept", "application/json")];
    let nodes = get(served.address, "/node-list", &json).await;
    assert!(nodes.body.len() > 100_000);
    assert_eq!(nodes.json().as_array().unwrap().len(), 500);
}
