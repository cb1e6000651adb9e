//! Job servers and stewards for tests.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_builder::steward::{
    self, NoopStewardEvents, Options, Steward, StewardDependencies, StewardEvents, StewardTiming,
};
use nodeyard_config::{self as config, Config, Environment, Mode};
use nodeyard_gearman::GearmanEndpoint;
use nodeyard_gearman::server::{JobServer, JobServerOptions};
use nodeyard_model::{
    BuildId, BuildKey, BuildState, ImageBuild, ImageName, ImageUpload, ProviderName, UploadId,
    UploadState,
};
use nodeyard_plan::images::Pace;
use nodeyard_store::Tree;
use nodeyard_store::registry::Registry;
use nodeyard_testbeds::{free_port, gearman};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) use nodeyard_testbeds::eventually;
pub(crate) use nodeyard_testbeds::store::Store;

/// So long that only a hang exceeds it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) const TWO_PROVIDERS: &str = "
diskimages:
  - {name: ubuntu, elements: [vm], python-path: /usr/bin/python3}
providers:
  - {name: one, driver: fake, diskimages: [{name: ubuntu}]}
  - {name: two, driver: fake, diskimages: [{name: ubuntu}]}
";

pub(crate) fn image() -> ImageName {
    "ubuntu".parse().unwrap()
}

pub(crate) fn provider(name: &str) -> ProviderName {
    ProviderName::new(name).unwrap()
}

/// A job server: Nodeyard's or another implementation.
pub(crate) struct TestJobServer {
    pub(crate) port: u16,
    pub(crate) endpoint: GearmanEndpoint,
    running: JobServerProcess,
}

enum JobServerProcess {
    Ours {
        stop: CancellationToken,
        task: JoinHandle<()>,
        attempts: u32,
    },
    Foreign(gearman::ExternalJobServer),
}

impl TestJobServer {
    pub(crate) async fn start() -> Self {
        Self::start_on(free_port().unwrap(), 1).await
    }

    /// One of ours that gives the job of a lost worker to the next, once.
    pub(crate) async fn requeueing() -> Self {
        Self::start_on(free_port().unwrap(), 2).await
    }

    async fn start_on(port: u16, attempts: u32) -> Self {
        let options = JobServerOptions {
            listen: ([127, 0, 0, 1], port).into(),
            job_attempts: attempts,
            ..JobServerOptions::default()
        };
        let server = JobServer::bind(options).await.unwrap();
        let port = server.local_addr().unwrap().port();
        let stop = CancellationToken::new();
        let task = tokio::spawn(server.run(stop.clone()));
        Self {
            port,
            endpoint: GearmanEndpoint::new("127.0.0.1", port),
            running: JobServerProcess::Ours {
                stop,
                task,
                attempts,
            },
        }
    }

    pub(crate) fn foreign(kind: gearman::Kind) -> Self {
        let server = gearman::ExternalJobServer::start(kind, None).unwrap();
        Self {
            port: server.port(),
            endpoint: GearmanEndpoint::new("127.0.0.1", server.port()),
            running: JobServerProcess::Foreign(server),
        }
    }

    /// Forgets all jobs and connections; the port stays the same.
    pub(crate) async fn restart(mut self) -> Self {
        match self.running {
            JobServerProcess::Ours {
                stop,
                task,
                attempts,
            } => {
                stop.cancel();
                task.await.unwrap();
                Self::start_on(self.port, attempts).await
            }
            JobServerProcess::Foreign(ref mut server) => {
                server.kill();
                server.start_again().unwrap();
                self
            }
        }
    }
}

pub(crate) fn parse(text: &str) -> Arc<Config> {
    let main = (Path::new("nodepool.yaml"), text.as_bytes());
    let (config, problems) = config::load_bytes(main, None, &Environment::default(), Mode::Daemon);
    Arc::new(config.unwrap_or_else(|| panic!("{problems:?}")))
}

/// It looks often, and gives up late: a worker may be slow because the machine is busy, and a job that is lost with its
/// server is given up at last.
pub(crate) fn quick() -> StewardTiming {
    StewardTiming {
        full_scan: Duration::from_millis(500),
        poll: Duration::from_millis(200),
        eager_poll: Duration::from_millis(30),
        drop_functions: Duration::from_millis(200),
        server_timeout: Duration::from_secs(30),
        call_timeout: Duration::from_secs(30),
        cloud_call_timeout: Duration::from_secs(30),
        zuul_timeout: Duration::from_secs(10),
        recovery_poll: Duration::from_millis(20),
        lost_after: PATIENCE / 10,
        status_check_after: Duration::from_millis(300),
        silence_timeout: Duration::from_secs(1),
        retry_pause: Duration::from_millis(50),
    }
}

/// Short timeouts for tests with lost jobs.
pub(crate) fn impatient() -> StewardTiming {
    StewardTiming {
        call_timeout: Duration::from_secs(5),
        lost_after: Duration::from_millis(800),
        ..quick()
    }
}

pub(crate) fn hasty() -> Pace {
    Pace {
        first_retry: Duration::from_millis(100),
        longest_retry: Duration::from_millis(500),
        linger: Duration::from_millis(20),
    }
}

/// A steward at work.
pub(crate) struct RunningSteward {
    pub(crate) config: watch::Sender<Arc<Config>>,
    pub(crate) handle: steward::StewardHandle,
    tree: Arc<dyn Tree>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), steward::Error>>,
}

impl RunningSteward {
    pub(crate) async fn start(store: &Store, server: &TestJobServer, text: &str) -> Self {
        Self::start_on(
            store.session().await,
            server,
            text,
            Arc::new(NoopStewardEvents),
        )
    }

    pub(crate) async fn start_impatient(store: &Store, server: &TestJobServer, text: &str) -> Self {
        let events = Arc::new(NoopStewardEvents);
        Self::start_with(store.session().await, server, text, events, impatient())
    }

    pub(crate) fn start_on(
        tree: Arc<dyn Tree>,
        server: &TestJobServer,
        text: &str,
        events: Arc<dyn StewardEvents>,
    ) -> Self {
        Self::start_with(tree, server, text, events, quick())
    }

    pub(crate) fn start_with(
        tree: Arc<dyn Tree>,
        server: &TestJobServer,
        text: &str,
        events: Arc<dyn StewardEvents>,
        timing: StewardTiming,
    ) -> Self {
        let servers = vec![server.endpoint.clone()];
        Self::start_at(tree, servers, text, events, timing)
    }

    /// With several job servers.
    pub(crate) fn start_at(
        tree: Arc<dyn Tree>,
        servers: Vec<GearmanEndpoint>,
        text: &str,
        events: Arc<dyn StewardEvents>,
        timing: StewardTiming,
    ) -> Self {
        Self::launch(tree, servers, text, events, (timing, hasty()))
    }

    /// Disables retries during a test.
    pub(crate) async fn start_without_retries(
        store: &Store,
        server: &TestJobServer,
        text: &str,
    ) -> Self {
        let hour = Duration::from_secs(60 * 60);
        let pace = Pace {
            first_retry: hour,
            longest_retry: hour,
            ..hasty()
        };
        let tree = store.session().await;
        let servers = vec![server.endpoint.clone()];
        Self::launch(
            tree,
            servers,
            text,
            Arc::new(NoopStewardEvents),
            (quick(), pace),
        )
    }

    fn launch(
        tree: Arc<dyn Tree>,
        servers: Vec<GearmanEndpoint>,
        text: &str,
        events: Arc<dyn StewardEvents>,
        (timing, pace): (StewardTiming, Pace),
    ) -> Self {
        let (sender, config) = watch::channel(parse(text));
        let options = Options {
            hostname: "steward.example.com".into(),
            version: "0.1.0".into(),
            servers,
            uploads: 8,
            cleans: true,
            timing,
            pace,
        };
        let parts = StewardDependencies {
            tree: Arc::clone(&tree),
            config,
            events,
        };
        let (steward, handle) = Steward::new(options, parts);
        let stop = CancellationToken::new();
        let task = tokio::spawn(steward.run(stop.clone()));
        Self {
            config: sender,
            handle,
            tree,
            stop,
            task,
        }
    }

    /// Stops it in order.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        let ended = tokio::time::timeout(PATIENCE, self.task).await.unwrap();
        ended.unwrap().unwrap();
        self.tree.close().await;
    }

    /// Ends it as `kill -9` would, with its session.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
        self.tree.close().await;
    }
}

/// Where uploads go.
pub(crate) trait UploadedImages {
    /// Everything that was uploaded: its provider, a slash, and its id there.
    async fn ids(&self) -> BTreeSet<String>;
}

/// Reads the records.
pub(crate) struct Records(pub(crate) Registry);

pub(crate) type Upload = (BuildId, ProviderName, UploadId, ImageUpload);

impl Records {
    pub(crate) async fn of(store: &Store) -> Self {
        Self(Registry::new(store.session().await))
    }

    pub(crate) async fn builds(&self) -> Vec<(BuildId, ImageBuild)> {
        let builds = self.0.images().builds(&image()).await.unwrap();
        let mut builds: Vec<_> = builds
            .into_iter()
            .map(|(key, stored)| (stored.stat.czxid, key.build, stored.value))
            .collect();
        builds.sort_by_key(|(order, ..)| *order);
        builds
            .into_iter()
            .map(|(_, id, value)| (id, value))
            .collect()
    }

    pub(crate) async fn uploads(&self) -> Vec<Upload> {
        let images = self.0.images();
        let mut found = Vec::new();
        for (build, _) in self.builds().await {
            let key = BuildKey {
                image: image(),
                build,
            };
            for provider in images.providers(&key).await.unwrap() {
                let uploads = images.uploads(&key, &provider).await.unwrap();
                let to = |id, value| (build, provider.clone(), id, value);
                found.extend(uploads.into_iter().map(|(k, s)| to(k.upload, s.value)));
            }
        }
        found
    }

    pub(crate) async fn request(&self) {
        self.0.images().request_build(&image()).await.unwrap();
    }

    /// Waits until exactly `count` builds are ready, the newest is in both clouds, the clouds match the records and there is no
    /// build request. Returns the builds, oldest first.
    pub(crate) async fn settled(&self, count: usize, cloud: &impl UploadedImages) -> Vec<BuildId> {
        eventually("everything is as it should be", || async {
            // It goes after its build is recorded. Looked at last, it might go while the old builds are looked at.
            let request = self.0.images().build_request(&image()).await.unwrap();
            match request {
                None => self.as_it_should_be(count, cloud).await,
                Some(_) => None,
            }
        })
        .await
    }

    /// Like [`Self::settled`], with a pending build request.
    pub(crate) async fn settled_but_asked(&self, count: usize, cloud: &impl UploadedImages) {
        eventually("nothing but a build is missing", || async {
            let request = self.0.images().build_request(&image()).await.unwrap();
            assert!(request.is_some());
            self.as_it_should_be(count, cloud).await
        })
        .await;
    }

    async fn as_it_should_be(
        &self,
        count: usize,
        cloud: &impl UploadedImages,
    ) -> Option<Vec<BuildId>> {
        let builds = self.builds().await;
        let uploads = self.uploads().await;
        let recorded: BTreeSet<String> = uploads
            .iter()
            .filter_map(|(_, to, _, upload)| {
                Some(format!("{to}/{}", upload.external_id.as_deref()?))
            })
            .collect();
        let (newest, _) = builds.last()?;
        let all_ready = builds.iter().all(|(_, b)| b.state == BuildState::Ready)
            && uploads.iter().all(|(.., u)| u.state == UploadState::Ready);
        let in_clouds = uploads.iter().filter(|(build, ..)| build == newest);
        let good = builds.len() == count
            && all_ready
            && in_clouds.count() == 2
            && recorded.len() == uploads.len()
            && cloud.ids().await == recorded;
        good.then(|| builds.iter().map(|(id, _)| *id).collect())
    }
}

/// Shows the log of a test that is run alone with `RUST_LOG` set.
pub(crate) fn logs() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_test_writer()
        .try_init();
}
