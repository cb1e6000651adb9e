//! A worker: a pool of slots that serves functions on any number of job servers.
//!
//! A pool of `slots` runs at most that many jobs at once, whichever servers they come from. Work that needs limits of
//! its own (builds and uploads, say) gets a worker of its own.
//!
//! Functions come and go while the worker runs. What is registered is remembered here and sent again on every
//! new connection.

mod job;
mod link;
mod registry;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::link::Link;
use self::registry::{Function, Registry};
use crate::codec::Limits;
use crate::net::{Backoff, Endpoint, Keepalive};

pub use self::job::{Handler, Interrupt, Job, JobError};

/// How a [`Worker`] works.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// What each connection calls itself, with its number from 1 appended.
    pub client_id: String,
    /// The worker registers with all of them.
    pub servers: Vec<Endpoint>,
    /// Jobs at once, and connections to each server.
    pub slots: usize,
    pub limits: Limits,
    pub connect_timeout: Duration,
    /// How long a server may take to answer a question for a job.
    pub answer_timeout: Duration,
    pub backoff: Backoff,
    pub keepalive: Keepalive,
    /// How long handlers may go on after the worker was told to stop.
    pub stop_grace: Duration,
}

impl WorkerOptions {
    pub fn new(client_id: impl Into<String>, servers: Vec<Endpoint>, slots: usize) -> Self {
        Self {
            client_id: client_id.into(),
            servers,
            slots,
            limits: Limits::default(),
            connect_timeout: Duration::from_secs(10),
            answer_timeout: Duration::from_secs(30),
            backoff: Backoff::default(),
            keepalive: Keepalive::default(),
            stop_grace: Duration::from_secs(10),
        }
    }
}

/// A function name that cannot travel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{}\" cannot be a gearman function: a name is not empty and holds no control characters", name.escape_debug())]
pub struct BadFunctionName {
    pub name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Working,
    /// Asks for no more jobs, finishes those it has.
    Draining,
    /// The same, and handlers are told to hurry.
    Stopping,
}

/// What the connections of a worker share.
#[derive(Debug)]
struct Pool {
    options: WorkerOptions,
    registry: Registry,
    permits: Arc<Semaphore>,
    mode: watch::Sender<Mode>,
    connected: watch::Sender<usize>,
    jobs: TaskTracker,
    kill: CancellationToken,
}

impl Pool {
    fn permit(&self) -> BoxFuture<'static, Option<OwnedSemaphorePermit>> {
        self.permits.clone().acquire_owned().map(Result::ok).boxed()
    }

    fn connection_up(&self) -> ConnectionUp<'_> {
        self.connected.send_modify(|count| *count += 1);
        ConnectionUp(&self.connected)
    }
}

struct ConnectionUp<'a>(&'a watch::Sender<usize>);

impl Drop for ConnectionUp<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// A worker that has yet to [`run`](Worker::run).
#[derive(Debug)]
pub struct Worker {
    pool: Arc<Pool>,
}

/// Registers functions with a worker and drains it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct WorkerHandle {
    pool: Arc<Pool>,
}

impl Worker {
    pub fn new(options: WorkerOptions) -> Self {
        let pool = Pool {
            permits: Arc::new(Semaphore::new(options.slots)),
            options,
            registry: Registry::default(),
            mode: watch::Sender::new(Mode::Working),
            connected: watch::Sender::new(0),
            jobs: TaskTracker::new(),
            kill: CancellationToken::new(),
        };
        Self {
            pool: Arc::new(pool),
        }
    }

    pub fn handle(&self) -> WorkerHandle {
        WorkerHandle {
            pool: self.pool.clone(),
        }
    }

    /// Works until `shutdown`, or until it has been [drained](WorkerHandle::drain).
    ///
    /// On shutdown handlers are told; those still running after the grace period are dropped.
    pub async fn run(self, shutdown: CancellationToken) {
        // However this ends, no handler runs on unnoticed.
        let _kill = self.pool.kill.clone().drop_guard();
        let mut links = JoinSet::new();
        for slot in 1..=self.pool.options.slots {
            for endpoint in &self.pool.options.servers {
                let link = Link {
                    pool: self.pool.clone(),
                    endpoint: endpoint.clone(),
                    server: endpoint.to_string().into(),
                    client_id: format!("{} {slot}", self.pool.options.client_id),
                    mode: self.pool.mode.subscribe(),
                };
                links.spawn(link.run());
            }
        }
        let jobs = self.pool.jobs.clone();
        let drained = async {
            let _ = self
                .pool
                .mode
                .subscribe()
                .wait_for(|mode| *mode != Mode::Working)
                .await;
            while links.join_next().await.is_some() {}
            jobs.close();
            jobs.wait().await;
        };
        tokio::pin!(drained);
        tokio::select! {
            () = &mut drained => return,
            () = shutdown.cancelled() => {}
        }
        self.pool.mode.send_replace(Mode::Stopping);
        if tokio::time::timeout(self.pool.options.stop_grace, &mut drained)
            .await
            .is_err()
        {
            tracing::warn!("handlers did not stop in time and are dropped");
            self.pool.kill.cancel();
            drained.await;
        }
    }
}

impl WorkerHandle {
    /// Offers a function, on every server, from now on. An earlier handler of the same name is replaced.
    pub fn register(&self, name: &str, handler: impl Handler) -> Result<(), BadFunctionName> {
        self.add(name, None, handler)
    }

    /// The same, with a time after which the server gives a job up as failed.
    pub fn register_with_timeout(
        &self,
        name: &str,
        timeout: Duration,
        handler: impl Handler,
    ) -> Result<(), BadFunctionName> {
        self.add(name, Some(timeout), handler)
    }

    fn add(
        &self,
        name: &str,
        timeout: Option<Duration>,
        handler: impl Handler,
    ) -> Result<(), BadFunctionName> {
        if name.is_empty() || name.chars().any(char::is_control) {
            return Err(BadFunctionName {
                name: name.to_owned(),
            });
        }
        self.pool.registry.add(Function {
            name: name.into(),
            timeout,
            handler: Arc::new(handler),
        });
        Ok(())
    }

    /// Withdraws a function. A job of it that is running goes on, and its result is delivered: on that connection
    /// the server hears of the withdrawal after the result. False if it was not registered.
    pub fn unregister(&self, name: &str) -> bool {
        self.pool.registry.remove(name)
    }

    pub fn is_registered(&self, name: &str) -> bool {
        self.pool.registry.contains(name)
    }

    /// The registered functions, sorted.
    pub fn functions(&self) -> Vec<String> {
        self.pool.registry.names()
    }

    /// Waits until all registrations and withdrawals made so far have been sent on every connection there is.
    pub async fn synced(&self) {
        self.pool.registry.synced().await;
    }

    /// How many connections are up and registered.
    pub fn connected(&self) -> usize {
        *self.pool.connected.borrow()
    }

    /// Waits until at least `count` connections are up and registered.
    pub async fn wait_connected(&self, count: usize) {
        let _ = self
            .pool
            .connected
            .subscribe()
            .wait_for(|up| *up >= count)
            .await;
    }

    /// Lets the worker take no more jobs, finish those it has, and end.
    pub fn drain(&self) {
        self.pool.mode.send_if_modified(|mode| {
            let working = *mode == Mode::Working;
            if working {
                *mode = Mode::Draining;
            }
            working
        });
    }
}
