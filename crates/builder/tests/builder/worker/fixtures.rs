//! Workers, job servers, clouds and builds for tests.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nodeyard_builder::jobs::{ImageInfo, JobFailure};
use nodeyard_builder::source::LogLimits;
use nodeyard_builder::worker::{
    self, ImageWorkerHandle, NoopWorkerEvents, Options, Worker, WorkerDependencies,
};
use nodeyard_config::{self as config, Config, Environment, Fake, Mode};
use nodeyard_driver::{CloudImage, Driver as _, Error, Owner, SystemId};
use nodeyard_driver_common::DriverKinds;
use nodeyard_driver_fake::{
    self as fake, Connector, FakeDriver, FakeKind, InProcess, Simulate, Transport, World,
};
use nodeyard_gearman::client::{
    AdminClient, ClientError, FunctionStatus, JobClient, JobClientOptions, JobOutcome, JobRequest,
};
use nodeyard_gearman::server::{JobServer, JobServerOptions};
use nodeyard_gearman::{GearmanEndpoint, ReconnectBackoff};
use nodeyard_image::Hasher;
use nodeyard_model::Clock;
use nodeyard_testbeds::gearman::{ExternalJobServer, Kind};
use nodeyard_testbeds::{executable, free_port};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// So long that only a hang exceeds it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) const PROVIDER: &str = "fake-cloud";

pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("still waiting after {PATIENCE:?}: {what}"),
    }
}

/// Waits for a condition, not for a time.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut look: impl FnMut() -> F,
) -> T {
    let found = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(what, found).await
}

/// Shows the log of a test that is run alone with `RUST_LOG` set.
pub(crate) fn logs() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_test_writer()
        .try_init();
}

/// Which job server sits between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobServerKind {
    Ours,
    Gearmand,
    Geard,
}

pub(crate) struct Jobs {
    port: u16,
    running: RunningServer,
}

enum RunningServer {
    Ours {
        stop: CancellationToken,
        task: JoinHandle<()>,
    },
    Foreign(ExternalJobServer),
}

impl Jobs {
    pub(crate) async fn start(between: JobServerKind) -> Self {
        let kind = match between {
            JobServerKind::Ours => return Self::ours(free_port().unwrap()).await,
            JobServerKind::Gearmand => Kind::Gearmand,
            JobServerKind::Geard => Kind::Geard,
        };
        let server = ExternalJobServer::start(kind, None).unwrap();
        Self {
            port: server.port(),
            running: RunningServer::Foreign(server),
        }
    }

    async fn ours(port: u16) -> Self {
        let options = JobServerOptions {
            listen: format!("127.0.0.1:{port}").parse().unwrap(),
            ..JobServerOptions::default()
        };
        let server = JobServer::bind(options).await.unwrap();
        let stop = CancellationToken::new();
        let task = tokio::spawn(server.run(stop.clone()));
        Self {
            port,
            running: RunningServer::Ours { stop, task },
        }
    }

    /// Restarts on the same port without state.
    pub(crate) async fn restart(&mut self) {
        match &mut self.running {
            RunningServer::Ours { stop, task } => {
                stop.cancel();
                let _ = task.await;
                *self = Self::ours(self.port).await;
            }
            RunningServer::Foreign(server) => {
                server.kill();
                server.start_again().unwrap();
            }
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn endpoint(&self) -> GearmanEndpoint {
        GearmanEndpoint::new("127.0.0.1", self.port)
    }

    pub(crate) fn client(&self) -> JobClient {
        JobClient::new(JobClientOptions::new(vec![self.endpoint()]))
    }

    async fn admin(&self) -> Option<AdminClient> {
        AdminClient::connect(&self.endpoint(), PATIENCE).await.ok()
    }

    /// Returns the status of a function on the server, if it is known.
    async fn function(&self, name: &str) -> Option<Option<FunctionStatus>> {
        let status = self.admin().await?.status().await.ok()?;
        let mut status = status.into_iter();
        Some(status.find(|status| status.function == name))
    }

    /// Returns the number of connections that have registered a function, if the server reports it.
    async fn workers(&self, name: &str) -> Option<u64> {
        let function = self.function(name).await?;
        Some(function.map_or(0, |function| function.workers))
    }

    /// Waits until so many jobs of a function are being done, and no other waits.
    pub(crate) async fn busy(&self, name: &str, jobs: u64) {
        until(
            &format!("just {jobs} jobs of {name} are under way"),
            || async {
                let function = self.function(name).await?;
                let jobs_now =
                    function.map_or((0, 0), |function| (function.total, function.running));
                (jobs_now == (jobs, jobs)).then_some(())
            },
        )
        .await;
    }

    /// How many connections of workers the server has.
    async fn connections(&self) -> Option<usize> {
        let listed = self.admin().await?.workers().await.ok()?;
        let ours = listed
            .iter()
            .filter(|one| one.client_id.starts_with("Nodepool Builder"));
        Some(ours.count())
    }

    /// Waits until the server has taken all connections of a worker.
    pub(crate) async fn taken(&self, connections: usize) {
        until("the server has taken all connections", || async {
            (self.connections().await? >= connections).then_some(())
        })
        .await;
    }

    /// Waits until the server knows of no worker.
    pub(crate) async fn left(&self) {
        until("the server has lost all connections", || async {
            (self.connections().await? == 0).then_some(())
        })
        .await;
    }

    pub(crate) async fn offered(&self, name: &str) {
        until(&format!("{name} is offered"), || async {
            (self.workers(name).await? > 0).then_some(())
        })
        .await;
    }

    pub(crate) async fn withdrawn(&self, name: &str) {
        until(&format!("{name} is withdrawn"), || async {
            (self.workers(name).await? == 0).then_some(())
        })
        .await;
    }

    /// Calls a function, and returns its result or why it failed.
    pub(crate) async fn call(&self, function: &str, payload: &str) -> Result<Vec<u8>, JobFailure> {
        match self.outcome(function, payload).await {
            JobOutcome::Complete(data) => Ok(data.to_vec()),
            JobOutcome::Fail(data) => Err(JobFailure::from_data(&data).unwrap_or_else(|| {
                panic!(
                    "{function} failed without a reason: {:?}",
                    String::from_utf8_lossy(&data)
                )
            })),
            other => panic!("{function}: {other:?}"),
        }
    }

    pub(crate) async fn outcome(&self, function: &str, payload: &str) -> JobOutcome {
        let request = JobRequest::new(function, payload.to_owned());
        // geard has a short queue for new connections and resets those that find it full.
        let job = until("the server takes a job", || async {
            match self.client().submit(&request).await {
                Ok(job) => Some(job),
                Err(ClientError::OutcomeUnknown { .. }) => None,
                Err(error) => panic!("{error:?}"),
            }
        })
        .await;
        soon(function, job.wait()).await
    }

    pub(crate) async fn json(&self, function: &str, payload: &str) -> Value {
        let answer = self.call(function, payload).await.unwrap();
        serde_json::from_slice(&answer).unwrap()
    }

    pub(crate) async fn info(&self, id: &str) -> ImageInfo {
        let answer = self.call(&format!("image-info:{id}"), "").await.unwrap();
        serde_json::from_slice(&answer).unwrap()
    }
}

/// A simulated cloud that outlives its workers, and whose time can be put forward.
pub(crate) struct TestCloud {
    pub(crate) world: Arc<World>,
    /// In seconds.
    ahead: Arc<AtomicU64>,
}

impl TestCloud {
    pub(crate) fn new(simulate: Simulate) -> Arc<Self> {
        let options = HashMap::from([(PROVIDER.to_owned(), simulate)]);
        let ahead = Arc::<AtomicU64>::default();
        let clock = Clock::new({
            let ahead = Arc::clone(&ahead);
            move || {
                let ahead = Duration::from_secs(ahead.load(Ordering::SeqCst));
                nodeyard_model::now() + ahead
            }
        });
        Arc::new(Self {
            world: Arc::new(World::new(options, clock)),
            ahead,
        })
    }

    pub(crate) fn jump(&self, by: Duration) {
        self.ahead.fetch_add(by.as_secs(), Ordering::SeqCst);
    }

    fn driver(&self, owner: Owner) -> FakeDriver {
        let transport = InProcess::new(Arc::clone(&self.world), PROVIDER);
        FakeDriver::new(fake::Options::new(owner), Arc::new(transport))
    }

    /// Returns the uploaded images.
    pub(crate) async fn uploads(&self) -> Vec<CloudImage> {
        let owner = Owner {
            system: SystemId::new("test"),
            provider: PROVIDER.parse().unwrap(),
        };
        let driver = self.driver(owner);
        let mut images = driver.images().unwrap().list_images().await.unwrap();
        images.retain(|image| image.tags().build.is_some());
        images
    }
}

impl Connector for TestCloud {
    fn connect(&self, _: &str, _: &Fake) -> Result<Arc<dyn Transport>, Error> {
        let world = Arc::clone(&self.world);
        Ok(Arc::new(InProcess::new(world, PROVIDER)))
    }
}

/// Returns the drivers of a worker that has only simulated clouds.
pub(crate) fn kinds(clouds: Arc<dyn Connector>) -> DriverKinds {
    DriverKinds::default().with(FakeKind::new(clouds))
}

impl fmt::Debug for TestCloud {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cloud")
    }
}

/// A builder's host: its files and its configuration.
pub(crate) struct TestHost {
    directory: TempDir,
}

/// A disk that is one, of so many bytes.
pub(crate) fn disk(size: usize) -> Vec<u8> {
    let mut disk = vec![7; size];
    disk[..104].fill(0);
    disk[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    disk[31] = 1;
    disk
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    let mut hasher = Hasher::new().unwrap();
    hasher.update(bytes);
    hasher.finish().unwrap().sha256.unwrap().into()
}

/// Makes every format, with a few lines of output and progress.
pub(crate) const GOOD: &str = r#"
echo "making $NODEYARD_IMAGE"
echo "nodeyard: progress 1/2"
for format in $(echo "$NODEYARD_FORMATS" | tr , ' '); do
    echo "this is $NODEYARD_IMAGE_ID as $format" > "$NODEYARD_OUTPUT.$format"
done
echo "nodeyard: progress 2/2"
"#;

impl TestHost {
    pub(crate) fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// An executable shell script.
    pub(crate) fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        executable(&path, &format!("#!/bin/sh\n{text}\n")).unwrap();
        path
    }

    /// A configuration with images `(name, script)`, all used by the provider, and more keys of it.
    pub(crate) fn config(&self, images: &[(&str, &str)], provider: &str) -> String {
        self.config_with(images, provider, "")
    }

    /// The same, with more keys for every image.
    pub(crate) fn config_with(
        &self,
        images: &[(&str, &str)],
        provider: &str,
        keys: &str,
    ) -> String {
        let mut diskimages = String::new();
        let mut uses = String::new();
        for (name, script) in images {
            let program = self.script(&format!("make-{name}"), script);
            let program = program.display();
            diskimages += &format!(
                "  - {{name: {name}, builder: command, command: {program}, metadata: {{of: image, both: image}}{keys}}}\n"
            );
            uses += &format!("      - {{name: {name}, meta: {{both: provider}}}}\n");
        }
        format!(
            "images-dir: {images_dir}\nimages-dir-reserve: 0\nbuild-log-dir: {logs}\ndiskimages:\n{diskimages}\
             providers:\n  - name: {PROVIDER}\n    driver: fake\n{provider}    diskimages:\n{uses}    pools: []\n",
            images_dir = self.path("images").display(),
            logs = self.path("logs").display(),
        )
    }

    /// A configuration with the image `trusty`, which jobs of the Zuul at this address make, and more keys of it.
    pub(crate) fn import_config(&self, api: &str, keys: &str) -> String {
        format!(
            "images-dir: {images_dir}\nimages-dir-reserve: 0\nimage-size-estimate: 1M\nbuild-log-dir: {logs}\n\
             zuul-images:\n  - {{name: trusty, api-url: \"{api}\", tenant: t, project: p, job: j, \
             allow-insecure: true, checksum: required, artifacts: [{{format: qcow2, type: disk}}]{keys}}}\n\
             providers:\n  - {{name: {PROVIDER}, driver: fake, diskimages: [{{name: trusty}}], pools: []}}\n",
            images_dir = self.path("images").display(),
            logs = self.path("logs").display(),
        )
    }

    pub(crate) fn log(&self, image: &str, id: &str) -> String {
        let path = self.path("logs").join(format!("{image}-{id}.log"));
        std::fs::read_to_string(path).unwrap_or_default()
    }

    pub(crate) fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path("images")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names
            .filter(|name| !name.starts_with('.') && name != "builder_id.txt")
            .collect();
        names.sort();
        names
    }
}

pub(crate) fn parse(text: &str) -> Arc<Config> {
    let main = (Path::new("nodepool.yaml"), text.as_bytes());
    let (config, problems) = config::load_bytes(main, None, &Environment::default(), Mode::Daemon);
    Arc::new(config.unwrap_or_else(|| panic!("{problems:?}\n{text}")))
}

/// A worker at work.
pub(crate) struct TestWorker {
    pub(crate) handle: ImageWorkerHandle,
    pub(crate) config: watch::Sender<Arc<Config>>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), worker::Error>>,
}

impl TestWorker {
    pub(crate) async fn start(
        jobs: &Jobs,
        clouds: Arc<dyn Connector>,
        config: Arc<Config>,
    ) -> Self {
        let runtime = tokio::runtime::Handle::current();
        Self::launch(&runtime, jobs, clouds, config, |_| {}).await
    }

    /// With other options.
    pub(crate) async fn start_with(
        jobs: &Jobs,
        config: Arc<Config>,
        change: impl FnOnce(&mut Options),
    ) -> Self {
        let clouds = TestCloud::new(Simulate::default());
        let runtime = tokio::runtime::Handle::current();
        Self::launch(&runtime, jobs, clouds, config, change).await
    }

    /// On the threads of a runtime of its own.
    pub(crate) async fn start_on(
        runtime: &Runtime,
        jobs: &Jobs,
        clouds: Arc<dyn Connector>,
        config: Arc<Config>,
    ) -> Self {
        Self::launch(runtime.handle(), jobs, clouds, config, |_| {}).await
    }

    async fn launch(
        runtime: &tokio::runtime::Handle,
        jobs: &Jobs,
        clouds: Arc<dyn Connector>,
        config: Arc<Config>,
        change: impl FnOnce(&mut Options),
    ) -> Self {
        logs();
        let mut options = Options::new("builder01.example.com", vec![jobs.endpoint()]);
        options.backoff = ReconnectBackoff {
            initial_delay: Duration::from_millis(10),
            max_delay: Duration::from_millis(200),
        };
        options.logs = LogLimits {
            head: 64 << 10,
            tail: 4 << 10,
        };
        options.cleanup_interval = Duration::from_millis(100);
        options.unable_pause = Duration::from_millis(500);
        options.space_check_every = Duration::from_millis(100);
        change(&mut options);
        let connections = connections(&options);
        let (sender, receiver) = watch::channel(config);
        let parts = WorkerDependencies {
            config: receiver,
            drivers: kinds(clouds),
            events: Arc::new(NoopWorkerEvents),
        };
        let (worker, mut handle) = Worker::new(options, parts);
        let stop = CancellationToken::new();
        let task = runtime.spawn(worker.run(stop.clone()));
        assert!(soon("the worker is ready", handle.until_ready()).await);
        jobs.taken(connections).await;
        Self {
            handle,
            config: sender,
            stop,
            task,
        }
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        soon("the worker stops", self.task).await.unwrap().unwrap();
    }
}

/// How many a worker makes.
pub(crate) fn connections(options: &Options) -> usize {
    options.build_workers + 2 * options.upload_workers + options.info_workers
}

/// Runs something that blocks, beside the server.
pub(crate) async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    soon("a foreign program ends", tokio::task::spawn_blocking(work))
        .await
        .unwrap()
}
