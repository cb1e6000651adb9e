//! Servers, workers and clients for tests, and waiting for conditions.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use nodeyard_gearman::client::{AdminClient, Client, ClientOptions, FunctionStatus};
use nodeyard_gearman::server::{Server, ServerHandle, ServerOptions};
use nodeyard_gearman::worker::{Worker, WorkerHandle, WorkerOptions};
use nodeyard_gearman::{Backoff, ClientTls, Endpoint, HostCheck, TlsFiles};
use nodeyard_testbeds::free_port;
use nodeyard_testbeds::gearman::{JobServer, Kind, Tls};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(300);

/// Fails the test if something that must happen does not.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("still waiting after {PATIENCE:?}: {what}"),
    }
}

/// Waits until a condition holds.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let holds = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(what, holds).await;
}

/// A server of ours that runs inside the test.
pub(crate) struct OurServer {
    pub(crate) port: u16,
    pub(crate) handle: ServerHandle,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

pub(crate) fn local() -> ServerOptions {
    ServerOptions {
        listen: "127.0.0.1:0".parse().unwrap(),
        ..ServerOptions::default()
    }
}

impl OurServer {
    pub(crate) async fn start(options: ServerOptions) -> Self {
        let server = Server::bind(options).await.unwrap();
        let (port, handle) = (server.local_addr().port(), server.handle());
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(server.run(shutdown.clone()));
        Self {
            port,
            handle,
            shutdown,
            task,
        }
    }

    pub(crate) async fn stop(&mut self) {
        self.shutdown.cancel();
        let _ = (&mut self.task).await;
    }
}

impl Drop for OurServer {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Any job server.
pub(crate) enum AnyServer {
    Ours(OurServer),
    Foreign(JobServer),
}

impl AnyServer {
    /// On a port that nobody else gets, so that it can be started again.
    pub(crate) async fn ours() -> Self {
        let listen = ([127, 0, 0, 1], free_port().unwrap()).into();
        Self::Ours(OurServer::start(ServerOptions { listen, ..local() }).await)
    }

    pub(crate) fn foreign(kind: Kind) -> Self {
        Self::Foreign(JobServer::start(kind, None).unwrap())
    }

    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Ours(server) => server.port,
            Self::Foreign(server) => server.port(),
        }
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint::new("127.0.0.1", self.port())
    }

    pub(crate) async fn stop(&mut self) {
        match self {
            Self::Ours(server) => server.stop().await,
            Self::Foreign(server) => server.kill(),
        }
    }

    /// Starts it again on the same port, with nothing remembered.
    pub(crate) async fn start_again(&mut self) {
        match self {
            Self::Ours(server) => {
                let listen = format!("127.0.0.1:{}", server.port).parse().unwrap();
                *server = OurServer::start(ServerOptions { listen, ..local() }).await;
            }
            Self::Foreign(server) => server.start_again().unwrap(),
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(ClientOptions::new(vec![self.endpoint()]))
    }

    pub(crate) async fn admin(&self) -> AdminClient {
        AdminClient::connect(&self.endpoint(), PATIENCE)
            .await
            .unwrap()
    }

    /// What the server's admin port says about a function.
    pub(crate) async fn function(&self, name: &str) -> Option<FunctionStatus> {
        // geard has a short queue for new connections, and breaks those that find it full.
        let status = soon("the server says what it knows", async {
            loop {
                match AdminClient::connect(&self.endpoint(), PATIENCE).await {
                    Ok(mut admin) => match admin.status().await {
                        Ok(status) => break status,
                        Err(error) => eprintln!("asked again: {error}"),
                    },
                    Err(error) => eprintln!("asked again: {error}"),
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
        status
            .into_iter()
            .find(|function| function.function == name)
    }
}

/// A worker that runs inside the test.
pub(crate) struct RunningWorker {
    pub(crate) handle: WorkerHandle,
    pub(crate) shutdown: CancellationToken,
    pub(crate) task: JoinHandle<()>,
}

impl RunningWorker {
    pub(crate) fn start(endpoints: Vec<Endpoint>, slots: usize) -> Self {
        let mut options = WorkerOptions::new("test worker", endpoints, slots);
        options.backoff = Backoff {
            first: Duration::from_millis(10),
            ceiling: Duration::from_millis(200),
        };
        let worker = Worker::new(options);
        let handle = worker.handle();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(worker.run(shutdown.clone()));
        Self {
            handle,
            shutdown,
            task,
        }
    }

    /// A worker with one slot that answers `echo` with its payload.
    pub(crate) async fn echo(endpoint: Endpoint) -> Self {
        let worker = Self::start(vec![endpoint], 1);
        let echo = |job: nodeyard_gearman::worker::Job| async move { Ok(job.payload().clone()) };
        worker.handle.register("echo", echo).unwrap();
        soon("worker connects", worker.handle.wait_connected(1)).await;
        worker
    }
}

impl Drop for RunningWorker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A certificate authority and what it signed, for one test.
pub(crate) struct Authority {
    pub(crate) files: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let files = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "test authority");
        let key = KeyPair::generate().unwrap();
        std::fs::write(
            files.path().join("ca.pem"),
            params.self_signed(&key).unwrap().pem(),
        )
        .unwrap();
        Self {
            files,
            issuer: Issuer::new(params, key),
        }
    }

    /// Signs a certificate for a host or client of this name.
    pub(crate) fn sign(&self, name: &str) -> Tls {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let path = |suffix: &str| self.files.path().join(format!("{name}.{suffix}"));
        std::fs::write(
            path("crt"),
            params.signed_by(&key, &self.issuer).unwrap().pem(),
        )
        .unwrap();
        std::fs::write(path("key"), key.serialize_pem()).unwrap();
        Tls {
            ca: self.files.path().join("ca.pem"),
            cert: path("crt"),
            key: path("key"),
        }
    }
}

pub(crate) fn tls_files(tls: &Tls) -> TlsFiles {
    TlsFiles::read(&tls.ca, &tls.cert, &tls.key).unwrap()
}

pub(crate) fn client_tls(tls: &Tls) -> ClientTls {
    ClientTls::new(&tls_files(tls), HostCheck::ChainOnly).unwrap()
}

pub(crate) fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}
