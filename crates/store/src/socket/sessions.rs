//! The sessions of clients, which outlive their connections for a while.

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

/// A client gets the session timeout it asks for, within these bounds.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Sessions {
    pub(super) engine: Arc<Embedded>,
    live: Mutex<HashMap<i64, Live>>,
    begun: Notify,
}

#[derive(Debug)]
struct Live {
    tree: Arc<SessionTree>,
    password: [u8; 16],
    timeout: Duration,
    heard: Instant,
    /// Dropped to end the connection that uses the session.
    _connection: oneshot::Sender<()>,
}

/// A session in the hands of a connection.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) tree: Arc<SessionTree>,
    pub(super) response: ConnectResponse,
    /// Resolves when the session has ended or another connection has taken it.
    pub(super) lost: oneshot::Receiver<()>,
}

impl Sessions {
    pub(super) fn new(engine: Arc<Embedded>) -> Self {
        Self {
            engine,
            live: Mutex::default(),
            begun: Notify::new(),
        }
    }

    /// Begins a session, or takes up one whose client has come back. None if there is no such session.
    pub(super) fn attach(&self, request: &ConnectRequest) -> Option<Attached> {
        let (connection, lost) = oneshot::channel();
        let mut live = self.lock();
        let session = if request.session_id == 0 {
            let asked = u64::try_from(request.timeout).unwrap_or(0);
            let tree = Arc::new(self.engine.begin_session());
            let id = tree.id();
            live.entry(id).insert_entry(Live {
                tree,
                password: Uuid::new_v4().into_bytes(),
                timeout: Duration::from_millis(asked).clamp(SHORTEST, LONGEST),
                heard: Instant::now(),
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
            session.heard = Instant::now();
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
        Some(Attached {
            tree,
            response,
            lost,
        })
    }

    /// The client has given a sign of life.
    pub(super) fn heard(&self, session: i64) {
        if let Some(live) = self.lock().get_mut(&session) {
            live.heard = Instant::now();
        }
    }

    /// Ends a session; its ephemeral records are gone when this returns.
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
                let deadline = |live: &Live| live.heard + live.timeout;
                let silent: Vec<i64> = live
                    .iter()
                    .filter(|(_, live)| deadline(live) <= now)
                    .map(|(id, _)| *id)
                    .collect();
                let next = live.values().map(deadline).filter(|at| *at > now).min();
                (silent, next)
            };
            for session in silent {
                tracing::info!(
                    session = format_args!("{session:#x}"),
                    "client was silent too long"
                );
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
    fn lock(&self) -> MutexGuard<'_, HashMap<i64, Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
