//! A small job server: queues in memory, plain TCP on loopback or TLS with client certificates.
//!
//! Where gear's server and gearmand differ it does what harms least, unless an option says otherwise: a job whose
//! worker is lost fails at once (its client knows best whether to repeat it), equal uniques are separate jobs, and
//! an exception reaches those who asked for exceptions, others as a failure. Jobs live in memory only; a client
//! that must not lose one asks again.
//!
//! The decisions are in the `core` module, without I/O; this one and `connection` give it sockets.

mod admin;
mod connection;
mod core;
mod metrics;
mod outbox;
mod rights;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::core::{ConnectionId, Core, Settings};
use self::outbox::Outbox;
use crate::codec::Limits;
use crate::net::{DEFAULT_PORT, Keepalive};
use crate::tls::ServerTls;

pub use self::metrics::{Counters, ServerMetrics};
pub use self::rights::{AccessList, BadPattern, Rights};

/// How a [`Server`] listens and what it grants.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Without TLS this must be a loopback address.
    pub listen: SocketAddr,
    pub tls: Option<ServerTls>,
    /// Rights by certificate. Without it every client may do everything.
    pub access: Option<AccessList>,
    /// Networks that may connect; empty means all.
    pub allow: Vec<IpNet>,
    pub limits: Limits,
    pub max_connections: usize,
    /// Most jobs held, waiting or running.
    pub max_jobs: usize,
    /// Most payload bytes held.
    pub max_job_bytes: usize,
    /// Most functions known at once; those without jobs and workers make room first.
    pub max_functions: usize,
    /// How often a job is given to a worker before the loss of its worker fails it.
    pub job_attempts: u32,
    /// Whether a submit joins the job of the same function and unique that is there already.
    pub coalesce_uniques: bool,
    /// Whether clients that did not ask for exceptions get a plain failure instead, as from gearmand. Without it
    /// they get the exception, as from gear's server; the `gearman` command takes that for success.
    pub strict_exceptions: bool,
    /// Bytes waiting for one connection above which those who feed it must wait.
    pub outbox_mark: usize,
    /// How long they wait before the connection that does not read is closed.
    pub slow_reader_limit: Duration,
    /// How long a woken worker may take to ask for its job before all others are woken.
    pub wake_patience: Duration,
    pub keepalive: Keepalive,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), DEFAULT_PORT),
            tls: None,
            access: None,
            allow: Vec::new(),
            limits: Limits::default(),
            max_connections: 4096,
            max_jobs: 1_000_000,
            max_job_bytes: 1 << 30,
            max_functions: 200_000,
            job_attempts: 1,
            coalesce_uniques: false,
            strict_exceptions: true,
            outbox_mark: 4 << 20,
            slow_reader_limit: Duration::from_secs(60),
            wake_patience: Duration::from_millis(500),
            keepalive: Keepalive::default(),
        }
    }
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error(
        "gearman server would listen on {listen} without TLS; use a loopback address or configure TLS"
    )]
    PlainOffLoopback { listen: SocketAddr },
    #[error(
        "rights are given by client certificate; configure TLS for the gearman server, or remove the rights"
    )]
    RightsWithoutTls,
    #[error("gearman server cannot listen on {listen}")]
    Bind {
        listen: SocketAddr,
        source: io::Error,
    },
}

/// A job server that is bound to its port.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// A view of a running server.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: ServerOptions,
    state: Mutex<State>,
    timer: Notify,
    /// The time the timer task sleeps for, so that it is only disturbed for an earlier one.
    sleeping_until: Mutex<Option<Instant>>,
}

#[derive(Debug)]
struct State {
    core: Core,
    outboxes: HashMap<ConnectionId, Arc<Outbox>>,
    last_connection: u64,
}

impl Server {
    /// Checks the options and binds the port. Port 0 takes a free one.
    pub async fn bind(options: ServerOptions) -> Result<Self, ServerError> {
        let listen = options.listen;
        if options.tls.is_none() && !listen.ip().is_loopback() {
            return Err(ServerError::PlainOffLoopback { listen });
        }
        if options.access.is_some() && options.tls.is_none() {
            return Err(ServerError::RightsWithoutTls);
        }
        let bind_error = |source| ServerError::Bind { listen, source };
        let listener = TcpListener::bind(listen).await.map_err(bind_error)?;
        let address = listener.local_addr().map_err(bind_error)?;
        // A worker of an earlier run must not be able to answer for a job of this one.
        let run = uuid::Uuid::new_v4().simple().to_string();
        let core = Core::new(Settings {
            coalesce: options.coalesce_uniques,
            job_attempts: options.job_attempts,
            strict_exceptions: options.strict_exceptions,
            max_jobs: options.max_jobs,
            max_job_bytes: options.max_job_bytes,
            max_functions: options.max_functions,
            wake_patience: options.wake_patience,
            handle_prefix: format!("H:{}:", run.get(..12).unwrap_or(&run)),
        });
        let state = State {
            core,
            outboxes: HashMap::new(),
            last_connection: 0,
        };
        let shared = Arc::new(Shared {
            options,
            state: Mutex::new(state),
            timer: Notify::new(),
            sleeping_until: Mutex::new(None),
        });
        Ok(Self {
            listener,
            address,
            shared,
        })
    }

    /// Where the server listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
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
                    if !self.shared.allows(peer.ip()) {
                        self.shared
                            .turned_away(peer, "address not in the allow-list");
                    } else if open >= self.shared.options.max_connections {
                        self.shared.turned_away(peer, "too many connections");
                    } else {
                        tasks.spawn(connection::serve(self.shared.clone(), socket, peer));
                    }
                }
                // Out of file descriptors, typically: the pending connection stays and accept would spin.
                Err(error) => {
                    tracing::warn!(%error, "gearman server cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        // An outbox holds its socket, and a handle of this server may outlive it.
        for outbox in std::mem::take(&mut self.shared.lock().outboxes).into_values() {
            outbox.closed.cancel();
        }
        tasks.shutdown().await;
    }
}

impl ServerHandle {
    /// What has happened and what there is.
    pub fn metrics(&self) -> ServerMetrics {
        let state = self.shared.lock();
        let running_jobs = state
            .core
            .functions()
            .map(|function| function.running)
            .sum();
        ServerMetrics {
            counters: state.core.counters,
            open_connections: state.core.connections.len(),
            functions: state.core.functions().count(),
            waiting_jobs: state.core.jobs.len() - running_jobs,
            running_jobs,
            job_bytes: state.core.job_bytes,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn allows(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.options.allow.is_empty() || self.options.allow.iter().any(|net| net.contains(&address))
    }

    fn turned_away(&self, peer: SocketAddr, reason: &str) {
        self.lock().core.counters.connections_refused += 1;
        tracing::info!(%peer, reason, "connection turned away");
    }

    /// Disturbs the timer task if something is due before it would look.
    fn deadline_is(&self, next: Option<Instant>) {
        let planned = *self
            .sleeping_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if next.is_some_and(|next| planned.is_none_or(|planned| next < planned)) {
            self.timer.notify_one();
        }
    }
}

async fn run_timer(shared: Arc<Shared>) {
    loop {
        let delivered = {
            let mut state = shared.lock();
            state.core.expire(Instant::now());
            let delivered = state.deliver();
            *shared
                .sleeping_until
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = delivered.next_deadline;
            delivered
        };
        delivered.flush();
        match delivered.next_deadline {
            Some(at) => tokio::select! {
                () = tokio::time::sleep_until(at.into()) => {}
                () = shared.timer.notified() => {}
            },
            None => shared.timer.notified().await,
        }
    }
}
