//! kazoo, the ZooKeeper client of Nodepool and Zuul, on the socket of the embedded store.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use nodeyard_store::embedded::Embedded;
use nodeyard_store::socket::{self, StoreSocket};
use nodeyard_testbeds::checkout;
use tokio::io::{AsyncBufReadExt, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, UnixStream};
use tokio::process::Command;
use tokio::sync::watch;

fn python() -> PathBuf {
    let install = checkout().join("testbeds/python/install.sh");
    let output = std::process::Command::new(install)
        .args(["--find", "kazoo"])
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "this test needs Python kazoo: run `make testbeds` once"
    );
    Path::new(String::from_utf8(output.stdout).unwrap().trim()).join("bin/python")
}

/// Forwards TCP connections to the socket; all of them are closed when `drops` changes.
async fn forward(listener: TcpListener, socket: PathBuf, drops: watch::Receiver<u32>) {
    loop {
        let (mut outside, _) = listener.accept().await.unwrap();
        let socket = socket.clone();
        let mut drops = drops.clone();
        drops.mark_unchanged();
        tokio::spawn(async move {
            let mut inside = UnixStream::connect(socket).await.unwrap();
            tokio::select! {
                _ = copy_bidirectional(&mut outside, &mut inside) => {}
                _ = drops.changed() => {}
            }
        });
    }
}

#[tokio::test]
async fn kazoo_works() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Embedded::open(directory.path()).unwrap();
    let socket = directory.path().join(socket::FILE_NAME);
    let serving = StoreSocket::bind(&socket).await.unwrap();
    tokio::spawn(serving.serve(engine, std::future::pending()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (drop_all, drops) = watch::channel(0);
    tokio::spawn(forward(listener, socket, drops));

    let mut script = Command::new(python())
        .arg(checkout().join("crates/store/tests/store/embedded_kazoo.py"))
        .arg(address.to_string())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(script.stdout.take().unwrap()).lines();
    let mut said = Vec::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        if line == "drop" {
            drop_all.send_modify(|drops| *drops += 1);
        }
        said.push(line);
    }
    assert!(script.wait().await.unwrap().success());
    assert_eq!(said, ["drop", "done"]);
}
