//! A job server with in-memory queues, on plain TCP (loopback only), TLS with client certificates, or a unix socket.
//!
//! Where gear's server and gearmand differ, the defaults are: a job whose worker is lost fails at once, jobs with equal
//! unique ids are separate, and an exception is sent only to clients that enabled exceptions (others receive a
//! failure). Jobs do not survive a restart.
//!
//! The `scheduler` module makes the decisions without I/O; this module and `connection` provide sockets and timers.

mod admin;
mod connection;
mod listener;
mod metrics;
mod rights;
mod scheduler;
mod send_buffer;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::listener::{Listener, Peer};
use self::scheduler::{ConnectionId, Scheduler, SchedulerOptions};
use self::send_buffer::SendBuffer;
use crate::codec::FrameLimits;
use crate::net::{DEFAULT_PORT, Keepalive};
use crate::tls::ServerTls;

pub use self::metrics::{ServerCounters, ServerMetrics};
pub use self::rights::{AccessList, InvalidPattern, Rights};

/// Options of a [`JobServer`].
#[derive(Clone, Debug)]
pub struct JobServerOptions {
    /// Without TLS this must be a loopback address.
    pub listen: SocketAddr,
    pub tls: Option<ServerTls>,
    /// Rights by client certificate. Without it every client has all rights.
    pub access: Option<AccessList>,
    /// Networks that may connect; empty means all.
    pub allow: Vec<IpNet>,
    pub limits: FrameLimits,
    pub max_connections: usize,
    /// Maximum number of jobs, waiting and running.
    pub max_jobs: usize,
    /// Maximum total payload size of all jobs.
    pub max_job_bytes: usize,
    /// Maximum number of functions; functions without jobs and workers are dropped to make room.
    pub max_functions: usize,
    /// How often a job is assigned before losing its worker fails it.
    pub job_attempts: u32,
    /// Whether a submit joins an existing job with the same function and unique id.
    pub coalesce_uniques: bool,
    /// Whether clients that did not enable exceptions receive a plain failure instead, as from gearmand. Otherwise they
    /// receive the exception, as from gear's server, which the `gearman` command treats as success.
    pub strict_exceptions: bool,
    /// Unsent bytes of a connection above which the connections that send to it must wait.
    pub send_buffer_limit: usize,
    /// How long they wait before the slow connection is closed.
    pub slow_reader_timeout: Duration,
    /// How long a woken worker may take to grab a job before all other workers are woken.
    pub wake_timeout: Duration,
    pub keepalive: Keepalive,
}

impl Default for JobServerOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), DEFAULT_PORT),
            tls: None,
            access: None,
            allow: Vec::new(),
            limits: FrameLimits::default(),
            max_connections: 4096,
            max_jobs: 1_000_000,
            max_job_bytes: 1 << 30,
            max_functions: 200_000,
            job_attempts: 1,
            coalesce_uniques: false,
            strict_exceptions: true,
            send_buffer_limit: 4 << 20,
            slow_reader_timeout: Duration::from_secs(60),
            wake_timeout: Duration::from_millis(500),
            keepalive: Keepalive::default(),
        }
    }
}

/// An error starting the job server.
#[derive(Debug, thiserror::Error)]
pub enum JobServerError {
    #[error(
        "gearman server must not listen on {listen} without TLS; use a loopback address or configure TLS"
    )]
    PlainOffLoopback { listen: SocketAddr },
    #[error(
        "rights require client certificates; configure TLS for the gearman server, or remove the rights"
    )]
    RightsWithoutTls,
    #[error("gearman server failed to listen on {listen}")]
    Bind {
        listen: SocketAddr,
        source: io::Error,
    },
}

/// A job server that listens; see [`JobServer::run`].
#[derive(Debug)]
pub struct JobServer {
    listener: Listener,
    shared: Arc<ServerShared>,
}

/// Reads the metrics of a running server.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    shared: Arc<ServerShared>,
}

#[derive(Debug)]
struct ServerShared {
    options: JobServerOptions,
    state: Mutex<ServerState>,
    timer: Notify,
    /// When the timer task will wake up; it is notified only of earlier deadlines.
    timer_deadline: Mutex<Option<Instant>>,
}

#[derive(Debug)]
struct ServerState {
    scheduler: Scheduler,
    send_buffers: HashMap<ConnectionId, Arc<SendBuffer>>,
    last_connection: u64,
}

impl JobServer {
    /// Checks the options and binds the port. Port 0 selects a free one.
    pub async fn bind(options: JobServerOptions) -> Result<Self, JobServerError> {
        let listen = options.listen;
        if options.tls.is_none() && !listen.ip().is_loopback() {
            return Err(JobServerError::PlainOffLoopback { listen });
        }
        if options.access.is_some() && options.tls.is_none() {
            return Err(JobServerError::RightsWithoutTls);
        }
        let bind_error = |source| JobServerError::Bind { listen, source };
        let listener = TcpListener::bind(listen).await.map_err(bind_error)?;
        Ok(Self::new(Listener::Tcp(listener), options))
    }

    /// Serves a unix socket, to processes of the same user and of root. The options for networks and rights do not apply.
    pub fn on_unix_socket(listener: UnixListener, options: JobServerOptions) -> Self {
        Self::new(Listener::Unix(listener), options)
    }

    fn new(listener: Listener, options: JobServerOptions) -> Self {
        // Prevents a worker connected to an earlier run from completing a job of this one.
        let run = uuid::Uuid::new_v4().simple().to_string();
        let scheduler = Scheduler::new(SchedulerOptions {
            coalesce: options.coalesce_uniques,
            job_attempts: options.job_attempts,
            strict_exceptions: options.strict_exceptions,
            max_jobs: options.max_jobs,
            max_job_bytes: options.max_job_bytes,
            max_functions: options.max_functions,
            wake_timeout: options.wake_timeout,
            handle_prefix: format!("H:{}:", run.get(..12).unwrap_or(&run)),
        });
        let state = ServerState {
            scheduler,
            send_buffers: HashMap::new(),
            last_connection: 0,
        };
        let shared = Arc::new(ServerShared {
            options,
            state: Mutex::new(state),
            timer: Notify::new(),
            timer_deadline: Mutex::new(None),
        });
        Self { listener, shared }
    }

    /// Returns the address on which the server listens, if it listens on TCP.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &self.listener {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(_) => None,
        }
    }

    pub fn handle(&self) -> ServerHandle {
        ServerHandle {
            shared: self.shared.clone(),
        }
    }

    /// Serves until `shutdown`, then closes all connections.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut tasks = JoinSet::new();
        tasks.spawn(run_timer(self.shared.clone()));
        loop {
            let accepted = tokio::select! {
                () = shutdown.cancelled() => break,
                accepted = self.listener.accept() => accepted,
                Some(_) = tasks.join_next() => continue,
            };
            match accepted {
                Ok((socket, peer)) => {
                    let open = tasks.len() - 1;
                    if let Err(reason) = self.shared.check_peer(peer) {
                        self.shared.reject_connection(peer, reason);
                    } else if open >= self.shared.options.max_connections {
                        self.shared.reject_connection(peer, "too many connections");
                    } else {
                        tasks.spawn(connection::serve(self.shared.clone(), socket, peer));
                    }
                }
                // Typically out of file descriptors: the connection stays pending and accept would spin.
                Err(error) => {
                    tracing::warn!(%error, "failed to accept connection; retrying");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        // A send buffer keeps its socket open, and a handle may keep the buffers alive.
        for send_buffer in std::mem::take(&mut self.shared.lock().send_buffers).into_values() {
            send_buffer.closed.cancel();
        }
        tasks.shutdown().await;
    }
}

impl ServerHandle {
    /// Returns the current metrics.
    pub fn metrics(&self) -> ServerMetrics {
        let state = self.shared.lock();
        let running_jobs = state
            .scheduler
            .functions()
            .map(|function| function.running)
            .sum();
        ServerMetrics {
            counters: state.scheduler.counters,
            open_connections: state.scheduler.connections.len(),
            functions: state.scheduler.functions().count(),
            waiting_jobs: state.scheduler.jobs.len() - running_jobs,
            running_jobs,
            job_bytes: state.scheduler.job_bytes,
        }
    }
}

impl ServerShared {
    fn lock(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_peer(&self, peer: Peer) -> Result<(), &'static str> {
        match peer {
            Peer::Tcp(address) => {
                let address = address.ip().to_canonical();
                let allow = &self.options.allow;
                let allowed = allow.is_empty() || allow.iter().any(|net| net.contains(&address));
                allowed.then_some(()).ok_or("address not in the allow-list")
            }
            Peer::Unix { user } => {
                let allowed = user == 0 || user == rustix::process::geteuid().as_raw();
                allowed.then_some(()).ok_or("another user")
            }
        }
    }

    fn reject_connection(&self, peer: Peer, reason: &str) {
        self.lock().scheduler.counters.connections_refused += 1;
        tracing::info!(%peer, reason, "connection rejected");
    }

    /// Wakes the timer task if `next` is before its deadline.
    fn wake_timer_before(&self, next: Option<Instant>) {
        let planned = *self
            .timer_deadline
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if next.is_some_and(|next| planned.is_none_or(|planned| next < planned)) {
            self.timer.notify_one();
        }
    }
}

async fn run_timer(shared: Arc<ServerShared>) {
    loop {
        let deliveries = {
            let mut state = shared.lock();
            state.scheduler.expire(Instant::now());
            let deliveries = state.deliver();
            *shared
                .timer_deadline
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = deliveries.next_deadline;
            deliveries
        };
        deliveries.flush();
        match deliveries.next_deadline {
            Some(at) => tokio::select! {
                () = tokio::time::sleep_until(at.into()) => {}
                () = shared.timer.notified() => {}
            },
            None => shared.timer.notified().await,
        }
    }
}
