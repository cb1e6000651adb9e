//! The writer thread.
//!
//! It applies all queued requests in order, commits them as one group, notifies watchers, and then replies.
//!
//! A group that changed only ephemeral records is committed without syncing, which makes locks fast: these records end
//! with this process anyway, and commits stay ordered. Such changes are kept in memory until the next durable commit.
//!
//! After an I/O error redb must be reopened, which reverts to the last durable commit. The writer then reapplies the
//! non-durable changes and continues. A failed group may have been committed nevertheless; this is determined by the
//! transaction id in the file, and its callers receive [`Error::ConnectionLoss`].

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{RwLock, oneshot, watch};

use crate::error::{Error, Result};
use crate::tree::{Op, Session};
use crate::watch::WatchEvent;

use super::batch::{Batch, PendingChanges, Sessions, WriteOutcome};
use super::database::StoreFile;
use super::file_error::{StorageOperation, StoreFileError};
use super::hub::WatchHub;
use super::snapshot::Snapshot;
use super::storage_file::StorageFile;

/// The maximum number of requests in one commit.
const MAX_GROUP_LEN: usize = 4096;

/// The maximum size of non-durable changes.
const MAX_UNSYNCED_BYTES: usize = 4 * 1024 * 1024;

/// The free disk space below which writes fail, so that the disk does not become full during a commit.
const MIN_FREE_SPACE: u64 = 16 * 1024 * 1024;

/// The delay before reopening a file that could not be opened or written.
const REOPEN_INTERVAL: Duration = Duration::from_secs(1);

/// State shared by handles and the writer.
#[derive(Debug)]
pub(super) struct WriterShared {
    /// The latest state. Replaced under the write lock while watchers are notified, so that notification and visibility
    /// are atomic.
    pub(super) current: RwLock<Arc<Snapshot>>,
    pub(super) hub: WatchHub,
}

#[derive(Debug)]
pub(super) enum WriterCommand {
    Begin {
        session: i64,
        state: Arc<watch::Sender<Session>>,
    },
    Write(QueuedWrite),
    End {
        session: i64,
        done: Option<oneshot::Sender<()>>,
    },
    /// A reader failed to read in this generation of the file.
    Recover {
        generation: u64,
        done: oneshot::Sender<()>,
    },
    Close {
        done: oneshot::Sender<()>,
    },
}

#[derive(Debug)]
pub(super) struct QueuedWrite {
    pub(super) session: i64,
    pub(super) work: WriteOps,
    pub(super) reply: oneshot::Sender<Result<Vec<WriteOutcome>>>,
    /// Dropped after the reply was sent.
    pub(super) finished_on_drop: FinishedOnDrop,
}

#[derive(Debug)]
pub(crate) enum WriteOps {
    One(Op),
    All(Vec<Op>),
}

/// Counts a write as finished when it is dropped.
#[derive(Debug)]
pub(super) struct FinishedOnDrop(pub(super) Arc<watch::Sender<u64>>);

impl Drop for FinishedOnDrop {
    fn drop(&mut self) {
        self.0.send_modify(|finished| *finished += 1);
    }
}

#[derive(Debug)]
pub(super) struct StoreWriter {
    storage_file: Box<dyn StorageFile>,
    file: Arc<Path>,
    store: Result<StoreFile, ReopenState>,
    generation: u64,
    opened_at: Instant,
    /// The last published transaction id.
    zxid: i64,
    sessions: Sessions,
    states: HashMap<i64, Arc<watch::Sender<Session>>>,
    /// Closed sessions whose records could not be deleted yet.
    ending: Vec<i64>,
    /// Non-durable changes and their size.
    unsynced: PendingChanges,
    unsynced_size: usize,
    shared: Arc<WriterShared>,
}

/// Why the file is not open, and when to reopen it.
#[derive(Debug)]
struct ReopenState {
    file_error: StoreFileError,
    retry_at: Instant,
    /// The group whose commit failed, with unknown outcome.
    uncertain: Option<CommitGroup>,
}

/// The changes of a group of requests.
#[derive(Debug)]
struct CommitGroup {
    zxid: i64,
    changes: PendingChanges,
    events: Vec<WatchEvent>,
    ended: HashSet<i64>,
}

/// Replies to be sent after the group is committed.
#[derive(Default)]
struct HeldReplies {
    writes: Vec<HeldReply>,
    others: Vec<oneshot::Sender<()>>,
}

struct HeldReply {
    reply: oneshot::Sender<Result<Vec<WriteOutcome>>>,
    result: Result<Vec<WriteOutcome>>,
    finished_on_drop: FinishedOnDrop,
}

/// An error committing a group.
enum GroupError {
    /// The commit was not attempted.
    NotAttempted(StoreFileError),
    /// Reading the current state failed.
    ReadFailed(StoreFileError),
    /// The commit failed, with unknown outcome.
    CommitFailed(StoreFileError),
}

impl StoreWriter {
    pub(super) fn new(
        storage_file: Box<dyn StorageFile>,
        store: StoreFile,
        zxid: i64,
        shared: Arc<WriterShared>,
    ) -> Self {
        Self {
            file: storage_file.name(),
            storage_file,
            store: Ok(store),
            generation: 0,
            opened_at: Instant::now(),
            zxid,
            sessions: Sessions::new(),
            states: HashMap::new(),
            ending: Vec::new(),
            unsynced: PendingChanges::default(),
            unsynced_size: 0,
            shared,
        }
    }

    /// Runs until closed, or until all senders are dropped.
    pub(super) fn run(mut self, queue: Receiver<WriterCommand>) {
        let mut closing = None;
        while closing.is_none() {
            let mut group = Vec::new();
            let first = if self.store.is_ok() && self.ending.is_empty() {
                queue.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                queue.recv_timeout(REOPEN_INTERVAL)
            };
            match first {
                Ok(first) => group.push(first),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            while group.len() < MAX_GROUP_LEN
                && let Ok(next) = queue.try_recv()
            {
                group.push(next);
            }
            closing = self.process_group(group);
        }
        self.ending.extend(self.sessions.keys());
        self.process_group(Vec::new());
        if let Ok(store) = &self.store
            && let Err(file_error) = store.write_durably(&PendingChanges::default(), self.zxid)
        {
            // Only deletions of ephemeral records are lost, which are repeated when the file is opened.
            tracing::warn!(file = %self.file.display(), error = %file_error, "failed to close store");
        }
        drop(self);
        // From here on handles see that the store is closed.
        drop(queue);
        if let Some(done) = closing {
            let _ = done.send(());
        }
    }

    /// Processes one group. Returns the caller to notify if the store is to be closed.
    fn process_group(&mut self, requests: Vec<WriterCommand>) -> Option<oneshot::Sender<()>> {
        self.reopen();
        for request in &requests {
            if let WriterCommand::Begin { session, state } = request {
                self.sessions.entry(*session).or_default();
                self.states.insert(*session, state.clone());
            }
        }

        let snapshot = self.shared.current.blocking_read().clone();
        let mut batch = Batch::new(&snapshot, &self.sessions, now());
        let mut held_replies = HeldReplies::default();
        let mut ended: HashSet<i64> = self.ending.drain(..).collect();
        for session in &ended {
            // Fails only on read errors, which the batch stores.
            let _ = batch.end_session(*session);
        }
        let mut closing = None;
        let mut unreadable = false;
        for request in requests {
            match request {
                WriterCommand::Begin { .. } => {}
                WriterCommand::Write(write) => {
                    let session = write.session;
                    let alive = self.sessions.contains_key(&session) && !ended.contains(&session);
                    let result = match write.work {
                        _ if !alive => Err(Error::SessionExpired),
                        WriteOps::One(op) => batch.one(session, op).map(|outcome| vec![outcome]),
                        WriteOps::All(ops) => batch.all(session, ops),
                    };
                    held_replies.writes.push(HeldReply {
                        reply: write.reply,
                        result,
                        finished_on_drop: write.finished_on_drop,
                    });
                }
                WriterCommand::End { session, done } => {
                    if ended.insert(session) {
                        let _ = batch.end_session(session);
                    }
                    held_replies.others.extend(done);
                }
                WriterCommand::Recover { generation, done } => {
                    unreadable |= generation == self.generation;
                    held_replies.others.push(done);
                }
                WriterCommand::Close { done } => closing = Some(done),
            }
        }

        let Batch {
            zxid,
            changes,
            events,
            durable,
            file_error,
            ..
        } = batch;
        let group = CommitGroup {
            zxid,
            changes,
            events,
            ended,
        };
        let written = match file_error {
            Some(file_error) => Err(GroupError::ReadFailed(file_error)),
            None => self.write(&group, durable),
        };
        self.finish_group(group, written, unreadable, &mut held_replies);
        held_replies.send();
        closing
    }

    /// Publishes a committed group, or fails its replies and reopens the file.
    fn finish_group(
        &mut self,
        group: CommitGroup,
        written: Result<(), GroupError>,
        unreadable: bool,
        held_replies: &mut HeldReplies,
    ) {
        match written {
            Ok(()) => {
                self.publish_group(group);
                if unreadable && self.opened_at.elapsed() >= REOPEN_INTERVAL {
                    self.mark_failed(StoreFileError::Reader, None);
                    self.reopen();
                }
            }
            Err(GroupError::NotAttempted(file_error)) => {
                self.ending.extend(group.ended);
                held_replies.fail(|| file_error.to_error(StorageOperation::Write, &self.file));
            }
            Err(GroupError::ReadFailed(file_error)) => {
                self.ending.extend(group.ended);
                self.mark_failed(file_error.clone(), None);
                self.reopen();
                held_replies.fail(|| file_error.to_error(StorageOperation::Write, &self.file));
            }
            Err(GroupError::CommitFailed(file_error)) => {
                let failed = group.zxid;
                self.mark_failed(file_error.clone(), Some(group));
                self.reopen();
                if self.store.is_ok() && self.zxid < failed {
                    held_replies.fail(|| file_error.to_error(StorageOperation::Write, &self.file));
                } else {
                    held_replies.fail(|| Error::ConnectionLoss);
                }
            }
        }
    }

    fn write(&mut self, group: &CommitGroup, durable: bool) -> Result<(), GroupError> {
        let store = match &self.store {
            Ok(store) => store,
            Err(reopen_state) => {
                return Err(GroupError::NotAttempted(reopen_state.file_error.clone()));
            }
        };
        let changes = &group.changes;
        if changes.is_empty() {
            return Ok(());
        }
        let size = changes.size();
        if durable || self.unsynced_size + size > MAX_UNSYNCED_BYTES {
            let needed = MIN_FREE_SPACE + 4 * size as u64;
            if let Some(free) = self.storage_file.free()
                && free < needed
            {
                return Err(GroupError::NotAttempted(StoreFileError::Full {
                    free,
                    needed,
                }));
            }
            let written = store.write_durably(changes, group.zxid);
            written.map_err(GroupError::CommitFailed)?;
            self.unsynced = PendingChanges::default();
            self.unsynced_size = 0;
        } else {
            store
                .write_non_durably(changes)
                .map_err(GroupError::CommitFailed)?;
            self.unsynced.extend(changes.clone());
            self.unsynced_size += size;
        }
        Ok(())
    }

    /// Publishes a committed group.
    fn publish_group(&mut self, group: CommitGroup) {
        if !group.changes.is_empty()
            && let Ok(store) = &self.store
        {
            self.zxid = group.zxid;
            match store.snapshot(self.zxid) {
                Ok(snapshot) => self.publish(Some(snapshot), &group.events),
                Err(file_error) => {
                    self.publish(None, &group.events);
                    self.mark_failed(file_error, None);
                    self.reopen();
                }
            }
        }
        self.update_sessions(group);
    }

    fn publish(&self, snapshot: Option<Snapshot>, events: &[WatchEvent]) {
        let mut current = self.shared.current.blocking_write();
        if let Some(snapshot) = snapshot {
            *current = Arc::new(snapshot);
        }
        self.shared.hub.publish(events);
    }

    /// Updates the ephemeral records of sessions and removes ended sessions.
    fn update_sessions(&mut self, group: CommitGroup) {
        for (path, ephemeral) in group.changes.ephemerals {
            if let Some(owned) = self.sessions.get_mut(&ephemeral.owner) {
                if ephemeral.alive {
                    owned.insert(path);
                } else {
                    owned.remove(&path);
                }
            }
        }
        for session in group.ended {
            self.sessions.remove(&session);
            self.shared.hub.remove_session(session);
            if let Some(state) = self.states.remove(&session) {
                state.send_replace(Session::Closed);
            }
        }
    }

    fn mark_failed(&mut self, file_error: StoreFileError, uncertain: Option<CommitGroup>) {
        let file = self.file.display();
        tracing::warn!(%file, error = %file_error, "store file failed; reopening it");
        let reopen_state = ReopenState {
            file_error,
            retry_at: Instant::now(),
            uncertain,
        };
        if let Ok(store) = std::mem::replace(&mut self.store, Err(reopen_state)) {
            store.close();
        }
    }

    /// Reopens the file if it is not open and the delay has passed.
    fn reopen(&mut self) {
        let Err(reopen_state) = &mut self.store else {
            return;
        };
        if Instant::now() < reopen_state.retry_at {
            return;
        }
        let uncertain = reopen_state.uncertain.take();
        self.opened_at = Instant::now();
        match self.recover(uncertain.as_ref()) {
            Ok((store, snapshot, was_committed)) => {
                self.store = Ok(store);
                match uncertain {
                    Some(group) if was_committed => {
                        self.unsynced = PendingChanges::default();
                        self.unsynced_size = 0;
                        self.zxid = group.zxid;
                        self.publish(Some(snapshot), &group.events);
                        self.update_sessions(group);
                    }
                    uncertain => {
                        self.publish(Some(snapshot), &[]);
                        self.ending
                            .extend(uncertain.into_iter().flat_map(|group| group.ended));
                    }
                }
            }
            Err(file_error) => {
                let file = self.file.display();
                tracing::error!(%file, error = %file_error, "failed to reopen store file; retrying");
                self.store = Err(ReopenState {
                    file_error,
                    retry_at: Instant::now() + REOPEN_INTERVAL,
                    uncertain,
                });
            }
        }
    }

    /// Opens the file and restores the last published state, or that of the uncertain group if it was committed.
    fn recover(
        &mut self,
        uncertain: Option<&CommitGroup>,
    ) -> Result<(StoreFile, Snapshot, bool), StoreFileError> {
        self.generation += 1;
        let store = StoreFile::open(&*self.storage_file, self.generation)?;
        let durable = store.durable_zxid()?;
        let was_committed = uncertain.filter(|group| group.zxid == durable);
        if was_committed.is_none() && !self.unsynced.is_empty() {
            store.write_non_durably(&self.unsynced)?;
        }
        let snapshot = store.snapshot(was_committed.map_or(self.zxid, |group| group.zxid))?;
        Ok((store, snapshot, was_committed.is_some()))
    }
}

impl HeldReplies {
    /// Replaces all results of writes, including errors, which are based on a state that was not committed.
    fn fail(&mut self, error: impl Fn() -> Error) {
        for answer in &mut self.writes {
            answer.result = Err(error());
        }
    }

    fn send(self) {
        for answer in self.writes {
            // Fails if the caller was dropped.
            let _ = answer.reply.send(answer.result);
            drop(answer.finished_on_drop);
        }
        for done in self.others {
            let _ = done.send(());
        }
    }
}

pub(super) fn now() -> i64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |elapsed| {
            i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX)
        })
}
