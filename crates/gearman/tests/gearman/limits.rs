//! Limits of our server and their isolation between connections.

use std::time::Duration;

use bytes::{BufMut, BytesMut};
use nodeyard_gearman::client::{ClientError, JobEvent, JobOutcome, JobRequest};
use nodeyard_gearman::codec::{Codec, FrameLimits, GearmanFrame, JobPriority, Magic, Packet};
use nodeyard_gearman::server::JobServerOptions;
use nodeyard_gearman::worker::Job;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::codec::Decoder;

use crate::support::{
    InProcessServer, InProcessWorker, ServerUnderTest, bytes, local, wait_until, within_timeout,
};

const HTTP: &str = "received an HTTP request on a gearman port";

fn header(kind: u32, len: u32) -> BytesMut {
    let mut bytes = BytesMut::from(&b"\0REQ"[..]);
    bytes.put_u32(kind);
    bytes.put_u32(len);
    bytes
}

fn packet(packet: &Packet) -> BytesMut {
    let mut bytes = BytesMut::new();
    packet
        .encode(Magic::Request, usize::MAX, &mut bytes)
        .unwrap();
    bytes
}

/// Sends bytes and reads packets until the server closes the connection.
async fn read_until_closed(port: u16, sent: &[u8]) -> Vec<Packet> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    socket.write_all(sent).await.unwrap();
    let mut answer = BytesMut::new();
    while within_timeout("the server closes", socket.read_buf(&mut answer))
        .await
        .unwrap()
        > 0
    {}
    let mut codec = Codec::new(Magic::Request, FrameLimits::default());
    let mut packets = Vec::new();
    while let Some(GearmanFrame::Packet(packet)) = codec.decode(&mut answer).unwrap() {
        packets.push(packet);
    }
    packets
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_frames_close_one_connection_with_a_reason() {
    let server = ServerUnderTest::Ours(InProcessServer::start(local()).await);
    let worker = InProcessWorker::echo(server.endpoint()).await;
    let client = server.client();
    let waiting = client.submit(&JobRequest::new("later", "")).await.unwrap();
    let cases: [(&[u8], &str); 9] = [
        (
            &header(7, u32::MAX),
            "SUBMIT_JOB with 4294967295 bytes exceeds the limit of 16777216 bytes",
        ),
        (&header(99, 0), "unknown packet type 99"),
        (
            b"\0GET / HTTP/1.1\r\n\r\n",
            "invalid packet magic [00, 47, 45, 54]",
        ),
        (
            &[&header(7, 3)[..], b"abc"].concat(),
            "SUBMIT_JOB ends before its argument \"function\"",
        ),
        (
            &[&header(4, 3)[..], b"abc"].concat(),
            "PRE_SLEEP takes no arguments but carries 3 bytes",
        ),
        (b"\xff\xfe\n", "line of text is not UTF-8"),
        (b"POST / HTTP/1.1\r\n", HTTP),
        (b"OPTIONS /status HTTP/1.0\n", HTTP),
        (b"host: 127.0.0.1:4730\r\n", HTTP),
    ];
    for (sent, reason) in cases {
        let said = read_until_closed(server.port(), sent).await;
        let expected = Packet::Error {
            code: bytes("MALFORMED"),
            text: bytes(reason),
        };
        assert_eq!(said, [expected]);
    }
    // An oversized frame that is really sent is refused as well, and the reason still arrives.
    let mut flood = header(7, 32 << 20);
    flood.resize(8 << 20, b'x');
    assert_eq!(read_until_closed(server.port(), &flood).await.len(), 1);

    worker
        .handle
        .register("later", async |_job| Ok(bytes("unharmed")))
        .unwrap();
    assert_eq!(
        within_timeout("others go on", waiting.wait()).await,
        JobOutcome::Complete(bytes("unharmed"))
    );
    let ServerUnderTest::Ours(ours) = &server else {
        panic!()
    };
    wait_until("all are counted", || async {
        ours.handle.metrics().counters.malformed == 10
    })
    .await;
}

/// A request as sent by `fetch` of a web page: an HTTP head and a body of any bytes.
#[tokio::test(flavor = "multi_thread")]
async fn a_web_page_cannot_submit_jobs() {
    let server = ServerUnderTest::Ours(InProcessServer::start(local()).await);
    let job = packet(&Packet::SubmitJob {
        priority: JobPriority::Normal,
        background: true,
        function: bytes("wanted"),
        unique: bytes(""),
        payload: bytes(""),
    });
    let head = format!(
        "POST / HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nOrigin: http://example.com\r\nContent-Length: {}\r\n\r\n",
        server.port(),
        job.len()
    );
    let said = read_until_closed(server.port(), &[head.as_bytes(), &job].concat()).await;
    let expected = Packet::Error {
        code: bytes("MALFORMED"),
        text: bytes(HTTP),
    };
    assert_eq!(said, [expected]);
    assert!(server.function("wanted").await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_slows_its_worker_and_is_disconnected() {
    const CHUNK: usize = 256 << 10;
    let options = JobServerOptions {
        send_buffer_limit: 1 << 20,
        slow_reader_timeout: Duration::from_millis(300),
        ..local()
    };
    let server = ServerUnderTest::Ours(InProcessServer::start(options).await);
    let worker = InProcessWorker::echo(server.endpoint()).await;
    let sent = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = sent.clone();
    let flood = move |job: Job| {
        let count = count.clone();
        async move {
            while job.interrupt().is_none() {
                job.data(vec![b'x'; CHUNK]).await;
                count.fetch_add(CHUNK, std::sync::atomic::Ordering::SeqCst);
                if count.load(std::sync::atomic::Ordering::SeqCst) > 512 << 20 {
                    break;
                }
            }
            Ok(bytes::Bytes::new())
        }
    };
    worker.handle.register("flood", flood).unwrap();
    worker.handle.synced().await;
    let mut deaf = TcpStream::connect(("127.0.0.1", server.port()))
        .await
        .unwrap();
    let submit = Packet::SubmitJob {
        priority: Default::default(),
        background: false,
        function: bytes("flood"),
        unique: bytes(""),
        payload: bytes(""),
    };
    deaf.write_all(&packet(&submit)).await.unwrap();
    let ServerUnderTest::Ours(ours) = &server else {
        panic!()
    };
    wait_until("the deaf client is closed", || async {
        ours.handle.metrics().counters.slow_readers == 1
    })
    .await;
    // Back-pressure: by then only what fits in buffers had been taken from the worker.
    let taken = sent.load(std::sync::atomic::Ordering::SeqCst);
    assert!(taken < 128 << 20, "{taken} bytes were taken");
    // Its job is forgotten and its worker free again, once it has written into the void.
    let job = server
        .client()
        .submit(&JobRequest::new("echo", "next"))
        .await
        .unwrap();
    assert_eq!(
        within_timeout("the worker goes on", job.wait()).await,
        JobOutcome::Complete(bytes("next"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_late_receives_everything() {
    let server = ServerUnderTest::Ours(
        InProcessServer::start(JobServerOptions {
            send_buffer_limit: 64 << 10,
            ..local()
        })
        .await,
    );
    let worker = InProcessWorker::echo(server.endpoint()).await;
    let (said, mut heard) = tokio::sync::watch::channel(0);
    let count = move |job: Job| {
        let said = said.clone();
        async move {
            for number in 0..2000u32 {
                job.data(number.to_be_bytes().repeat(1000)).await;
                said.send_replace(number);
            }
            Ok(bytes("end"))
        }
    };
    worker.handle.register("count", count).unwrap();
    let mut job = server
        .client()
        .submit(&JobRequest::new("count", ""))
        .await
        .unwrap();
    // More than the client keeps for a reader that is busy elsewhere.
    within_timeout(
        "the worker is ahead",
        heard.wait_for(|number| *number > 300),
    )
    .await
    .unwrap();
    for number in 0..2000u32 {
        let expected = number.to_be_bytes().repeat(1000);
        assert_eq!(
            within_timeout("data comes", job.next()).await,
            Some(JobEvent::Data(expected.into()))
        );
    }
    assert_eq!(job.next().await, Some(JobEvent::Complete(bytes("end"))));
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_connections_and_addresses_are_limited() {
    let options = JobServerOptions {
        max_jobs: 3,
        max_job_bytes: 1000,
        max_connections: 2,
        ..local()
    };
    let server = ServerUnderTest::Ours(InProcessServer::start(options).await);
    let client = server.client();
    let refused = async |request: &JobRequest| match client.submit_background(request).await {
        Err(ClientError::Refused { response, .. }) => response.code,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        refused(&JobRequest::new("f", vec![0u8; 2000])).await,
        "QUEUE_FULL"
    );
    server.admin().await.max_queue("f", Some(1)).await.unwrap();
    client
        .submit_background(&JobRequest::new("f", "1"))
        .await
        .unwrap();
    assert_eq!(refused(&JobRequest::new("f", "2")).await, "QUEUE_FULL");
    client
        .submit_background(&JobRequest::new("g", "1"))
        .await
        .unwrap();
    client
        .submit_background(&JobRequest::new("g", "2"))
        .await
        .unwrap();
    assert_eq!(refused(&JobRequest::new("g", "3")).await, "QUEUE_FULL");

    let ServerUnderTest::Ours(ours) = &server else {
        panic!()
    };
    wait_until("the admin connection is gone", || async {
        ours.handle.metrics().open_connections == 1
    })
    .await;
    let _second = TcpStream::connect(("127.0.0.1", server.port()))
        .await
        .unwrap();
    wait_until("the second is in", || async {
        ours.handle.metrics().open_connections == 2
    })
    .await;
    assert!(read_until_closed(server.port(), b"").await.is_empty());

    let nets = vec!["10.0.0.0/8".parse().unwrap()];
    let closed = InProcessServer::start(JobServerOptions {
        allow: nets,
        ..local()
    })
    .await;
    assert!(read_until_closed(closed.port, b"").await.is_empty());
    wait_until("it is counted", || async {
        closed.handle.metrics().counters.connections_refused == 1
    })
    .await;
    let nets = vec![
        "10.0.0.0/8".parse().unwrap(),
        "127.0.0.0/8".parse().unwrap(),
    ];
    let open = ServerUnderTest::Ours(
        InProcessServer::start(JobServerOptions {
            allow: nets,
            ..local()
        })
        .await,
    );
    assert!(open.admin().await.version().await.is_ok());
}
