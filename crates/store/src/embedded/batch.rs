//! Applies requests to the tree, in memory: a batch lies over a snapshot until it is written.
//!
//! A request is tried in an [`Attempt`] over the batch and joins the batch only as a whole, so a request
//! that fails leaves nothing behind. Many requests that touch the same record, such as creates below
//! one parent, cost one write of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::limits;
use crate::path::{InvalidPath, TreePath};
use crate::tree::{CreateMode, Created, Op, OpOutcome, Stat, Version};
use crate::watch::WatchEvent;

use super::fault::Fault;
use super::format::Node;
use super::snapshot::Snapshot;

/// The sessions that live, and the ephemeral records of each.
pub(super) type Sessions = HashMap<i64, BTreeSet<TreePath>>;

/// What became of an operation: as [`OpOutcome`], but with all that the engine knows.
#[derive(Debug)]
pub(crate) enum Outcome {
    Created(Created),
    Set(Stat),
    Deleted,
    Checked,
}

impl From<Outcome> for OpOutcome {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Created(created) => OpOutcome::Created(created.path),
            Outcome::Set(stat) => OpOutcome::Set(stat),
            Outcome::Deleted => OpOutcome::Deleted,
            Outcome::Checked => OpOutcome::Checked,
        }
    }
}

/// What has to be written to get from one state to the next.
#[derive(Debug, Default, Clone)]
pub(super) struct Changes {
    pub(super) nodes: BTreeMap<TreePath, Option<Node>>,
    /// Ephemeral records that came or went.
    pub(super) ephemerals: BTreeMap<TreePath, Ephemeral>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Ephemeral {
    pub(super) owner: i64,
    pub(super) alive: bool,
}

impl Changes {
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub(super) fn extend(&mut self, later: Changes) {
        self.nodes.extend(later.nodes);
        self.ephemerals.extend(later.ephemerals);
    }

    pub(super) fn size(&self) -> usize {
        let record = |(path, node): (&TreePath, &Option<Node>)| {
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
    pub(super) changes: Changes,
    pub(super) events: Vec<WatchEvent>,
    /// True once something was changed that has to outlive this process.
    pub(super) lasting: bool,
    /// Set when the snapshot could not be read.
    pub(super) fault: Option<Fault>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, sessions: &'a Sessions, now: i64) -> Self {
        Self {
            snapshot,
            sessions,
            now,
            zxid: snapshot.zxid,
            changes: Changes::default(),
            events: Vec::new(),
            lasting: false,
            fault: None,
        }
    }

    pub(super) fn one(&mut self, session: i64, op: Op) -> Result<Outcome> {
        self.attempt(|attempt| attempt.apply(session, op))
    }

    pub(super) fn all(&mut self, session: i64, ops: Vec<Op>) -> Result<Vec<Outcome>> {
        self.attempt(|attempt| {
            let apply = |(index, op)| {
                attempt
                    .apply(session, op)
                    .map_err(|error| Refusal::Multi(index, Box::new(error)))
            };
            ops.into_iter().enumerate().map(apply).collect()
        })
    }

    /// Removes all ephemeral records of a session.
    pub(super) fn end_session(&mut self, session: i64) -> Result<()> {
        let mut owned = self.sessions.get(&session).cloned().unwrap_or_default();
        for (path, ephemeral) in &self.changes.ephemerals {
            if ephemeral.alive && ephemeral.owner == session {
                owned.insert(path.clone());
            } else {
                owned.remove(path);
            }
        }
        self.attempt(|attempt| {
            for path in &owned {
                attempt.delete(path, Version::Any)?;
            }
            Ok(())
        })
    }

    fn attempt<T>(
        &mut self,
        run: impl FnOnce(&mut Attempt<'_, '_>) -> Result<T, Refusal>,
    ) -> Result<T> {
        let mut attempt = Attempt {
            batch: self,
            zxid: self.zxid + 1,
            changes: Changes::default(),
            events: Vec::new(),
            lasting: false,
        };
        match run(&mut attempt) {
            Ok(value) => {
                let Attempt {
                    zxid,
                    changes,
                    events,
                    lasting,
                    ..
                } = attempt;
                if !changes.is_empty() {
                    self.zxid = zxid;
                    self.changes.extend(changes);
                    self.events.extend(events);
                    self.lasting |= lasting;
                }
                Ok(value)
            }
            Err(refusal) => Err(refusal.into_error(&mut self.fault)),
        }
    }
}

/// Why an attempt came to nothing.
enum Refusal {
    Rule(Error),
    Multi(usize, Box<Refusal>),
    Fault(Fault),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Rule(error)
    }
}

impl From<InvalidPath> for Refusal {
    fn from(error: InvalidPath) -> Self {
        Self::Rule(error.into())
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl Refusal {
    fn into_error(self, seen: &mut Option<Fault>) -> Error {
        match self {
            Refusal::Rule(error) => error,
            Refusal::Multi(index, cause) => Error::Multi {
                index,
                source: Box::new(cause.into_error(seen)),
            },
            // The whole batch fails with it; this answer is never seen.
            Refusal::Fault(fault) => {
                *seen = Some(fault);
                Error::ConnectionLoss
            }
        }
    }
}

struct Attempt<'b, 'a> {
    batch: &'b Batch<'a>,
    zxid: i64,
    changes: Changes,
    events: Vec<WatchEvent>,
    lasting: bool,
}

impl Attempt<'_, '_> {
    fn apply(&mut self, session: i64, op: Op) -> Result<Outcome, Refusal> {
        match op {
            Op::Create { path, data, mode } => self
                .create(session, &path, data, mode)
                .map(Outcome::Created),
            Op::Set {
                path,
                data,
                version,
            } => self.set(&path, data, version).map(Outcome::Set),
            Op::Delete { path, version } => self.delete(&path, version).map(|()| Outcome::Deleted),
            Op::Check { path, version } => {
                expect_version(&path, &self.existing(&path)?, version)?;
                Ok(Outcome::Checked)
            }
        }
    }

    fn create(
        &mut self,
        session: i64,
        path: &TreePath,
        data: Bytes,
        mode: CreateMode,
    ) -> Result<Created, Refusal> {
        let parent_path = match path.parent() {
            Some(parent) => parent,
            // Below the root, a name that is only the number.
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
            // Refuses a path that is meant for a sequential create.
            TreePath::new(path.as_str())?
        };
        if self.node(&path)?.is_some() {
            return Err(Error::NodeExists { path }.into());
        }

        let node = Node {
            czxid: self.zxid,
            mzxid: self.zxid,
            pzxid: self.zxid,
            ctime: self.batch.now,
            mtime: self.batch.now,
            owner: if mode.is_ephemeral() { session } else { 0 },
            data,
            ..Node::default()
        };
        parent.creates += 1;
        parent.num_children += 1;
        parent.pzxid = self.zxid;
        let stat = node.stat();
        if mode.is_ephemeral() {
            self.note_ephemeral(&path, session, true);
        } else {
            self.lasting = true;
        }
        self.changes.nodes.insert(parent_path, Some(parent));
        self.changes.nodes.insert(path.clone(), Some(node));
        self.events.push(WatchEvent::Created(path.clone()));
        Ok(Created { path, stat })
    }

    fn set(&mut self, path: &TreePath, data: Bytes, version: Version) -> Result<Stat, Refusal> {
        limits::check_size("", path, data.len())?;
        let mut node = self.existing(path)?;
        expect_version(path, &node, version)?;
        node.data = data;
        node.version = node.version.wrapping_add(1);
        node.mzxid = self.zxid;
        node.mtime = self.batch.now;
        let stat = node.stat();
        self.lasting |= !node.is_ephemeral();
        self.changes.nodes.insert(path.clone(), Some(node));
        self.events.push(WatchEvent::Changed(path.clone()));
        Ok(stat)
    }

    fn delete(&mut self, path: &TreePath, version: Version) -> Result<(), Refusal> {
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
            self.note_ephemeral(path, node.owner, false);
        } else {
            self.lasting = true;
        }
        self.changes.nodes.insert(parent_path, Some(parent));
        self.changes.nodes.insert(path.clone(), None);
        self.events.push(WatchEvent::Deleted(path.clone()));
        Ok(())
    }

    fn note_ephemeral(&mut self, path: &TreePath, owner: i64, alive: bool) {
        self.changes
            .ephemerals
            .insert(path.clone(), Ephemeral { owner, alive });
    }

    fn node(&self, path: &TreePath) -> Result<Option<Node>, Fault> {
        let seen = self.changes.nodes.get(path);
        match seen.or_else(|| self.batch.changes.nodes.get(path)) {
            Some(node) => Ok(node.clone()),
            None => self.batch.snapshot.node(path),
        }
    }

    fn existing(&self, path: &TreePath) -> Result<Node, Refusal> {
        match self.node(path)? {
            Some(node) => Ok(node),
            None => Err(Error::NoNode { path: path.clone() }.into()),
        }
    }
}

fn expect_version(path: &TreePath, node: &Node, version: Version) -> Result<()> {
    match version {
        Version::Exactly(expected) if expected != node.version => {
            Err(Error::BadVersion { path: path.clone() })
        }
        _ => Ok(()),
    }
}
