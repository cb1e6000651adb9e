//! The one thread that writes.
//!
//! It takes everything that waits in its queue, applies it in order, writes it with one commit, tells
//! those who watch, and only then answers. While the disk works, the next group gathers.
//!
//! A group that changed nothing but ephemeral records is committed without waiting for the disk: such
//! records end with this process anyway, and the storage keeps the order of commits, so a crash can only
//! take back the newest of them. That makes locks fast. Those commits are remembered until the next
//! durable one, because of what follows.
//!
//! The storage refuses all work after an I/O error until it is opened again, and opening goes back to the
//! last durable commit. So after a failure the file is opened again, what was committed without the
//! disk is applied once more, and reading and writing go on. A failed group may have reached the disk
//! all the same; the transaction number in the file tells, and the group counts as committed then,
//! although those who asked were told that they cannot know.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::{RwLock, oneshot, watch};

use crate::error::{Error, Result};
use crate::tree::{Op, Session};
use crate::watch::WatchEvent;

use super::batch::{Batch, Changes, Outcome, Sessions};
use super::database::Store;
use super::fault::{Doing, Fault};
use super::hub::Hub;
use super::medium::Medium;
use super::snapshot::Snapshot;

/// Requests in one commit: enough to share the cost of the disk, few enough to answer soon.
const GROUP: usize = 4096;

/// Bytes of changes that may wait for a durable commit.
const UNSYNCED: usize = 4 * 1024 * 1024;

/// Free space below which nothing is written: the storage should not meet a full disk half way.
const RESERVE: u64 = 16 * 1024 * 1024;

/// How long to leave a file alone that could not be opened again or written to.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);

/// What handles and the writer share.
#[derive(Debug)]
pub(super) struct Shared {
    /// The newest state. It is replaced while the lock is held for writing and the watchers are told,
    /// so whoever hears of a change reads it, and whoever reads a change has been told.
    pub(super) current: RwLock<Arc<Snapshot>>,
    pub(super) hub: Hub,
}

#[derive(Debug)]
pub(super) enum Request {
    Begin {
        session: i64,
        state: Arc<watch::Sender<Session>>,
    },
    Write(Write),
    End {
        session: i64,
        done: Option<oneshot::Sender<()>>,
    },
    /// A reader could not read in this generation of the file.
    Recover {
        generation: u64,
        done: oneshot::Sender<()>,
    },
    Close {
        done: oneshot::Sender<()>,
    },
}

#[derive(Debug)]
pub(super) struct Write {
    pub(super) session: i64,
    pub(super) work: Work,
    pub(super) reply: oneshot::Sender<Result<Vec<Outcome>>>,
    /// Dropped after the reply.
    pub(super) receipt: Receipt,
}

#[derive(Debug)]
pub(crate) enum Work {
    One(Op),
    All(Vec<Op>),
}

/// Counts a write as finished when it is dropped.
#[derive(Debug)]
pub(super) struct Receipt(pub(super) Arc<watch::Sender<u64>>);

impl Drop for Receipt {
    fn drop(&mut self) {
        self.0.send_modify(|finished| *finished += 1);
    }
}

#[derive(Debug)]
pub(super) struct Writer {
    medium: Box<dyn Medium>,
    file: Arc<Path>,
    store: Result<Store, Broken>,
    generation: u64,
    opened_at: Instant,
    /// The last transaction that was published.
    zxid: i64,
    sessions: Sessions,
    states: HashMap<i64, Arc<watch::Sender<Session>>>,
    /// Sessions whose end could not be written yet.
    ending: Vec<i64>,
    /// What was committed since the last durable commit, and its size.
    unsynced: Changes,
    unsynced_size: usize,
    shared: Arc<Shared>,
}

/// Why the file is not open, and when to try again.
#[derive(Debug)]
struct Broken {
    fault: Fault,
    retry_at: Instant,
    /// The group whose commit failed.
    doubt: Option<Group>,
}

/// The effects of a group of requests.
#[derive(Debug)]
struct Group {
    zxid: i64,
    changes: Changes,
    events: Vec<WatchEvent>,
    ended: HashSet<i64>,
}

/// Answers held back until the group is committed.
#[derive(Default)]
struct Answers {
    writes: Vec<Answer>,
    others: Vec<oneshot::Sender<()>>,
}

struct Answer {
    reply: oneshot::Sender<Result<Vec<Outcome>>>,
    result: Result<Vec<Outcome>>,
    receipt: Receipt,
}

/// How a write of a group failed.
enum Failure {
    /// Nothing was touched.
    Refused(Fault),
    /// The state it builds on could not be read.
    Unread(Fault),
    /// The commit failed, if it did not arrive after all.
    Unwritten(Fault),
}

impl Writer {
    pub(super) fn new(
        medium: Box<dyn Medium>,
        store: Store,
        zxid: i64,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            file: medium.name(),
            medium,
            store: Ok(store),
            generation: 0,
            opened_at: Instant::now(),
            zxid,
            sessions: Sessions::new(),
            states: HashMap::new(),
            ending: Vec::new(),
            unsynced: Changes::default(),
            unsynced_size: 0,
            shared,
        }
    }

    /// Works until told to close, or until nobody can send any more.
    pub(super) fn run(mut self, queue: Receiver<Request>) {
        let mut closing = None;
        while closing.is_none() {
            let mut group = Vec::new();
            let first = if self.store.is_ok() && self.ending.is_empty() {
                queue.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                queue.recv_timeout(REOPEN_PAUSE)
            };
            match first {
                Ok(first) => group.push(first),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            while group.len() < GROUP
                && let Ok(next) = queue.try_recv()
            {
                group.push(next);
            }
            closing = self.turn(group);
        }
        self.ending.extend(self.sessions.keys());
        self.turn(Vec::new());
        if let Ok(store) = &self.store
            && let Err(fault) = store.write_durably(&Changes::default(), self.zxid)
        {
            // Only ephemeral records are left in it, and they go when it is opened.
            tracing::warn!(file = %self.file.display(), error = %fault, "closing the store failed");
        }
        drop(self);
        // From here on handles see that the store is closed.
        drop(queue);
        if let Some(done) = closing {
            let _ = done.send(());
        }
    }

    /// Handles one group. Returns whom to tell if the store is to be closed after it.
    fn turn(&mut self, requests: Vec<Request>) -> Option<oneshot::Sender<()>> {
        self.reopen();
        for request in &requests {
            if let Request::Begin { session, state } = request {
                self.sessions.entry(*session).or_default();
                self.states.insert(*session, state.clone());
            }
        }

        let snapshot = self.shared.current.blocking_read().clone();
        let mut batch = Batch::new(&snapshot, &self.sessions, now());
        let mut answers = Answers::default();
        let mut ended: HashSet<i64> = self.ending.drain(..).collect();
        for session in &ended {
            // A failure is one of the file, which the batch remembers.
            let _ = batch.end_session(*session);
        }
        let mut closing = None;
        let mut unreadable = false;
        for request in requests {
            match request {
                Request::Begin { .. } => {}
                Request::Write(write) => {
                    let session = write.session;
                    let alive = self.sessions.contains_key(&session) && !ended.contains(&session);
                    let result = match write.work {
                        _ if !alive => Err(Error::SessionExpired),
                        Work::One(op) => batch.one(session, op).map(|outcome| vec![outcome]),
                        Work::All(ops) => batch.all(session, ops),
                    };
                    answers.writes.push(Answer {
                        reply: write.reply,
                        result,
                        receipt: write.receipt,
                    });
                }
                Request::End { session, done } => {
                    if ended.insert(session) {
                        let _ = batch.end_session(session);
                    }
                    answers.others.extend(done);
                }
                Request::Recover { generation, done } => {
                    unreadable |= generation == self.generation;
                    answers.others.push(done);
                }
                Request::Close { done } => closing = Some(done),
            }
        }

        let Batch {
            zxid,
            changes,
            events,
            lasting,
            fault,
            ..
        } = batch;
        let group = Group {
            zxid,
            changes,
            events,
            ended,
        };
        let written = match fault {
            Some(fault) => Err(Failure::Unread(fault)),
            None => self.write(&group, lasting),
        };
        self.settle(group, written, unreadable, &mut answers);
        answers.send();
        closing
    }

    /// What becomes of a group and of whoever waits for it.
    fn settle(
        &mut self,
        group: Group,
        written: Result<(), Failure>,
        unreadable: bool,
        answers: &mut Answers,
    ) {
        match written {
            Ok(()) => {
                self.committed(group);
                if unreadable && self.opened_at.elapsed() >= REOPEN_PAUSE {
                    self.broke(Fault::Reader, None);
                    self.reopen();
                }
            }
            Err(Failure::Refused(fault)) => {
                self.ending.extend(group.ended);
                answers.fail(|| fault.while_doing(Doing::Write, &self.file));
            }
            Err(Failure::Unread(fault)) => {
                self.ending.extend(group.ended);
                self.broke(fault.clone(), None);
                self.reopen();
                answers.fail(|| fault.while_doing(Doing::Write, &self.file));
            }
            Err(Failure::Unwritten(fault)) => {
                let failed = group.zxid;
                self.broke(fault.clone(), Some(group));
                self.reopen();
                if self.store.is_ok() && self.zxid < failed {
                    answers.fail(|| fault.while_doing(Doing::Write, &self.file));
                } else {
                    answers.fail(|| Error::ConnectionLoss);
                }
            }
        }
    }

    fn write(&mut self, group: &Group, lasting: bool) -> Result<(), Failure> {
        let store = match &self.store {
            Ok(store) => store,
            Err(broken) => return Err(Failure::Refused(broken.fault.clone())),
        };
        let changes = &group.changes;
        if changes.is_empty() {
            return Ok(());
        }
        let size = changes.size();
        if lasting || self.unsynced_size + size > UNSYNCED {
            let needed = RESERVE + 4 * size as u64;
            if let Some(free) = self.medium.free()
                && free < needed
            {
                return Err(Failure::Refused(Fault::Full { free, needed }));
            }
            let written = store.write_durably(changes, group.zxid);
            written.map_err(Failure::Unwritten)?;
            self.unsynced = Changes::default();
            self.unsynced_size = 0;
        } else {
            store.write_quickly(changes).map_err(Failure::Unwritten)?;
            self.unsynced.extend(changes.clone());
            self.unsynced_size += size;
        }
        Ok(())
    }

    /// Makes a group that was written visible.
    fn committed(&mut self, group: Group) {
        if !group.changes.is_empty()
            && let Ok(store) = &self.store
        {
            self.zxid = group.zxid;
            match store.snapshot(self.zxid) {
                Ok(snapshot) => self.show(Some(snapshot), &group.events),
                Err(fault) => {
                    self.show(None, &group.events);
                    self.broke(fault, None);
                    self.reopen();
                }
            }
        }
        self.account(group);
    }

    fn show(&self, snapshot: Option<Snapshot>, events: &[WatchEvent]) {
        let mut current = self.shared.current.blocking_write();
        if let Some(snapshot) = snapshot {
            *current = Arc::new(snapshot);
        }
        self.shared.hub.publish(events);
    }

    /// Notes who owns which ephemeral records now, and which sessions are over.
    fn account(&mut self, group: Group) {
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
            self.shared.hub.forget(session);
            if let Some(state) = self.states.remove(&session) {
                state.send_replace(Session::Closed);
            }
        }
    }

    fn broke(&mut self, fault: Fault, doubt: Option<Group>) {
        let file = self.file.display();
        tracing::warn!(%file, error = %fault, "the store failed and is opened again");
        let broken = Broken {
            fault,
            retry_at: Instant::now(),
            doubt,
        };
        if let Ok(store) = std::mem::replace(&mut self.store, Err(broken)) {
            store.close();
        }
    }

    /// Opens the file again if it is broken and the time has come.
    fn reopen(&mut self) {
        let Err(broken) = &mut self.store else { return };
        if Instant::now() < broken.retry_at {
            return;
        }
        let doubt = broken.doubt.take();
        self.opened_at = Instant::now();
        match self.recover(doubt.as_ref()) {
            Ok((store, snapshot, landed)) => {
                self.store = Ok(store);
                match doubt {
                    Some(group) if landed => {
                        self.unsynced = Changes::default();
                        self.unsynced_size = 0;
                        self.zxid = group.zxid;
                        self.show(Some(snapshot), &group.events);
                        self.account(group);
                    }
                    doubt => {
                        self.show(Some(snapshot), &[]);
                        self.ending
                            .extend(doubt.into_iter().flat_map(|group| group.ended));
                    }
                }
            }
            Err(fault) => {
                let file = self.file.display();
                tracing::error!(%file, error = %fault, "the store cannot be opened again");
                self.store = Err(Broken {
                    fault,
                    retry_at: Instant::now() + REOPEN_PAUSE,
                    doubt,
                });
            }
        }
    }

    /// The file, opened again and brought up to the last published state, or to that of the group in
    /// doubt if it is in the file.
    fn recover(&mut self, doubt: Option<&Group>) -> Result<(Store, Snapshot, bool), Fault> {
        self.generation += 1;
        let store = Store::open(&*self.medium, self.generation)?;
        let durable = store.durable_zxid()?;
        let landed = doubt.filter(|group| group.zxid == durable);
        if landed.is_none() && !self.unsynced.is_empty() {
            store.write_quickly(&self.unsynced)?;
        }
        let snapshot = store.snapshot(landed.map_or(self.zxid, |group| group.zxid))?;
        Ok((store, snapshot, landed.is_some()))
    }
}

impl Answers {
    /// Replaces all answers to writes: even those that were refused saw a state that is not there.
    fn fail(&mut self, error: impl Fn() -> Error) {
        for answer in &mut self.writes {
            answer.result = Err(error());
        }
    }

    fn send(self) {
        for answer in self.writes {
            // Whoever asked may have stopped waiting.
            let _ = answer.reply.send(answer.result);
            drop(answer.receipt);
        }
        for done in self.others {
            let _ = done.send(());
        }
    }
}

pub(super) fn now() -> i64 {
    (nodeyard_model::now().as_secs() * 1000.0) as i64
}
