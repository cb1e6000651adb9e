//! Applies requests in memory: a batch is an overlay over a snapshot until it is committed.
//!
//! A request is tried in an [`BatchTransaction`] over the batch and joins the batch only as a whole, so a request
//! that fails leaves nothing behind. Many requests that touch the same record, such as creates below
//! one parent, cost one write of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::limits;
use crate::path::{InvalidPath, TreePath};
use crate::tree::{CreateMode, Created, Op, OpOutcome, Stat, Version};
use crate::watch::WatchEvent;

use super::file_error::StoreFileError;
use super::format::NodeValue;
use super::snapshot::Snapshot;

/// The open sessions and the ephemeral records of each.
pub(super) type Sessions = HashMap<i64, BTreeSet<TreePath>>;

/// The result of an operation, with more details than [`OpOutcome`].
#[derive(Debug)]
pub(crate) enum WriteOutcome {
    Created(Created),
    Set(Stat),
    Deleted,
    Checked,
}

impl From<WriteOutcome> for OpOutcome {
    fn from(outcome: WriteOutcome) -> Self {
        match outcome {
            WriteOutcome::Created(created) => OpOutcome::Created(created.path),
            WriteOutcome::Set(stat) => OpOutcome::Set(stat),
            WriteOutcome::Deleted => OpOutcome::Deleted,
            WriteOutcome::Checked => OpOutcome::Checked,
        }
    }
}

/// Changes to be written to the file.
#[derive(Debug, Default, Clone)]
pub(super) struct PendingChanges {
    pub(super) nodes: BTreeMap<TreePath, Option<NodeValue>>,
    /// Ephemeral records that were created or deleted.
    pub(super) ephemerals: BTreeMap<TreePath, Ephemeral>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Ephemeral {
    pub(super) owner: i64,
    pub(super) alive: bool,
}

impl PendingChanges {
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub(super) fn extend(&mut self, later: PendingChanges) {
        self.nodes.extend(later.nodes);
        self.ephemerals.extend(later.ephemerals);
    }

    pub(super) fn size(&self) -> usize {
        let record = |(path, node): (&TreePath, &Option<NodeValue>)| {
            path.as_str().len() + 128 + node.as_ref().map_or(0, |node| node.data.len())
        };
        self.nodes.iter().map(record).sum()
    }
}

#[derive(Debug)]
pub(super) struct Batch<'a> {
    snapshot: &'a Snapshot,
    sessions: &'a Sessions,
    now: i64,
    pub(super) zxid: i64,
    pub(super) changes: PendingChanges,
    pub(super) events: Vec<WatchEvent>,
    /// Whether a persistent record was changed, which requires a durable commit.
    pub(super) durable: bool,
    /// Set when the snapshot could not be read.
    pub(super) file_error: Option<StoreFileError>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, sessions: &'a Sessions, now: i64) -> Self {
        Self {
            snapshot,
            sessions,
            now,
            zxid: snapshot.zxid,
            changes: PendingChanges::default(),
            events: Vec::new(),
            durable: false,
            file_error: None,
        }
    }

    pub(super) fn one(&mut self, session: i64, op: Op) -> Result<WriteOutcome> {
        self.transaction(|attempt| attempt.apply(session, op))
    }

    pub(super) fn all(&mut self, session: i64, ops: Vec<Op>) -> Result<Vec<WriteOutcome>> {
        self.transaction(|attempt| {
            let apply = |(index, op)| {
                attempt
                    .apply(session, op)
                    .map_err(|error| ApplyError::Multi(index, Box::new(error)))
            };
            ops.into_iter().enumerate().map(apply).collect()
        })
    }

    /// Deletes all ephemeral records of a session.
    pub(super) fn end_session(&mut self, session: i64) -> Result<()> {
        let mut owned = self.sessions.get(&session).cloned().unwrap_or_default();
        for (path, ephemeral) in &self.changes.ephemerals {
            if ephemeral.alive && ephemeral.owner == session {
                owned.insert(path.clone());
            } else {
                owned.remove(path);
            }
        }
        self.transaction(|attempt| {
            for path in &owned {
                attempt.delete(path, Version::Any)?;
            }
            Ok(())
        })
    }

    fn transaction<T>(
        &mut self,
        run: impl FnOnce(&mut BatchTransaction<'_, '_>) -> Result<T, ApplyError>,
    ) -> Result<T> {
        let mut attempt = BatchTransaction {
            batch: self,
            zxid: self.zxid + 1,
            changes: PendingChanges::default(),
            events: Vec::new(),
            durable: false,
        };
        match run(&mut attempt) {
            Ok(value) => {
                let BatchTransaction {
                    zxid,
                    changes,
                    events,
                    durable,
                    ..
                } = attempt;
                if !changes.is_empty() {
                    self.zxid = zxid;
                    self.changes.extend(changes);
                    self.events.extend(events);
                    self.durable |= durable;
                }
                Ok(value)
            }
            Err(refusal) => Err(refusal.into_error(&mut self.file_error)),
        }
    }
}

/// Why a request failed.
enum ApplyError {
    Rule(Error),
    Multi(usize, Box<ApplyError>),
    StoreFileError(StoreFileError),
}

impl From<Error> for ApplyError {
    fn from(error: Error) -> Self {
        Self::Rule(error)
    }
}

impl From<InvalidPath> for ApplyError {
    fn from(error: InvalidPath) -> Self {
        Self::Rule(error.into())
    }
}

impl From<StoreFileError> for ApplyError {
    fn from(file_error: StoreFileError) -> Self {
        Self::StoreFileError(file_error)
    }
}

impl ApplyError {
    fn into_error(self, seen: &mut Option<StoreFileError>) -> Error {
        match self {
            ApplyError::Rule(error) => error,
            ApplyError::Multi(index, cause) => Error::Multi {
                index,
                source: Box::new(cause.into_error(seen)),
            },
            // The whole batch fails, so this error is never returned.
            ApplyError::StoreFileError(file_error) => {
                *seen = Some(file_error);
                Error::ConnectionLoss
            }
        }
    }
}

struct BatchTransaction<'b, 'a> {
    batch: &'b Batch<'a>,
    zxid: i64,
    changes: PendingChanges,
    events: Vec<WatchEvent>,
    durable: bool,
}

impl BatchTransaction<'_, '_> {
    fn apply(&mut self, session: i64, op: Op) -> Result<WriteOutcome, ApplyError> {
        match op {
            Op::Create { path, data, mode } => self
                .create(session, &path, data, mode)
                .map(WriteOutcome::Created),
            Op::Set {
                path,
                data,
                version,
            } => self.set(&path, data, version).map(WriteOutcome::Set),
            Op::Delete { path, version } => {
                self.delete(&path, version).map(|()| WriteOutcome::Deleted)
            }
            Op::Check { path, version } => {
                expect_version(&path, &self.existing(&path)?, version)?;
                Ok(WriteOutcome::Checked)
            }
        }
    }

    fn create(
        &mut self,
        session: i64,
        path: &TreePath,
        data: Bytes,
        mode: CreateMode,
    ) -> Result<Created, ApplyError> {
        let parent_path = match path.parent() {
            Some(parent) => parent,
            // Below the root, a name without prefix.
            None if mode.is_sequential() => path.clone(),
            None => return Err(Error::NodeExists { path: path.clone() }.into()),
        };
        limits::check_size("", path, data.len())?;
        let mut parent = self.existing(&parent_path)?;
        if parent.is_ephemeral() {
            return Err(Error::NoChildrenForEphemerals { path: parent_path }.into());
        }
        let path = if mode.is_sequential() {
            TreePath::new(format!("{path}{:010}", parent.creates))?
        } else {
            // Rejects a path that is only valid for a sequential create.
            TreePath::new(path.as_str())?
        };
        if self.node(&path)?.is_some() {
            return Err(Error::NodeExists { path }.into());
        }

        let node = NodeValue {
            czxid: self.zxid,
            mzxid: self.zxid,
            pzxid: self.zxid,
            ctime: self.batch.now,
            mtime: self.batch.now,
            owner: if mode.is_ephemeral() { session } else { 0 },
            data,
            ..NodeValue::default()
        };
        parent.creates += 1;
        parent.num_children += 1;
        parent.pzxid = self.zxid;
        let stat = node.stat();
        if mode.is_ephemeral() {
            self.record_ephemeral(&path, session, true);
        } else {
            self.durable = true;
        }
        self.changes.nodes.insert(parent_path, Some(parent));
        self.changes.nodes.insert(path.clone(), Some(node));
        self.events.push(WatchEvent::Created(path.clone()));
        Ok(Created { path, stat })
    }

    fn set(&mut self, path: &TreePath, data: Bytes, version: Version) -> Result<Stat, ApplyError> {
        limits::check_size("", path, data.len())?;
        let mut node = self.existing(path)?;
        expect_version(path, &node, version)?;
        node.data = data;
        node.version = node.version.wrapping_add(1);
        node.mzxid = self.zxid;
        node.mtime = self.batch.now;
        let stat = node.stat();
        self.durable |= !node.is_ephemeral();
        self.changes.nodes.insert(path.clone(), Some(node));
        self.events.push(WatchEvent::Changed(path.clone()));
        Ok(stat)
    }

    fn delete(&mut self, path: &TreePath, version: Version) -> Result<(), ApplyError> {
        let node = self.existing(path)?;
        expect_version(path, &node, version)?;
        let Some(parent_path) = path.parent() else {
            let reason = "the root cannot be deleted";
            let path = path.to_string();
            return Err(InvalidPath { path, reason }.into());
        };
        if node.num_children > 0 {
            return Err(Error::NotEmpty { path: path.clone() }.into());
        }
        let mut parent = self.existing(&parent_path)?;
        parent.num_children -= 1;
        parent.pzxid = self.zxid;
        if node.is_ephemeral() {
            self.record_ephemeral(path, node.owner, false);
        } else {
            self.durable = true;
        }
        self.changes.nodes.insert(parent_path, Some(parent));
        self.changes.nodes.insert(path.clone(), None);
        self.events.push(WatchEvent::Deleted(path.clone()));
        Ok(())
    }

    fn record_ephemeral(&mut self, path: &TreePath, owner: i64, alive: bool) {
        self.changes
            .ephemerals
            .insert(path.clone(), Ephemeral { owner, alive });
    }

    fn node(&self, path: &TreePath) -> Result<Option<NodeValue>, StoreFileError> {
        let seen = self.changes.nodes.get(path);
        match seen.or_else(|| self.batch.changes.nodes.get(path)) {
            Some(node) => Ok(node.clone()),
            None => self.batch.snapshot.node(path),
        }
    }

    fn existing(&self, path: &TreePath) -> Result<NodeValue, ApplyError> {
        match self.node(path)? {
            Some(node) => Ok(node),
            None => Err(Error::NoNode { path: path.clone() }.into()),
        }
    }
}

fn expect_version(path: &TreePath, node: &NodeValue, version: Version) -> Result<()> {
    match version {
        Version::Exactly(expected) if expected != node.version => {
            Err(Error::BadVersion { path: path.clone() })
        }
        _ => Ok(()),
    }
}
