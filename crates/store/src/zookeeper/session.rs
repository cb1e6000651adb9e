//! The task behind all handles of one client: it keeps the session alive across connections.
//!
//! Only a server ends a session. While no server can be reached the session is suspended, however long
//! that lasts, because our ephemeral records may still be there. What was asked waits in a queue meanwhile.
//! When a server says that the session has ended, everything begun in it fails, and a new one is asked for.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nodeyard_model::with_causes;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::call::{Command, Failure, Fence};
use super::dial::{Connection, DialError, dial};
use super::options::Host;
use super::tls::Tls;
use super::watches::Watches;
use super::wire::ConnectRequest;
use crate::tree::{Session, SessionId};

/// How long the end of a session may take; the server ends it by itself later.
const CLOSE_GRACE: Duration = Duration::from_secs(5);
/// How often a lasting failure to connect is worth a line in the log.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct SessionTask {
    pub(super) hosts: watch::Receiver<Vec<Host>>,
    pub(super) commands: mpsc::UnboundedReceiver<Command>,
    pub(super) identity: Option<Identity>,
    pub(super) last_zxid: i64,
    pub(super) watches: Watches,
    pub(super) closing: Option<Closing>,
    /// What waits for a connection.
    pub(super) queue: VecDeque<Command>,
    /// Attempts since a server last answered.
    pub(super) failures: u32,
    pub(super) state: watch::Sender<Session>,
    session_timeout: Duration,
    tls: Option<Tls>,
    trouble: watch::Sender<Option<Arc<DialError>>>,
    complained: Option<Instant>,
    /// Since when every server that answers refuses us.
    refused_since: Option<Instant>,
}

/// What a server needs to know to let us resume a session.
pub(super) struct Identity {
    pub(super) id: SessionId,
    password: Bytes,
}

/// The owner wants to end the session.
pub(super) struct Closing {
    pub(super) deadline: Instant,
    callers: Vec<oneshot::Sender<()>>,
}

impl SessionTask {
    pub(super) fn new(
        commands: mpsc::UnboundedReceiver<Command>,
        hosts: watch::Receiver<Vec<Host>>,
        state: watch::Sender<Session>,
        trouble: watch::Sender<Option<Arc<DialError>>>,
        session_timeout: Duration,
        tls: Option<Tls>,
    ) -> Self {
        Self {
            hosts,
            commands,
            identity: None,
            last_zxid: 0,
            watches: Watches::default(),
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

    /// Ends when the session was closed or the last handle is gone.
    pub(super) async fn run(mut self) {
        while let Some(connection) = self.connect().await {
            if self.serve(connection).await.is_break() {
                break;
            }
        }
        self.finish();
    }

    /// Tries server after server until one takes us. None if there is no more reason to.
    async fn connect(&mut self) -> Option<Connection> {
        'round: loop {
            if self.closing.is_some() && self.identity.is_none() {
                return None;
            }
            if self.failures > 0 {
                let pause = tokio::time::sleep(pause(self.failures));
                self.attend(pause).await?;
            }
            let mut hosts = self.hosts.borrow_and_update().clone();
            hosts.sort_by_cached_key(|_| random());
            let mut failure = DialError::NoHosts;
            let mut refused = false;
            for host in hosts {
                let attempt = dial(host, self.tls.clone(), self.greeting(), self.patience());
                match self.attend(Box::pin(attempt)).await? {
                    Ok(connection) if connection.response.is_expired() => {
                        self.expire();
                        continue 'round;
                    }
                    Ok(connection) => {
                        self.adopt(&connection);
                        return Some(connection);
                    }
                    Err(error) => {
                        tracing::debug!(
                            error = with_causes(&error),
                            "a ZooKeeper server is no help"
                        );
                        refused |= matches!(error, DialError::Refused { .. });
                        failure = error;
                    }
                }
            }
            self.note_refusal(refused);
            self.complain(failure);
        }
    }

    /// Forgets the last transaction that was seen once servers have refused us for longer than a session lasts.
    ///
    /// A server closes the connection of a client that has seen more than the server knows. One that lags behind
    /// catches up in that time; an ensemble restored from a backup never does.
    fn note_refusal(&mut self, refused: bool) {
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

    fn greeting(&self) -> ConnectRequest {
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

    /// Time for one server: enough for a busy one, and several fit into the life of a session.
    fn patience(&self) -> Duration {
        (self.session_timeout / 3).clamp(Duration::from_secs(2), Duration::from_secs(10))
    }

    /// Does `work` while commands are put aside. None if there is no more reason to do it.
    async fn attend<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(work);
        loop {
            let deadline = self.closing.as_ref().map(|closing| closing.deadline);
            tokio::select! {
                done = &mut work => return Some(done),
                command = self.commands.recv() => self.put_aside(command?),
                () = until(deadline) => return None,
            }
            if self.closing.is_some() && self.identity.is_none() {
                return None;
            }
        }
    }

    fn put_aside(&mut self, command: Command) {
        if let Some(command) = self.admit(command) {
            self.queue.push_back(command);
        }
    }

    /// Answers what cannot be done; the rest is handed back.
    pub(super) fn admit(&mut self, command: Command) -> Option<Command> {
        if let Command::Close(caller) = command {
            self.begin_closing(caller);
            return None;
        }
        if self.closing.is_some() {
            command.fail(Failure::Closed);
            return None;
        }
        if self.is_stale(command.fence()) {
            command.fail(Failure::SessionExpired);
            return None;
        }
        Some(command)
    }

    fn is_stale(&self, fence: Fence) -> bool {
        fence.is_some() && fence != self.identity.as_ref().map(|identity| identity.id)
    }

    fn begin_closing(&mut self, caller: oneshot::Sender<()>) {
        for command in self.queue.drain(..) {
            command.fail(Failure::Closed);
        }
        self.closing
            .get_or_insert_with(|| Closing {
                deadline: Instant::now() + CLOSE_GRACE,
                callers: Vec::new(),
            })
            .callers
            .push(caller);
    }

    fn adopt(&mut self, connection: &Connection) {
        let response = &connection.response;
        let id = SessionId(response.session_id);
        let resumed = self.identity.is_some();
        self.identity = Some(Identity {
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
            // A server that refuses to begin a session is as bad as one that does not answer.
            self.failures += 1;
            return;
        };
        tracing::warn!(session = %identity.id, "the ZooKeeper session has expired");
        self.state.send_replace(Session::Connecting);
        self.watches.expired();
        for command in std::mem::take(&mut self.queue) {
            self.put_aside(command);
        }
    }

    fn complain(&mut self, failure: DialError) {
        self.failures = self.failures.saturating_add(1);
        let due = self
            .complained
            .is_none_or(|last| last.elapsed() >= COMPLAIN_EVERY);
        if due && self.closing.is_none() {
            self.complained = Some(Instant::now());
            tracing::warn!(
                error = with_causes(&failure),
                "no ZooKeeper server can be used; trying on"
            );
        }
        self.trouble.send_replace(Some(Arc::new(failure)));
    }

    fn finish(mut self) {
        self.state.send_replace(Session::Closed);
        self.watches.close();
        self.commands.close();
        while let Ok(command) = self.commands.try_recv() {
            command.fail(Failure::Closed);
        }
        for command in self.queue {
            command.fail(Failure::Closed);
        }
        for caller in self.closing.into_iter().flat_map(|closing| closing.callers) {
            let _ = caller.send(());
        }
    }
}

/// Never, if there is no deadline.
pub(super) async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Twice as long after each failure, up to a limit, and a part of it random so that many clients do not
/// come back in step.
fn pause(failures: u32) -> Duration {
    let doubled = FIRST_PAUSE * 2u32.pow(failures.saturating_sub(1).min(10));
    let most = doubled.min(LONGEST_PAUSE);
    let fraction = (random() % 1000) as u32;
    most / 2 + most / 2 * fraction / 1000
}

fn random() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().1
}
