//! A worker that registers functions with any number of job servers and runs their jobs.
//!
//! At most `slots` jobs run at once, whichever servers they come from; work that needs a separate limit gets a separate
//! worker. Functions can be registered and unregistered at any time and are announced again on every new connection.

mod connection;
mod job;
mod registry;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::connection::WorkerConnection;
use self::registry::{FunctionRegistry, RegisteredFunction};
use crate::codec::FrameLimits;
use crate::net::{GearmanEndpoint, Keepalive, ReconnectBackoff};

pub use self::connection::WorkerConnectionError;
pub use self::job::{Job, JobError, JobHandler, JobInterrupt};

/// Options of a [`JobWorker`].
#[derive(Clone, Debug)]
pub struct JobWorkerOptions {
    /// The client id; each connection appends its slot number, counted from 1.
    pub client_id: String,
    /// The job servers; the worker connects to all of them.
    pub servers: Vec<GearmanEndpoint>,
    /// The number of concurrent jobs, and of connections to each server.
    pub slots: usize,
    pub limits: FrameLimits,
    pub connect_timeout: Duration,
    /// Timeout for the response to GRAB_JOB.
    pub response_timeout: Duration,
    pub backoff: ReconnectBackoff,
    pub keepalive: Keepalive,
    /// How long handlers may continue after shutdown.
    pub stop_grace: Duration,
}

impl JobWorkerOptions {
    pub fn new(client_id: impl Into<String>, servers: Vec<GearmanEndpoint>, slots: usize) -> Self {
        Self {
            client_id: client_id.into(),
            servers,
            slots,
            limits: FrameLimits::default(),
            connect_timeout: Duration::from_secs(10),
            response_timeout: Duration::from_secs(30),
            backoff: ReconnectBackoff::default(),
            keepalive: Keepalive::default(),
            stop_grace: Duration::from_secs(10),
        }
    }
}

/// A function name that cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid gearman function name \"{}\": it is empty or contains control characters", name.escape_debug())]
pub struct InvalidFunctionName {
    pub name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerMode {
    Working,
    /// Requests no more jobs and finishes those it has.
    Draining,
    /// As [`Self::Draining`], and handlers are interrupted.
    Stopping,
}

/// State shared by the connections of a worker.
#[derive(Debug)]
struct WorkerShared {
    options: JobWorkerOptions,
    registry: FunctionRegistry,
    permits: Arc<Semaphore>,
    mode: watch::Sender<WorkerMode>,
    connected: watch::Sender<usize>,
    jobs: TaskTracker,
    kill: CancellationToken,
}

impl WorkerShared {
    fn acquire_permit(&self) -> BoxFuture<'static, Option<OwnedSemaphorePermit>> {
        self.permits.clone().acquire_owned().map(Result::ok).boxed()
    }

    fn mark_connected(&self) -> ConnectedGuard<'_> {
        self.connected.send_modify(|count| *count += 1);
        ConnectedGuard(&self.connected)
    }
}

struct ConnectedGuard<'a>(&'a watch::Sender<usize>);

impl Drop for ConnectedGuard<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Runs jobs from job servers; see [`JobWorker::run`].
#[derive(Debug)]
pub struct JobWorker {
    shared: Arc<WorkerShared>,
}

/// Registers functions with a worker and drains it.
#[derive(Clone, Debug)]
pub struct WorkerHandle {
    shared: Arc<WorkerShared>,
}

impl JobWorker {
    pub fn new(options: JobWorkerOptions) -> Self {
        let shared = WorkerShared {
            permits: Arc::new(Semaphore::new(options.slots)),
            options,
            registry: FunctionRegistry::default(),
            mode: watch::Sender::new(WorkerMode::Working),
            connected: watch::Sender::new(0),
            jobs: TaskTracker::new(),
            kill: CancellationToken::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    pub fn handle(&self) -> WorkerHandle {
        WorkerHandle {
            shared: self.shared.clone(),
        }
    }

    /// Runs until `shutdown`, or until [drained](WorkerHandle::drain).
    ///
    /// On shutdown handlers are interrupted; those still running after the grace period are dropped.
    pub async fn run(self, shutdown: CancellationToken) {
        // Stops all handlers even if this future is dropped.
        let _kill = self.shared.kill.clone().drop_guard();
        let mut connections = JoinSet::new();
        for slot in 1..=self.shared.options.slots {
            for endpoint in &self.shared.options.servers {
                let connection = WorkerConnection {
                    shared: self.shared.clone(),
                    endpoint: endpoint.clone(),
                    server: endpoint.to_string().into(),
                    client_id: format!("{} {slot}", self.shared.options.client_id),
                    mode: self.shared.mode.subscribe(),
                };
                connections.spawn(connection.run());
            }
        }
        let jobs = self.shared.jobs.clone();
        let drained = async {
            let _ = self
                .shared
                .mode
                .subscribe()
                .wait_for(|mode| *mode != WorkerMode::Working)
                .await;
            while connections.join_next().await.is_some() {}
            jobs.close();
            jobs.wait().await;
        };
        tokio::pin!(drained);
        tokio::select! {
            () = &mut drained => return,
            () = shutdown.cancelled() => {}
        }
        self.shared.mode.send_replace(WorkerMode::Stopping);
        if tokio::time::timeout(self.shared.options.stop_grace, &mut drained)
            .await
            .is_err()
        {
            tracing::warn!("handlers did not stop within the grace period; dropping them");
            self.shared.kill.cancel();
            drained.await;
        }
    }
}

impl WorkerHandle {
    /// Registers a function on every server, replacing an earlier handler of the same name.
    pub fn register(
        &self,
        name: &str,
        handler: impl JobHandler,
    ) -> Result<(), InvalidFunctionName> {
        self.add(name, None, handler)
    }

    /// Registers a function with a timeout after which the server fails its jobs.
    pub fn register_with_timeout(
        &self,
        name: &str,
        timeout: Duration,
        handler: impl JobHandler,
    ) -> Result<(), InvalidFunctionName> {
        self.add(name, Some(timeout), handler)
    }

    fn add(
        &self,
        name: &str,
        timeout: Option<Duration>,
        handler: impl JobHandler,
    ) -> Result<(), InvalidFunctionName> {
        if name.is_empty() || name.chars().any(char::is_control) {
            return Err(InvalidFunctionName {
                name: name.to_owned(),
            });
        }
        self.shared.registry.add(RegisteredFunction {
            name: name.into(),
            timeout,
            handler: Arc::new(handler),
        });
        Ok(())
    }

    /// Unregisters a function. Returns false if it was not registered. Running jobs continue and their results are
    /// delivered.
    pub fn unregister(&self, name: &str) -> bool {
        self.shared.registry.remove(name)
    }

    pub fn is_registered(&self, name: &str) -> bool {
        self.shared.registry.contains(name)
    }

    /// Returns the registered functions, sorted.
    pub fn functions(&self) -> Vec<String> {
        self.shared.registry.names()
    }

    /// Waits until all changes made so far have been sent on every open connection.
    pub async fn synced(&self) {
        self.shared.registry.synced().await;
    }

    /// Returns the number of connections that have registered their functions.
    pub fn connected(&self) -> usize {
        *self.shared.connected.borrow()
    }

    /// Waits until at least `count` connections have registered their functions.
    pub async fn wait_connected(&self, count: usize) {
        let _ = self
            .shared
            .connected
            .subscribe()
            .wait_for(|up| *up >= count)
            .await;
    }

    /// Makes the worker take no more jobs, finish running jobs and end.
    pub fn drain(&self) {
        self.shared.mode.send_if_modified(|mode| {
            let working = *mode == WorkerMode::Working;
            if working {
                *mode = WorkerMode::Draining;
            }
            working
        });
    }
}
