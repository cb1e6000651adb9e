//! Many writes at once.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use nodeyard_store::zookeeper::ZooKeeper;
use nodeyard_store::zookeeper::wire::{ConnectRequest, Request};
use nodeyard_store::{CreateMode, Tree, TreePath, Version};

use super::support::*;

const WRITES: usize = 100_000;
/// Requests on the way at one time, for both senders alike.
const WINDOW: usize = 2000;
const SIZE: usize = 512;

async fn write_all(tree: &Arc<ZooKeeper>, target: &TreePath, payload: &Bytes) {
    stream::iter(0..WRITES)
        .map(|_| tree.set(target, payload.clone(), Version::Any))
        .buffered(WINDOW)
        .for_each(|result| async move {
            result.unwrap();
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_pipelined_writes_all_arrive() {
    let tree = fresh().await;
    let a = path("/a");
    tree.create(&a, data(""), CreateMode::Persistent)
        .await
        .unwrap();
    write_all(&tree, &a, &Bytes::from(vec![b'x'; 16])).await;
    let stat = tree.stat(&a).await.unwrap().unwrap();
    assert_eq!(stat.version, WRITES as i32);
}

/// Sends the same requests with two threads and no bookkeeping at all.
fn write_all_bare(port: u16, target: &str, payload: &Bytes) -> Duration {
    let mut writer = TcpStream::connect(("127.0.0.1", port)).unwrap();
    writer.set_nodelay(true).unwrap();
    let mut reader = BufReader::with_capacity(64 * 1024, writer.try_clone().unwrap());
    let mut out = BytesMut::new();
    ConnectRequest {
        last_zxid_seen: 0,
        timeout: 30_000,
        session_id: 0,
        password: Bytes::from_static(&[0; 16]),
        read_only: false,
    }
    .encode(&mut out);
    writer.write_all(&out).unwrap();
    skip_frame(&mut reader);

    let mut frame = BytesMut::new();
    Request::SetData {
        path: target.to_owned(),
        data: payload.clone(),
        version: -1,
    }
    .encode(1, &mut frame);
    const BATCH: usize = 100;
    let batch = frame.repeat(BATCH);
    let (permits, free) = sync_channel(WINDOW / BATCH);
    let begin = Instant::now();
    let receiving = thread::spawn(move || {
        for _ in 0..WRITES / BATCH {
            for _ in 0..BATCH {
                skip_frame(&mut reader);
            }
            free.recv().unwrap();
        }
    });
    for _ in 0..WRITES / BATCH {
        permits.send(()).unwrap();
        writer.write_all(&batch).unwrap();
    }
    receiving.join().unwrap();
    begin.elapsed()
}

fn skip_frame(reader: &mut impl Read) {
    let mut size = [0; 4];
    reader.read_exact(&mut size).unwrap();
    let mut content = vec![0; u32::from_be_bytes(size) as usize];
    reader.read_exact(&mut content).unwrap();
}

/// Prints how many sets a second this client makes, and how many a sender that does nothing else.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement: run it alone, with --release"]
async fn rate_of_pipelined_writes_compared_with_a_bare_sender() {
    let root = connect(options(shared_server().port())).await;
    let chroot = fresh_chroot(&*root).await;
    let payload = Bytes::from(vec![b'x'; SIZE]);
    for round in 0..10 {
        let target = chroot.as_str().to_owned();
        let bare_payload = payload.clone();
        let bare =
            blocking(move || write_all_bare(shared_server().port(), &target, &bare_payload)).await;
        let begin = Instant::now();
        write_all(&root, &chroot, &payload).await;
        let ours = begin.elapsed();
        let rate = |elapsed: Duration| WRITES as f64 / elapsed.as_secs_f64();
        eprintln!(
            "round {round}: bare {:.0}/s, client {:.0}/s, ratio {:.2}",
            rate(bare),
            rate(ours),
            rate(ours) / rate(bare)
        );
    }
}
