//! Clients who are slow, loud or confused.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::client::raw;
use crate::testbed::{ALICE, DEADLINE, Testbed};

#[tokio::test]
async fn incomplete_headers_delay_no_other_client() {
    let testbed = Testbed::new().await;
    let mut slow = Vec::new();
    for _ in 0..300 {
        let mut stream = TcpStream::connect(testbed.address).await.unwrap();
        stream
            .write_all(b"GET /api/v1/info HTTP/1.1\r\nX-Slow: ")
            .await
            .unwrap();
        slow.push(stream);
    }
    testbed.client().get("/info").await.is(200);
    // They are dropped in the end.
    let mut stream = slow.pop().unwrap();
    let mut answer = Vec::new();
    let reading = stream.read_to_end(&mut answer);
    let _ = tokio::time::timeout(DEADLINE, reading)
        .await
        .expect("it is still there");
}

#[tokio::test]
async fn an_incomplete_body_times_out() {
    let testbed = Testbed::new().await;
    let head = format!(
        "POST /api/v1/requests HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ALICE}\r\n\
         content-type: application/json\r\ncontent-length: 40\r\n\r\n{{\"labels\":"
    );
    let mut stream = TcpStream::connect(testbed.address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let reading = stream.read_to_end(&mut answer);
    let _ = tokio::time::timeout(DEADLINE, reading)
        .await
        .expect("it is still waited for");
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("urn:nodeyard:problem:too-slow"), "{answer}");
}

#[tokio::test]
async fn malformed_requests_are_rejected() {
    let testbed = Testbed::new().await;
    let huge = format!(
        "GET /api/v1/info HTTP/1.0\r\nCookie: {}\r\n\r\n",
        "x".repeat(1_000_000)
    );
    let many = format!(
        "GET /api/v1/info HTTP/1.0\r\n{}\r\n",
        "X-H: 1\r\n".repeat(1000)
    );
    let long = format!("GET /api/v1/nodes/{} HTTP/1.0\r\n\r\n", "x".repeat(70_000));
    for nonsense in [
        huge.as_bytes(),
        many.as_bytes(),
        long.as_bytes(),
        b"\r\n\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /api/v1/info HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /api/v1/requests HTTP/1.0\r\nContent-Length: many\r\n\r\n",
        b"GET /api/v1/nodes?%=%zz&limit=%ff HTTP/1.0\r\n\r\n",
        b"GET /api/v1/%00%ff HTTP/1.0\r\nAuthorization: \xff\xfe\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"OPTIONS * HTTP/1.0\r\n\r\n",
        b"CONNECT example.com:443 HTTP/1.0\r\n\r\n",
    ] {
        if let Ok(answer) = raw(testbed.address, nonsense).await {
            assert!((400..500).contains(&answer.status), "{answer:?}");
        }
    }
    testbed.client().get("/info").await.is(200);
}

#[tokio::test]
async fn idle_connections_do_not_delay_shutdown() {
    let mut testbed = Testbed::new().await;
    let mut silent = TcpStream::connect(testbed.address).await.unwrap();
    testbed.client().get("/info").await.is(200);
    testbed.shutdown.cancel();
    let task = testbed.task.take().unwrap();
    tokio::time::timeout(DEADLINE, task).await.unwrap().unwrap();
    assert_eq!(silent.read(&mut [0]).await.unwrap_or(0), 0);
}
