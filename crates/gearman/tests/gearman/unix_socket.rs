//! A server on a unix socket, which only processes of the same user can use.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use bytes::Bytes;
use nodeyard_gearman::GearmanEndpoint;
use nodeyard_gearman::client::{AdminClient, JobClient, JobClientOptions, JobOutcome, JobRequest};
use nodeyard_gearman::server::{JobServer, JobServerOptions, ServerHandle};
use nodeyard_testbeds::skipped;
use tokio::net::UnixListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::support::{InProcessWorker, TIMEOUT, wait_until, within_timeout};

struct SocketServer {
    directory: tempfile::TempDir,
    handle: ServerHandle,
    _stop: DropGuard,
}

impl SocketServer {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("socket")).unwrap();
        let server = JobServer::on_unix_socket(listener, JobServerOptions::default());
        let handle = server.handle();
        let stop = CancellationToken::new();
        tokio::spawn(server.run(stop.clone()));
        Self {
            directory,
            handle,
            _stop: stop.drop_guard(),
        }
    }

    fn endpoint(&self) -> GearmanEndpoint {
        GearmanEndpoint::Unix(self.directory.path().join("socket"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_pass_a_unix_socket() {
    let server = SocketServer::start();
    let _worker = InProcessWorker::echo(server.endpoint()).await;
    let client = JobClient::new(JobClientOptions::new(vec![server.endpoint()]));
    let payload = Bytes::from(vec![b'x'; 1 << 20]);
    let request = JobRequest::new("echo", payload.clone());
    let job = client.submit(&request).await.unwrap();
    let outcome = within_timeout("the job ends", job.wait()).await;
    assert_eq!(outcome, JobOutcome::Complete(payload));
    let mut admin = AdminClient::connect(&server.endpoint(), TIMEOUT)
        .await
        .unwrap();
    let workers = admin.workers().await.unwrap();
    assert!(
        workers.iter().any(|worker| worker.functions == ["echo"]),
        "{workers:?}"
    );
}

/// Even if the file's permissions allow it.
#[tokio::test(flavor = "multi_thread")]
async fn another_user_of_the_host_cannot_register_functions() {
    const INTRUDER: &str = "\
import socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.connect(sys.argv[1])
try:
    peer.sendall(b'\\0REQ\\0\\0\\0\\x01\\0\\0\\0\\x0bimage-build')
    sys.exit(peer.recv(1) != b'')
except ConnectionError:
    pass
";
    if !rustix::process::geteuid().is_root() {
        skipped(
            "a job server attacked by another user",
            "run the tests as root",
        );
        return;
    }
    let server = SocketServer::start();
    let directory = server.directory.path();
    let socket = directory.join("socket");
    fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
    let status = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args(["/usr/bin/python3", "-c", INTRUDER])
        .arg(&socket)
        .status();
    assert!(status.unwrap().success(), "the server answered");
    wait_until("the connection is counted", || async {
        server.handle.metrics().counters.connections_refused == 1
    })
    .await;
    assert_eq!(server.handle.metrics().functions, 0);
}
