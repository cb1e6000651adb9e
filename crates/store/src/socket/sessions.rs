//! The sessions of clients, which outlive their connections until the session timeout.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use uuid::Uuid;

use crate::embedded::{Embedded, SessionTree};
use crate::tree::Tree;
use crate::zookeeper::wire::{ConnectRequest, ConnectResponse};

/// The bounds of session timeouts.
const MIN_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct ClientSessions {
    pub(super) engine: Arc<Embedded>,
    live: Mutex<HashMap<i64, LiveSession>>,
    begun: Notify,
}

#[derive(Debug)]
struct LiveSession {
    tree: Arc<SessionTree>,
    password: [u8; 16],
    timeout: Duration,
    last_seen: Instant,
    /// Dropped to close the connection that uses the session.
    _connection: oneshot::Sender<()>,
}

/// A session attached to a connection.
#[derive(Debug)]
pub(super) struct AttachedSession {
    pub(super) tree: Arc<SessionTree>,
    pub(super) response: ConnectResponse,
    /// Resolves when the session ends or is taken over by another connection.
    pub(super) lost: oneshot::Receiver<()>,
}

impl ClientSessions {
    pub(super) fn new(engine: Arc<Embedded>) -> Self {
        Self {
            engine,
            live: Mutex::default(),
            begun: Notify::new(),
        }
    }

    /// Creates or resumes a session. Returns `None` if the session does not exist.
    pub(super) fn attach(&self, request: &ConnectRequest) -> Option<AttachedSession> {
        let (connection, lost) = oneshot::channel();
        let mut live = self.lock();
        let session = if request.session_id == 0 {
            let asked = u64::try_from(request.timeout).unwrap_or(0);
            let tree = Arc::new(self.engine.create_session());
            let id = tree.id();
            live.entry(id).insert_entry(LiveSession {
                tree,
                password: Uuid::new_v4().into_bytes(),
                timeout: Duration::from_millis(asked).clamp(MIN_TIMEOUT, MAX_TIMEOUT),
                last_seen: Instant::now(),
                _connection: connection,
            })
        } else {
            use std::collections::hash_map::Entry;
            let Entry::Occupied(mut entry) = live.entry(request.session_id) else {
                return None;
            };
            let session = entry.get_mut();
            if request.password != session.password.as_slice() {
                return None;
            }
            session.last_seen = Instant::now();
            session._connection = connection;
            entry
        };
        let session = session.get();
        let response = ConnectResponse {
            timeout: i32::try_from(session.timeout.as_millis()).unwrap_or(i32::MAX),
            session_id: session.tree.id(),
            password: Bytes::copy_from_slice(&session.password),
            read_only: false,
        };
        let tree = session.tree.clone();
        drop(live);
        self.begun.notify_one();
        Some(AttachedSession {
            tree,
            response,
            lost,
        })
    }

    /// The client has given a sign of life.
    pub(super) fn touch(&self, session: i64) {
        if let Some(live) = self.lock().get_mut(&session) {
            live.last_seen = Instant::now();
        }
    }

    /// Ends a session and waits until its ephemeral records are deleted.
    pub(super) async fn end(&self, session: i64) {
        let live = self.lock().remove(&session);
        if let Some(live) = live {
            live.tree.close().await;
        }
    }

    /// Ends sessions whose clients have been silent too long. Never returns.
    pub(super) async fn expire(&self) {
        loop {
            let now = Instant::now();
            let (silent, next) = {
                let live = self.lock();
                let deadline = |live: &LiveSession| live.last_seen + live.timeout;
                let silent: Vec<i64> = live
                    .iter()
                    .filter(|(_, live)| deadline(live) <= now)
                    .map(|(id, _)| *id)
                    .collect();
                let next = live.values().map(deadline).filter(|at| *at > now).min();
                (silent, next)
            };
            for session in silent {
                tracing::info!(session = format_args!("{session:#x}"), "session expired");
                self.end(session).await;
            }
            let wake = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wake => {}
                () = self.begun.notified() => {}
            }
        }
    }

    /// A panic while the lock is held cannot leave the map half changed, so poison is ignored.
    fn lock(&self) -> MutexGuard<'_, HashMap<i64, LiveSession>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
