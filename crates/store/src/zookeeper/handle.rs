//! [`ZooKeeper`]: a handle that sends operations to the session task.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::{mpsc, oneshot, watch};

use super::call::{
    CallCounter, CallResult, PendingCall, SessionCallError, SessionCommand, SessionFence,
    WatchRequest,
};
use super::dial::DialError;
use super::options::{Host, Options};
use super::session::SessionTask;
use super::translate::{
    absolute, absolute_to_create, backend, error, multi_op, multi_outcomes, number, relative,
    unexpected,
};
use super::watches::WatchMember;
use super::wire::{Create, ErrorCode, Request, Response};
use crate::error::{Error, Result};
use crate::limits::{check_multi, check_size};
use crate::path::TreePath;
use crate::tree::{
    CreateMode, Created, Listing, Op, OpOutcome, Record, Session, SessionId, Stat, Tree, Version,
};
use crate::watch::{self as tree_watch, Once, Watcher};

/// The maximum number of concurrent reads of a [`Tree::list`].
const LIST_WINDOW: usize = 256;

/// A handle on a ZooKeeper session. Clones share the session. Dropping the last one closes the connection, and the
/// session expires; [`Tree::close`] ends it immediately.
#[derive(Clone)]
pub struct ZooKeeper {
    commands: mpsc::UnboundedSender<SessionCommand>,
    session: watch::Receiver<Session>,
    hosts: Arc<watch::Sender<Vec<Host>>>,
    trouble: watch::Receiver<Option<Arc<DialError>>>,
    /// Empty for none.
    chroot: Arc<str>,
    pin: Option<SessionId>,
    /// The number of pending calls.
    calls: Arc<AtomicUsize>,
}

impl fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeper")
            .field("session", &*self.session.borrow())
            .field("chroot", &self.chroot)
            .field("pin", &self.pin)
            .finish_non_exhaustive()
    }
}

impl ZooKeeper {
    /// Starts connecting in the background, with retries. Must be called inside a tokio runtime. Operations
    /// may be started immediately; they wait for the connection.
    pub fn connect(options: Options) -> Arc<Self> {
        let (commands, command_queue) = mpsc::unbounded_channel();
        let (hosts, hosts_seen) = watch::channel(options.hosts);
        let (state, session) = watch::channel(Session::Connecting);
        let (trouble_sender, trouble) = watch::channel(None);
        let task = SessionTask::new(
            command_queue,
            hosts_seen,
            state,
            trouble_sender,
            options.session_timeout,
            options.tls,
        );
        tokio::spawn(task.run());
        Arc::new(Self {
            commands,
            session,
            hosts: Arc::new(hosts),
            trouble,
            chroot: prefix(&options.chroot),
            pin: None,
            calls: Arc::default(),
        })
    }

    /// Waits until connected. On timeout, returns the error of the last attempt.
    pub async fn connected(&self, patience: Duration) -> Result<SessionId> {
        let mut session = self.session.clone();
        let settled =
            session.wait_for(|state| matches!(state, Session::Connected(_) | Session::Closed));
        match tokio::time::timeout(patience, settled).await {
            Ok(Ok(state)) => state.id().ok_or(Error::Closed),
            Ok(Err(_)) => Err(Error::Closed),
            Err(elapsed) => {
                let context = format!("no ZooKeeper server was reachable within {patience:?}");
                let trouble = self.trouble.borrow().clone();
                Err(match trouble {
                    Some(trouble) => backend(context, trouble),
                    None => backend(context, elapsed),
                })
            }
        }
    }

    /// Replaces the list of servers. Reconnects if the current server is not in the new list; the
    /// session stays, so all must belong to the same ensemble.
    pub fn set_hosts(&self, hosts: Vec<Host>) {
        self.hosts.send_if_modified(|current| {
            let changed = *current != hosts;
            *current = hosts;
            changed
        });
    }

    /// Returns a handle on the same session with a chroot, which is an absolute path on
    /// the server. It must exist before anything can be created in it.
    pub fn with_chroot(&self, chroot: &TreePath) -> Arc<Self> {
        Arc::new(Self {
            chroot: prefix(chroot),
            ..self.clone()
        })
    }

    fn fence(&self) -> Result<SessionFence> {
        let state = *self.session.borrow();
        match (self.pin, state) {
            (_, Session::Closed) => Err(Error::Closed),
            (Some(pin), state) if state.id() != Some(pin) => Err(Error::SessionExpired),
            (_, state) => Ok(state.id()),
        }
    }

    /// Sends a request to the session task without waiting.
    fn begin(
        &self,
        request: Request,
        fence: SessionFence,
        once: Option<oneshot::Sender<()>>,
    ) -> oneshot::Receiver<CallResult> {
        let (reply, receiver) = oneshot::channel();
        let call = PendingCall {
            request,
            fence,
            reply,
            once,
            broke: 0,
            _counted: CallCounter::new(&self.calls),
        };
        // If the task has ended, the receiver sees the dropped sender.
        let _ = self.commands.send(SessionCommand::Call(call));
        receiver
    }

    async fn call(&self, request: Request) -> Result<CallResult> {
        let receiver = self.begin(request, self.fence()?, None);
        Ok(receiver.await.unwrap_or(Err(SessionCallError::Closed)))
    }

    fn absolute(&self, path: &TreePath) -> String {
        absolute(&self.chroot, path)
    }
}

fn prefix(chroot: &TreePath) -> Arc<str> {
    Arc::from(chroot.as_str().trim_end_matches('/'))
}

fn record(outcome: CallResult, path: &TreePath) -> Result<Record> {
    match outcome {
        Ok(Response::GetData { data, stat }) => Ok(Record { data, stat }),
        Ok(_) => Err(unexpected(path)),
        Err(failure) => Err(error(failure, path)),
    }
}

fn existing(outcome: &CallResult, path: &TreePath) -> Result<Option<Stat>> {
    match outcome {
        Ok(Response::Exists(stat)) => Ok(Some(*stat)),
        Ok(_) => Err(unexpected(path)),
        Err(SessionCallError::Server(ErrorCode::NoNode)) => Ok(None),
        Err(failure) => Err(error(*failure, path)),
    }
}

#[async_trait]
impl Tree for ZooKeeper {
    async fn create(&self, path: &TreePath, data: Bytes, mode: CreateMode) -> Result<Created> {
        check_size(&self.chroot, path, data.len())?;
        let request = Request::Create2(Create {
            path: absolute_to_create(&self.chroot, path, mode),
            data,
            mode,
        });
        match self.call(request).await? {
            Ok(Response::Create2 { path, stat }) => Ok(Created {
                path: relative(&self.chroot, &path)?,
                stat,
            }),
            Ok(_) => Err(unexpected(path)),
            Err(failure) => Err(error(failure, path)),
        }
    }

    async fn get(&self, path: &TreePath) -> Result<Record> {
        let request = Request::GetData {
            path: self.absolute(path),
            watch: false,
        };
        record(self.call(request).await?, path)
    }

    async fn stat(&self, path: &TreePath) -> Result<Option<Stat>> {
        let request = Request::Exists {
            path: self.absolute(path),
            watch: false,
        };
        existing(&self.call(request).await?, path)
    }

    async fn set(&self, path: &TreePath, data: Bytes, version: Version) -> Result<Stat> {
        check_size(&self.chroot, path, data.len())?;
        let request = Request::SetData {
            path: self.absolute(path),
            data,
            version: number(version),
        };
        match self.call(request).await? {
            Ok(Response::SetData(stat)) => Ok(stat),
            Ok(_) => Err(unexpected(path)),
            Err(failure) => Err(error(failure, path)),
        }
    }

    async fn delete(&self, path: &TreePath, version: Version) -> Result<()> {
        let request = Request::Delete {
            path: self.absolute(path),
            version: number(version),
        };
        match self.call(request).await? {
            Ok(_) => Ok(()),
            Err(failure) => Err(error(failure, path)),
        }
    }

    async fn children(&self, path: &TreePath) -> Result<Listing> {
        let request = Request::GetChildren2 {
            path: self.absolute(path),
            watch: false,
        };
        match self.call(request).await? {
            Ok(Response::GetChildren2 { mut names, stat }) => {
                names.sort_unstable();
                Ok(Listing { names, stat })
            }
            Ok(_) => Err(unexpected(path)),
            Err(failure) => Err(error(failure, path)),
        }
    }

    async fn list(&self, path: &TreePath) -> Result<Vec<(String, Record)>> {
        let fence = self.fence()?;
        let names = self.children(path).await?.names;
        // All reads must be in the session that the list was started in.
        let read = |name: String| async move {
            let child = path.join(&name)?;
            let request = Request::GetData {
                path: self.absolute(&child),
                watch: false,
            };
            let receiver = self.begin(request, fence, None);
            match record(
                receiver.await.unwrap_or(Err(SessionCallError::Closed)),
                &child,
            ) {
                Ok(record) => Ok(Some((name, record))),
                Err(error) if error.is_no_node() => Ok(None),
                Err(error) => Err(error),
            }
        };
        stream::iter(names)
            .map(read)
            .buffered(LIST_WINDOW)
            .try_filter_map(|found| std::future::ready(Ok(found)))
            .try_collect()
            .await
    }

    async fn multi(&self, ops: Vec<Op>) -> Result<Vec<OpOutcome>> {
        check_multi(&self.chroot, &ops)?;
        let request = Request::Multi(ops.iter().map(|op| multi_op(&self.chroot, op)).collect());
        match self.call(request).await? {
            Ok(Response::Multi(results)) => multi_outcomes(&self.chroot, &ops, results),
            Ok(_) => Err(unexpected(&TreePath::root())),
            Err(failure) => Err(error(
                failure,
                ops.first().map_or(&TreePath::root(), Op::path),
            )),
        }
    }

    async fn watch(&self, path: &TreePath) -> Result<Watcher> {
        let fence = self.fence()?;
        let (sender, watcher) = tree_watch::channel();
        let (reply, settled) = oneshot::channel();
        let call = WatchRequest {
            path: self.absolute(path),
            member: WatchMember {
                sender,
                chroot: self.chroot.clone(),
            },
            fence,
            reply,
        };
        let _ = self.commands.send(SessionCommand::Watch(call));
        match settled.await.unwrap_or(Err(SessionCallError::Closed)) {
            Ok(()) => Ok(watcher),
            Err(failure) => Err(error(failure, path)),
        }
    }

    async fn watch_once(&self, path: &TreePath) -> Result<(Option<Stat>, Once)> {
        let (sender, once) = Once::channel();
        let request = Request::Exists {
            path: self.absolute(path),
            watch: true,
        };
        let receiver = self.begin(request, self.fence()?, Some(sender));
        let stat = existing(
            &receiver.await.unwrap_or(Err(SessionCallError::Closed)),
            path,
        )?;
        Ok((stat, once))
    }

    async fn sync(&self) -> Result<()> {
        let path = TreePath::root();
        let request = Request::Sync {
            path: self.absolute(&path),
        };
        match self.call(request).await? {
            Ok(_) => Ok(()),
            Err(failure) => Err(error(failure, &path)),
        }
    }

    fn unanswered(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    fn session(&self) -> watch::Receiver<Session> {
        self.session.clone()
    }

    fn pinned(&self, session: SessionId) -> Arc<dyn Tree> {
        Arc::new(Self {
            pin: Some(session),
            ..self.clone()
        })
    }

    async fn close(&self) {
        let current = *self.session.borrow();
        if self.pin.is_some_and(|pin| current.id() != Some(pin)) {
            return;
        }
        let (reply, closed) = oneshot::channel();
        if self.commands.send(SessionCommand::Close(reply)).is_ok() {
            let _ = closed.await;
        }
    }
}
