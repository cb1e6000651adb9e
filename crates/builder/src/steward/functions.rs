//! Who answers what: the functions that workers have registered, as the job servers list them.
//!
//! Gearman has no event for a function that comes or goes, so the lists are polled: seldom as long as nothing
//! depends on it, often while something waits for a worker, and at once when a decision needs to know.

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

use super::options::Timing;
use super::unused_functions::drop_regularly;
use crate::jobs::Function;

/// What the job servers say at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Functions {
    /// In the order of the servers: what there is, or why the server does not say.
    servers: Vec<Result<Listed, String>>,
}

/// What one server says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Listed {
    /// Workers answer these.
    answered: HashSet<Function>,
    /// There are jobs of these, waiting or running.
    called: HashSet<Function>,
}

impl Functions {
    /// Asks all servers; `limit` is for each.
    pub async fn ask(servers: &[GearmanEndpoint], limit: Duration) -> Self {
        let mut lines: Vec<Line> = servers.iter().cloned().map(Line::new).collect();
        poll(&mut lines, limit).await
    }

    pub fn answers(&self, function: &Function) -> bool {
        self.server_of(function).is_some()
    }

    /// The place of the first server on which somebody answers.
    pub fn server_of(&self, function: &Function) -> Option<usize> {
        (0..self.servers.len()).find(|server| self.answers_on(*server, function))
    }

    /// Whether somebody answers on the server at this place.
    pub(super) fn answers_on(&self, server: usize, function: &Function) -> bool {
        let listed = self
            .servers
            .get(server)
            .and_then(|listed| listed.as_ref().ok());
        listed.is_some_and(|listed| listed.answered.contains(function))
    }

    /// Whether somebody waits for an answer.
    pub(super) fn is_called(&self, function: &Function) -> bool {
        let mut servers = self.servers.iter().flatten();
        servers.any(|listed| listed.called.contains(function))
    }

    /// Why nobody can be asked for anything; none if somebody can.
    pub(super) fn silence(&self) -> Option<String> {
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

    /// The ids of all images that some worker holds or makes.
    pub(super) fn images(&self) -> HashSet<&ImageId> {
        let servers = self.servers.iter().flatten();
        let all = servers.flat_map(|listed| &listed.answered);
        all.filter_map(|function| match function {
            Function::Info(id) => Some(id),
            _ => None,
        })
        .collect()
    }

    /// What there is for an image.
    pub(super) fn services<'a>(
        &self,
        image: &ImageName,
        builds: impl IntoIterator<Item = &'a BuildId>,
        providers: impl Iterator<Item = &'a ProviderName>,
    ) -> Services {
        if let Some(reason) = self.silence() {
            return Services::Unknown { reason };
        }
        let mut upload = BTreeSet::new();
        let mut delete = BTreeSet::new();
        for build in builds {
            let id = ImageId::from(*build);
            if self.answers(&Function::Upload(id.clone())) {
                upload.insert(*build);
            }
            if self.answers(&Function::Delete(id)) {
                delete.insert(*build);
            }
        }
        Services::Known(AvailableFunctions {
            build: self.answers(&Function::Build(image.clone())),
            import: self.answers(&Function::Import(image.clone())),
            upload,
            delete,
            upload_delete: providers
                .filter(|provider| self.answers(&Function::UploadDelete((*provider).clone())))
                .cloned()
                .collect(),
        })
    }
}

/// A job server and the connection for asking it.
struct Line {
    endpoint: GearmanEndpoint,
    client: Option<AdminClient>,
}

impl Line {
    fn new(endpoint: GearmanEndpoint) -> Self {
        let client = None;
        Self { endpoint, client }
    }

    async fn ask(&mut self, limit: Duration) -> Result<Listed, AdminError> {
        if let Some(mut client) = self.client.take()
            && let Ok(listed) = list(&mut client).await
        {
            self.client = Some(client);
            return Ok(listed);
        }
        let mut client = AdminClient::connect(&self.endpoint, limit).await?;
        let listed = list(&mut client).await?;
        self.client = Some(client);
        Ok(listed)
    }
}

async fn list(client: &mut AdminClient) -> Result<Listed, AdminError> {
    let mut listed = Listed::default();
    for line in client.status().await? {
        let Some(function) = Function::parse(&line.function) else {
            continue;
        };
        if line.total > 0 {
            listed.called.insert(function.clone());
        }
        if line.workers > 0 {
            listed.answered.insert(function);
        }
    }
    Ok(listed)
}

async fn poll(lines: &mut [Line], limit: Duration) -> Functions {
    let asked = lines.iter_mut().map(|line| async move {
        let asked = line.ask(limit).await;
        asked.map_err(|error| {
            let mut text = error.to_string();
            if let Some(cause) = std::error::Error::source(&error) {
                let _ = write!(text, ": {cause}");
            }
            text
        })
    });
    let servers = futures_util::future::join_all(asked).await;
    Functions { servers }
}

/// Keeps asking. Cloning is cheap; the asking ends with the last clone.
#[derive(Debug, Clone)]
pub(super) struct Directory {
    requests: mpsc::UnboundedSender<oneshot::Sender<Arc<Functions>>>,
    latest: watch::Receiver<Arc<Functions>>,
    eager: Arc<AtomicBool>,
    servers: Arc<[GearmanEndpoint]>,
    _tasks: Arc<Tasks>,
}

/// Aborted when dropped.
#[derive(Debug)]
struct Tasks(Vec<AbortHandle>);

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}

impl Directory {
    pub(super) fn start(servers: Vec<GearmanEndpoint>, timing: Timing) -> Self {
        let (requests, asked) = mpsc::unbounded_channel();
        let (publish, latest) = watch::channel(Arc::default());
        let eager = Arc::new(AtomicBool::new(true));
        let asker = Asker {
            lines: servers.iter().cloned().map(Line::new).collect(),
            timing,
            asked,
            publish,
            eager: Arc::clone(&eager),
        };
        let mut tasks = vec![tokio::spawn(asker.run()).abort_handle()];
        let (every, limit) = (timing.drop_functions, timing.answer);
        tasks.extend(servers.iter().map(|server| {
            tokio::spawn(drop_regularly(server.clone(), every, limit)).abort_handle()
        }));
        Self {
            requests,
            latest,
            eager,
            servers: servers.into(),
            _tasks: Arc::new(Tasks(tasks)),
        }
    }

    /// Tells of every change.
    pub(super) fn latest(&self) -> watch::Receiver<Arc<Functions>> {
        self.latest.clone()
    }

    /// What the servers say after this call.
    pub(super) async fn fresh(&self) -> Arc<Functions> {
        let (answer, functions) = oneshot::channel();
        let sent = self.requests.send(answer);
        match (sent, functions.await) {
            (Ok(()), Ok(functions)) => functions,
            _ => Arc::default(),
        }
    }

    /// Whether something waits for a worker.
    pub(super) fn set_eager(&self, eager: bool) {
        self.eager.store(eager, Ordering::Relaxed);
    }

    pub(super) fn endpoint(&self, server: usize) -> Option<&GearmanEndpoint> {
        self.servers.get(server)
    }
}

struct Asker {
    lines: Vec<Line>,
    timing: Timing,
    asked: mpsc::UnboundedReceiver<oneshot::Sender<Arc<Functions>>>,
    publish: watch::Sender<Arc<Functions>>,
    eager: Arc<AtomicBool>,
}

impl Asker {
    async fn run(mut self) {
        let mut last: Option<Instant> = None;
        loop {
            let waiting = self.next(last).await;
            let functions = Arc::new(poll(&mut self.lines, self.timing.answer).await);
            last = Some(Instant::now());
            self.publish.send_if_modified(|latest| {
                let changed = *latest != functions;
                *latest = Arc::clone(&functions);
                changed
            });
            for answer in waiting {
                // Whoever asked may have gone.
                let _ = answer.send(Arc::clone(&functions));
            }
        }
    }

    /// Waits until it is time to ask, and tells for whom.
    async fn next(&mut self, last: Option<Instant>) -> Vec<oneshot::Sender<Arc<Functions>>> {
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
            match tokio::time::timeout_at(until, self.asked.recv()).await {
                Ok(Some(answer)) => {
                    waiting.push(answer);
                    break;
                }
                // Nobody is left to ask; the task is about to be ended.
                Ok(None) => std::future::pending().await,
                Err(_) => {}
            }
        }
        while let Ok(answer) = self.asked.try_recv() {
            waiting.push(answer);
        }
        waiting
    }
}
