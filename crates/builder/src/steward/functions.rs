//! The functions that workers have registered, as listed by the job servers.
//!
//! Gearman has no events for functions, so the lists are polled: rarely if nothing depends on them, often while work waits for a
//! worker, and immediately when a decision needs them.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nodeyard_gearman::GearmanEndpoint;
use nodeyard_gearman::client::{AdminClient, AdminError};
use nodeyard_image::ImageId;
use nodeyard_model::{BuildId, ImageName, ProviderName};
use nodeyard_plan::images::{AvailableFunctions, Services};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::options::StewardTiming;
use super::unused_functions::drop_regularly;
use crate::jobs::Function;

/// The functions on all job servers at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegisteredFunctions {
    /// The functions of each server, in order, or the reason why it could not be queried.
    servers: Vec<Result<ServerFunctions, String>>,
}

/// The functions on one job server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ServerFunctions {
    /// Functions with at least one worker.
    registered: HashSet<Function>,
    /// Functions with queued or running jobs.
    with_jobs: HashSet<Function>,
}

impl RegisteredFunctions {
    /// Queries all job servers; `limit` is the timeout for each.
    pub async fn fetch(servers: &[GearmanEndpoint], limit: Duration) -> Self {
        let mut connections: Vec<AdminConnection> =
            servers.iter().cloned().map(AdminConnection::new).collect();
        poll(&mut connections, limit).await
    }

    /// Returns whether a worker is registered for the function.
    pub fn is_registered(&self, function: &Function) -> bool {
        self.find_server(function).is_some()
    }

    /// Returns the index of the first server that has a worker for the function.
    pub fn find_server(&self, function: &Function) -> Option<usize> {
        (0..self.servers.len()).find(|server| self.is_registered_on(*server, function))
    }

    /// Returns whether the server has a worker for the function.
    pub(super) fn is_registered_on(&self, server: usize, function: &Function) -> bool {
        let listed = self
            .servers
            .get(server)
            .and_then(|listed| listed.as_ref().ok());
        listed.is_some_and(|listed| listed.registered.contains(function))
    }

    /// Returns whether there are queued or running jobs for the function.
    pub(super) fn has_jobs(&self, function: &Function) -> bool {
        let mut servers = self.servers.iter().flatten();
        servers.any(|listed| listed.with_jobs.contains(function))
    }

    /// Returns why no job server can be reached; `None` if at least one can.
    pub(super) fn unavailable_reason(&self) -> Option<String> {
        let mut reasons = String::new();
        for server in &self.servers {
            match server {
                Ok(_) => return None,
                Err(reason) if reasons.is_empty() => reasons.push_str(reason),
                Err(reason) => {
                    let _ = write!(reasons, "; {reason}");
                }
            }
        }
        if self.servers.is_empty() {
            reasons.push_str("no gearman servers are configured");
        }
        Some(reasons)
    }

    /// Returns the ids of all images on workers.
    pub(super) fn images(&self) -> HashSet<&ImageId> {
        let servers = self.servers.iter().flatten();
        let all = servers.flat_map(|listed| &listed.registered);
        all.filter_map(|function| match function {
            Function::Info(id) => Some(id),
            _ => None,
        })
        .collect()
    }

    /// Returns the services that are available for an image.
    pub(super) fn services<'a>(
        &self,
        image: &ImageName,
        builds: impl IntoIterator<Item = &'a BuildId>,
        providers: impl Iterator<Item = &'a ProviderName>,
    ) -> Services {
        if let Some(reason) = self.unavailable_reason() {
            return Services::Unknown { reason };
        }
        let mut upload = BTreeSet::new();
        let mut delete = BTreeSet::new();
        for build in builds {
            let id = ImageId::from(*build);
            if self.is_registered(&Function::Upload(id.clone())) {
                upload.insert(*build);
            }
            if self.is_registered(&Function::Delete(id)) {
                delete.insert(*build);
            }
        }
        Services::Known(AvailableFunctions {
            build: self.is_registered(&Function::Build(image.clone())),
            import: self.is_registered(&Function::Import(image.clone())),
            upload,
            delete,
            upload_delete: providers
                .filter(|provider| self.is_registered(&Function::UploadDelete((*provider).clone())))
                .cloned()
                .collect(),
        })
    }
}

/// A job server and its administrative connection.
struct AdminConnection {
    endpoint: GearmanEndpoint,
    client: Option<AdminClient>,
}

impl AdminConnection {
    fn new(endpoint: GearmanEndpoint) -> Self {
        let client = None;
        Self { endpoint, client }
    }

    async fn list(&mut self, limit: Duration) -> Result<ServerFunctions, AdminError> {
        if let Some(mut client) = self.client.take()
            && let Ok(listed) = list_functions(&mut client).await
        {
            self.client = Some(client);
            return Ok(listed);
        }
        let mut client = AdminClient::connect(&self.endpoint, limit).await?;
        let listed = list_functions(&mut client).await?;
        self.client = Some(client);
        Ok(listed)
    }
}

async fn list_functions(client: &mut AdminClient) -> Result<ServerFunctions, AdminError> {
    let mut listed = ServerFunctions::default();
    for line in client.status().await? {
        let Some(function) = Function::parse(&line.function) else {
            continue;
        };
        if line.total > 0 {
            listed.with_jobs.insert(function.clone());
        }
        if line.workers > 0 {
            listed.registered.insert(function);
        }
    }
    Ok(listed)
}

async fn poll(connections: &mut [AdminConnection], limit: Duration) -> RegisteredFunctions {
    let results = connections.iter_mut().map(|connection| async move {
        let results = connection.list(limit).await;
        results.map_err(|error| {
            let mut text = error.to_string();
            if let Some(cause) = std::error::Error::source(&error) {
                let _ = write!(text, ": {cause}");
            }
            text
        })
    });
    let servers = futures_util::future::join_all(results).await;
    RegisteredFunctions { servers }
}

/// Polls the registered functions. Cloning is cheap; polling ends with the last clone.
#[derive(Debug, Clone)]
pub(super) struct FunctionDirectory {
    requests: mpsc::UnboundedSender<oneshot::Sender<Arc<RegisteredFunctions>>>,
    latest: watch::Receiver<Arc<RegisteredFunctions>>,
    eager: Arc<AtomicBool>,
    servers: Arc<[GearmanEndpoint]>,
    _tasks: Arc<PollTasks>,
}

/// Tasks that are aborted on drop.
#[derive(Debug)]
struct PollTasks(Vec<AbortHandle>);

impl Drop for PollTasks {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

impl FunctionDirectory {
    pub(super) fn start(servers: Vec<GearmanEndpoint>, timing: StewardTiming) -> Self {
        let (requests, received) = mpsc::unbounded_channel();
        let (publish, latest) = watch::channel(Arc::default());
        let eager = Arc::new(AtomicBool::new(true));
        let poller = FunctionPoller {
            connections: servers.iter().cloned().map(AdminConnection::new).collect(),
            timing,
            received,
            publish,
            eager: Arc::clone(&eager),
        };
        let mut tasks = vec![tokio::spawn(poller.run()).abort_handle()];
        let (every, limit) = (timing.drop_functions, timing.server_timeout);
        tasks.extend(servers.iter().map(|server| {
            tokio::spawn(drop_regularly(server.clone(), every, limit)).abort_handle()
        }));
        Self {
            requests,
            latest,
            eager,
            servers: servers.into(),
            _tasks: Arc::new(PollTasks(tasks)),
        }
    }

    /// Returns a receiver of changes.
    pub(super) fn latest(&self) -> watch::Receiver<Arc<RegisteredFunctions>> {
        self.latest.clone()
    }

    /// Queries the job servers now.
    pub(super) async fn refresh(&self) -> Arc<RegisteredFunctions> {
        let (reply, functions) = oneshot::channel();
        let sent = self.requests.send(reply);
        match (sent, functions.await) {
            (Ok(()), Ok(functions)) => functions,
            _ => Arc::default(),
        }
    }

    /// Sets whether work is waiting for a worker, which shortens the polling interval.
    pub(super) fn set_eager(&self, eager: bool) {
        self.eager.store(eager, Ordering::Relaxed);
    }

    pub(super) fn endpoint(&self, server: usize) -> Option<&GearmanEndpoint> {
        self.servers.get(server)
    }
}

struct FunctionPoller {
    connections: Vec<AdminConnection>,
    timing: StewardTiming,
    received: mpsc::UnboundedReceiver<oneshot::Sender<Arc<RegisteredFunctions>>>,
    publish: watch::Sender<Arc<RegisteredFunctions>>,
    eager: Arc<AtomicBool>,
}

impl FunctionPoller {
    async fn run(mut self) {
        let mut last: Option<Instant> = None;
        loop {
            let waiting = self.next(last).await;
            let functions = Arc::new(poll(&mut self.connections, self.timing.server_timeout).await);
            last = Some(Instant::now());
            self.publish.send_if_modified(|latest| {
                let changed = *latest != functions;
                *latest = Arc::clone(&functions);
                changed
            });
            for reply in waiting {
                // The requester may be gone.
                let _ = reply.send(Arc::clone(&functions));
            }
        }
    }

    /// Waits for the next poll and returns the requests to be served by it.
    async fn next(
        &mut self,
        last: Option<Instant>,
    ) -> Vec<oneshot::Sender<Arc<RegisteredFunctions>>> {
        let mut waiting = Vec::new();
        let Some(last) = last else {
            return waiting;
        };
        loop {
            let pause = if self.eager.load(Ordering::Relaxed) {
                self.timing.eager_poll
            } else {
                self.timing.poll
            };
            if last.elapsed() >= pause {
                break;
            }
            // Short steps, so that becoming eager is noticed.
            let step = self.timing.eager_poll.min(pause);
            let until = (Instant::now() + step).min(last + pause);
            match tokio::time::timeout_at(until, self.received.recv()).await {
                Ok(Some(reply)) => {
                    waiting.push(reply);
                    break;
                }
                // The last directory was dropped; the task is about to be aborted.
                Ok(None) => std::future::pending().await,
                Err(_) => {}
            }
        }
        while let Ok(reply) = self.received.try_recv() {
            waiting.push(reply);
        }
        waiting
    }
}
