//! Servers, workers and clients for tests, and helpers to wait for conditions.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use nodeyard_gearman::client::{AdminClient, FunctionStatus, JobClient, JobClientOptions};
use nodeyard_gearman::server::{JobServer, JobServerOptions, ServerHandle};
use nodeyard_gearman::worker::{JobWorker, JobWorkerOptions, WorkerHandle};
use nodeyard_gearman::{ClientTls, GearmanEndpoint, HostCheck, ReconnectBackoff, TlsFiles};
use nodeyard_testbeds::free_port;
use nodeyard_testbeds::gearman::{ExternalJobServer, Kind, Tls};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(300);

/// Panics if the future does not complete in time.
pub(crate) async fn within_timeout<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(TIMEOUT, future).await {
        Ok(value) => value,
        Err(_) => panic!("still waiting after {TIMEOUT:?}: {what}"),
    }
}

/// Waits until a condition holds.
pub(crate) async fn wait_until<F: Future<Output = bool>>(
    what: &str,
    mut condition: impl FnMut() -> F,
) {
    let holds = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within_timeout(what, holds).await;
}

/// Our server, running inside the test.
pub(crate) struct InProcessServer {
    pub(crate) port: u16,
    pub(crate) handle: ServerHandle,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

pub(crate) fn local() -> JobServerOptions {
    JobServerOptions {
        listen: "127.0.0.1:0".parse().unwrap(),
        ..JobServerOptions::default()
    }
}

impl InProcessServer {
    pub(crate) async fn start(options: JobServerOptions) -> Self {
        let server = JobServer::bind(options).await.unwrap();
        let (port, handle) = (server.local_addr().unwrap().port(), server.handle());
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

impl Drop for InProcessServer {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Any job server.
pub(crate) enum ServerUnderTest {
    Ours(InProcessServer),
    Foreign(ExternalJobServer),
}

impl ServerUnderTest {
    /// Starts our server on a reserved port, so that it can be restarted.
    pub(crate) async fn ours() -> Self {
        let listen = ([127, 0, 0, 1], free_port().unwrap()).into();
        Self::Ours(InProcessServer::start(JobServerOptions { listen, ..local() }).await)
    }

    pub(crate) fn interop(kind: Kind) -> Self {
        Self::Foreign(ExternalJobServer::start(kind, None).unwrap())
    }

    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Ours(server) => server.port,
            Self::Foreign(server) => server.port(),
        }
    }

    pub(crate) fn endpoint(&self) -> GearmanEndpoint {
        GearmanEndpoint::new("127.0.0.1", self.port())
    }

    pub(crate) async fn stop(&mut self) {
        match self {
            Self::Ours(server) => server.stop().await,
            Self::Foreign(server) => server.kill(),
        }
    }

    /// Restarts the server on the same port with empty state.
    pub(crate) async fn restart(&mut self) {
        match self {
            Self::Ours(server) => {
                let listen = format!("127.0.0.1:{}", server.port).parse().unwrap();
                *server = InProcessServer::start(JobServerOptions { listen, ..local() }).await;
            }
            Self::Foreign(server) => server.start_again().unwrap(),
        }
    }

    pub(crate) fn client(&self) -> JobClient {
        JobClient::new(JobClientOptions::new(vec![self.endpoint()]))
    }

    pub(crate) async fn admin(&self) -> AdminClient {
        AdminClient::connect(&self.endpoint(), TIMEOUT)
            .await
            .unwrap()
    }

    /// Returns the status of a function by the admin protocol.
    pub(crate) async fn function(&self, name: &str) -> Option<FunctionStatus> {
        // geard has a short queue for new connections, and breaks those that find it full.
        let status = within_timeout("status is returned", async {
            loop {
                match AdminClient::connect(&self.endpoint(), TIMEOUT).await {
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

/// Our worker, running inside the test.
pub(crate) struct InProcessWorker {
    pub(crate) handle: WorkerHandle,
    pub(crate) shutdown: CancellationToken,
    pub(crate) task: JoinHandle<()>,
}

impl InProcessWorker {
    pub(crate) fn start(endpoints: Vec<GearmanEndpoint>, slots: usize) -> Self {
        let mut options = JobWorkerOptions::new("test worker", endpoints, slots);
        options.backoff = ReconnectBackoff {
            initial_delay: Duration::from_millis(10),
            max_delay: Duration::from_millis(200),
        };
        let worker = JobWorker::new(options);
        let handle = worker.handle();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(worker.run(shutdown.clone()));
        Self {
            handle,
            shutdown,
            task,
        }
    }

    /// Starts a worker with one slot that returns the payload of `echo`.
    pub(crate) async fn echo(endpoint: GearmanEndpoint) -> Self {
        let worker = Self::start(vec![endpoint], 1);
        let echo = |job: nodeyard_gearman::worker::Job| async move { Ok(job.payload().clone()) };
        worker.handle.register("echo", echo).unwrap();
        within_timeout("worker connects", worker.handle.wait_connected(1)).await;
        worker
    }
}

impl Drop for InProcessWorker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A certificate authority and its certificates, for one test.
pub(crate) struct GearmanTestCa {
    pub(crate) files: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl GearmanTestCa {
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
    TlsFiles {
        ca: tls.ca.clone(),
        cert: tls.cert.clone(),
        key: tls.key.clone(),
    }
}

pub(crate) fn client_tls(tls: &Tls) -> ClientTls {
    ClientTls::new(&tls_files(tls), HostCheck::ChainOnly).unwrap()
}

pub(crate) fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}
