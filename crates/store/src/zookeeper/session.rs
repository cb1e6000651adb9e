//! The session task, which keeps the session alive across connections.
//!
//! Only a server can expire a session. While no server is reachable, the session is suspended and commands are queued.
//! When a server reports expiry, all operations started in the session fail and a new session is created.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::call::{SessionCallError, SessionCommand, SessionFence};
use super::dial::{DialError, ServerConnection, connect_to};
use super::options::Host;
use super::tls::ZooKeeperTlsFiles;
use super::watches::WatchTable;
use super::wire::ConnectRequest;
use crate::tree::{Session, SessionId};

/// Timeout for closing a session, which otherwise expires on the server.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The minimum interval of log messages about failed connections.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
const INITIAL_RETRY_DELAY: Duration = Duration::from_millis(50);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);

pub(super) struct SessionTask {
    pub(super) hosts: watch::Receiver<Vec<Host>>,
    pub(super) commands: mpsc::UnboundedReceiver<SessionCommand>,
    pub(super) identity: Option<SessionCredentials>,
    pub(super) last_zxid: i64,
    pub(super) watches: WatchTable,
    pub(super) closing: Option<CloseRequest>,
    /// Commands waiting for a connection.
    pub(super) queue: VecDeque<SessionCommand>,
    /// Failed attempts since the last successful connection.
    pub(super) failures: u32,
    pub(super) state: watch::Sender<Session>,
    session_timeout: Duration,
    tls: Option<ZooKeeperTlsFiles>,
    trouble: watch::Sender<Option<Arc<DialError>>>,
    complained: Option<Instant>,
    /// Since when all reachable servers have refused connections.
    refused_since: Option<Instant>,
}

/// The credentials for resuming a session.
pub(super) struct SessionCredentials {
    pub(super) id: SessionId,
    password: Bytes,
}

/// A request to close the session.
pub(super) struct CloseRequest {
    pub(super) deadline: Instant,
    callers: Vec<oneshot::Sender<()>>,
}

impl SessionTask {
    pub(super) fn new(
        commands: mpsc::UnboundedReceiver<SessionCommand>,
        hosts: watch::Receiver<Vec<Host>>,
        state: watch::Sender<Session>,
        trouble: watch::Sender<Option<Arc<DialError>>>,
        session_timeout: Duration,
        tls: Option<ZooKeeperTlsFiles>,
    ) -> Self {
        Self {
            hosts,
            commands,
            identity: None,
            last_zxid: 0,
            watches: WatchTable::default(),
            closing: None,
            queue: VecDeque::new(),
            failures: 0,
            state,
            session_timeout,
            tls,
            trouble,
            complained: None,
            refused_since: None,
        }
    }

    /// Runs until the session is closed or the last handle is dropped.
    pub(super) async fn run(mut self) {
        while let Some(connection) = self.connect().await {
            if self.serve(connection).await.is_break() {
                break;
            }
        }
        self.finish();
    }

    /// Tries the servers until connected. Returns `None` if the task should end.
    async fn connect(&mut self) -> Option<ServerConnection> {
        'round: loop {
            if self.closing.is_some() && self.identity.is_none() {
                return None;
            }
            if self.failures > 0 {
                let pause = tokio::time::sleep(retry_delay(self.failures));
                self.run_while_queueing(pause).await?;
            }
            let mut hosts = self.hosts.borrow_and_update().clone();
            hosts.sort_by_cached_key(|_| random());
            let mut failure = DialError::NoHosts;
            let mut refused = false;
            for host in hosts {
                let attempt = connect_to(
                    host,
                    self.tls.clone(),
                    self.connect_request(),
                    self.attempt_timeout(),
                );
                match self.run_while_queueing(Box::pin(attempt)).await? {
                    Ok(connection) if connection.response.is_expired() => {
                        self.expire();
                        continue 'round;
                    }
                    Ok(connection) => {
                        self.accept_session(&connection);
                        return Some(connection);
                    }
                    Err(error) => {
                        tracing::debug!(
                            error = &error as &dyn std::error::Error,
                            "failed to connect to ZooKeeper server"
                        );
                        refused |= matches!(error, DialError::Refused { .. });
                        failure = error;
                    }
                }
            }
            self.reset_zxid_after_refusals(refused);
            self.log_failure(failure);
        }
    }

    /// Resets the last seen transaction id once all servers have refused connections for longer than the session
    /// timeout.
    ///
    /// A server refuses clients that have seen later transactions. A lagging server catches up within that time; an
    /// ensemble restored from a backup never does.
    fn reset_zxid_after_refusals(&mut self, refused: bool) {
        if !refused {
            self.refused_since = None;
            return;
        }
        let since = *self.refused_since.get_or_insert_with(Instant::now);
        if self.last_zxid != 0 && since.elapsed() > self.session_timeout {
            tracing::warn!(
                zxid = format!("{:#x}", self.last_zxid),
                "every ZooKeeper server refuses the connection; retrying without the last seen transaction, as after a \
                 restore from a backup"
            );
            self.last_zxid = 0;
        }
    }

    fn connect_request(&self) -> ConnectRequest {
        let (session_id, password) = match &self.identity {
            Some(identity) => (identity.id.0, identity.password.clone()),
            None => (0, Bytes::from_static(&[0; 16])),
        };
        ConnectRequest {
            last_zxid_seen: self.last_zxid,
            timeout: i32::try_from(self.session_timeout.as_millis()).unwrap_or(i32::MAX),
            session_id,
            password,
            read_only: false,
        }
    }

    /// Returns the timeout of one attempt, a fraction of the session timeout.
    fn attempt_timeout(&self) -> Duration {
        (self.session_timeout / 3).clamp(Duration::from_secs(2), Duration::from_secs(10))
    }

    /// Runs `work` while queueing commands. Returns `None` if the task should end.
    async fn run_while_queueing<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(work);
        loop {
            let deadline = self.closing.as_ref().map(|closing| closing.deadline);
            tokio::select! {
                done = &mut work => return Some(done),
                command = self.commands.recv() => self.queue_command(command?),
                () = until(deadline) => return None,
            }
            if self.closing.is_some() && self.identity.is_none() {
                return None;
            }
        }
    }

    fn queue_command(&mut self, command: SessionCommand) {
        if let Some(command) = self.check_command(command) {
            self.queue.push_back(command);
        }
    }

    /// Fails commands that cannot be executed and returns others.
    pub(super) fn check_command(&mut self, command: SessionCommand) -> Option<SessionCommand> {
        if let SessionCommand::Close(caller) = command {
            self.start_closing(caller);
            return None;
        }
        if self.closing.is_some() {
            command.fail(SessionCallError::Closed);
            return None;
        }
        if self.is_stale(command.fence()) {
            command.fail(SessionCallError::SessionExpired);
            return None;
        }
        Some(command)
    }

    fn is_stale(&self, fence: SessionFence) -> bool {
        fence.is_some() && fence != self.identity.as_ref().map(|identity| identity.id)
    }

    fn start_closing(&mut self, caller: oneshot::Sender<()>) {
        for command in self.queue.drain(..) {
            command.fail(SessionCallError::Closed);
        }
        self.closing
            .get_or_insert_with(|| CloseRequest {
                deadline: Instant::now() + CLOSE_TIMEOUT,
                callers: Vec::new(),
            })
            .callers
            .push(caller);
    }

    fn accept_session(&mut self, connection: &ServerConnection) {
        let response = &connection.response;
        let id = SessionId(response.session_id);
        let resumed = self.identity.is_some();
        self.identity = Some(SessionCredentials {
            id,
            password: response.password.clone(),
        });
        self.complained = None;
        self.refused_since = None;
        self.trouble.send_replace(None);
        self.state.send_replace(Session::Connected(id));
        tracing::info!(session = %id, server = %connection.host, resumed, "connected to ZooKeeper");
    }

    fn expire(&mut self) {
        let Some(identity) = self.identity.take() else {
            // A server that does not create a session counts as a failed attempt.
            self.failures += 1;
            return;
        };
        tracing::warn!(session = %identity.id, "ZooKeeper session expired");
        self.state.send_replace(Session::Connecting);
        self.watches.expired();
        for command in std::mem::take(&mut self.queue) {
            self.queue_command(command);
        }
    }

    fn log_failure(&mut self, failure: DialError) {
        self.failures = self.failures.saturating_add(1);
        let due = self
            .complained
            .is_none_or(|last| last.elapsed() >= LOG_INTERVAL);
        if due && self.closing.is_none() {
            self.complained = Some(Instant::now());
            tracing::warn!(
                error = &failure as &dyn std::error::Error,
                "failed to connect to any ZooKeeper server; retrying"
            );
        }
        self.trouble.send_replace(Some(Arc::new(failure)));
    }

    fn finish(mut self) {
        self.state.send_replace(Session::Closed);
        self.watches.close();
        self.commands.close();
        while let Ok(command) = self.commands.try_recv() {
            command.fail(SessionCallError::Closed);
        }
        for command in self.queue {
            command.fail(SessionCallError::Closed);
        }
        for caller in self.closing.into_iter().flat_map(|closing| closing.callers) {
            let _ = caller.send(());
        }
    }
}

/// Sleeps until the deadline, or forever if there is none.
pub(super) async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Returns the retry delay: exponential backoff with jitter.
fn retry_delay(failures: u32) -> Duration {
    let doubled = INITIAL_RETRY_DELAY * 2u32.pow(failures.saturating_sub(1).min(10));
    let most = doubled.min(MAX_RETRY_DELAY);
    let fraction = (random() % 1000) as u32;
    most / 2 + most / 2 * fraction / 1000
}

fn random() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().1
}
