//! Does what [`decide`] asks for.
//!
//! There is no lock on a lease. Each step reads the lease, then everything it speaks of, and writes with the versions
//! it has read; if anything has changed meanwhile, nothing is written, and it begins anew.
//!
//! Only the contenders for the locks of nodes are made one by one, and a contender that nobody knows of would block
//! its node for ever. Therefore one is made only while the lease is `taking`, in one write with a check that
//! it still has the version that was read: once the lease has moved on, no more can appear, and those that there are
//! stand in the locks of the nodes that the lease names.

mod look;
mod make;
mod ops;
mod tidy;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::try_join_all;
use nodeyard_model::{NodeId, NodeRequest, NodeState, RequestId, RequestState, Timestamp, layout};
use nodeyard_store::{self as store, CreateMode, Op, OpOutcome, Tree, TreePath, Version};
use tracing::{debug, info};

use crate::book::{self, Book, json, lease_path, request_path, scope_path};
use crate::decide::{self, LockSight, Place, Step};
use crate::ids::LeaseId;
use crate::lease::{Cause, End, Lease, Part, PartState, Phase};
use crate::leases::Hold;
use crate::scope::Scope;
use look::{Seen, SeenNode};
use ops::{create, delete, is_conflict, set, set_node};

/// How long the record of a lease stays after its end, for whoever asks what became of it.
pub(crate) const KEEP: Duration = Duration::from_secs(3600);

/// Works on leases through one handle on the store.
pub(crate) struct Hand<'a> {
    book: &'a Book,
    tree: &'a Arc<dyn Tree>,
}

/// What becomes of a node that leaves its lease.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Given {
    Back,
    OnHold { by: Box<str>, hold: Hold },
}

impl Given {
    pub(crate) fn state(&self) -> PartState {
        match self {
            Self::Back => PartState::Returned,
            Self::OnHold { .. } => PartState::Held,
        }
    }
}

pub(crate) fn end(lease: &mut Lease, cause: Cause, text: Option<String>, now: Timestamp) {
    lease.phase = Phase::Ending;
    lease.end = Some(End {
        at: now,
        cause,
        text,
    });
}

impl<'a> Hand<'a> {
    pub(crate) fn new(book: &'a Book, tree: &'a Arc<dyn Tree>) -> Self {
        Self { book, tree }
    }

    /// Writes a lease; false if it is not as it was.
    pub(crate) async fn write(
        &self,
        id: LeaseId,
        lease: &Lease,
        version: i32,
    ) -> store::Result<bool> {
        let path = lease_path(id)?;
        let data = json(&path, lease)?;
        match self.tree.set(&path, data, Version::Exactly(version)).await {
            Ok(stat) => {
                self.book.leases.wrote(id, Arc::new(lease.clone()), stat);
                Ok(true)
            }
            Err(store::Error::BadVersion { .. } | store::Error::NoNode { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Does what can be done now. Says when to come back at the latest; none if only something else can change it.
    pub(crate) async fn advance(&self, id: LeaseId) -> store::Result<Option<Timestamp>> {
        loop {
            let Some(seen) = self.look(id).await? else {
                return Ok(None);
            };
            let step = decide::next(&seen.lease, &seen.sight(), KEEP, self.book.clock.now());
            if let Step::Wait { until } = step {
                return Ok(until);
            }
            debug!(lease = %id, phase = %seen.lease.phase, ?step, "lease goes on");
            self.act(id, seen, step).await?;
        }
    }

    /// Does one step, unless something has changed.
    async fn act(&self, id: LeaseId, seen: Seen, step: Step) -> store::Result<()> {
        let now = self.book.clock.now();
        let version = seen.version;
        let mut lease = seen.lease.clone();
        match step {
            Step::Wait { .. } => {}
            Step::Note(request) => {
                lease.request = Some(request);
                self.write(id, &lease, version).await?;
            }
            Step::Take { request, nodes } => {
                lease.phase = Phase::Taking;
                lease.request = Some(request);
                let pairs = nodes.into_iter().zip(&seen.lease.ask.labels);
                let parts = pairs.map(|(node, label)| Part {
                    node,
                    label: label.clone(),
                    state: PartState::Leased,
                });
                lease.parts = parts.collect();
                self.write(id, &lease, version).await?;
            }
            Step::Lock => {
                let absent = seen.nodes.iter();
                let absent = absent.filter(|node| node.lock == LockSight::Absent);
                let contending = absent.map(|node| self.contend(id, version, node.id));
                try_join_all(contending).await?;
            }
            Step::Accept => self.accept(id, seen, now).await?,
            Step::GiveUp => {
                lease.phase = Phase::Dropping;
                self.write(id, &lease, version).await?;
            }
            Step::Undo => self.ask_again(id, seen, now).await?,
            Step::End(cause) => {
                let text = match (cause, &seen.request) {
                    (Cause::Failed, Some((request, record))) => {
                        Some(self.why(&lease, *request, record).await)
                    }
                    _ => None,
                };
                end(&mut lease, cause, text, now);
                if self.write(id, &lease, version).await? {
                    info!(lease = %id, %cause, "lease ends");
                }
            }
            Step::Finish => self.finish(id, seen, now).await?,
            Step::Mark(marks) => {
                let mut ops = Vec::new();
                for (node, state) in marks {
                    lease.set_part(node, state);
                    let lost = seen.nodes.iter().filter(|seen| seen.id == node);
                    ops.extend(lost.flat_map(SeenNode::unlock));
                }
                self.commit(id, lease, version, ops).await?;
            }
            Step::Forget => {
                let path = lease_path(id)?;
                match self.tree.delete(&path, Version::Exactly(version)).await {
                    Err(store::Error::BadVersion { .. } | store::Error::NoNode { .. }) => {}
                    result => {
                        result?;
                        self.book.leases.deleted(&id);
                    }
                }
            }
        }
        Ok(())
    }

    /// Why a request failed.
    async fn why(&self, lease: &Lease, id: RequestId, request: &NodeRequest) -> String {
        if let (RequestState::Fulfilled, Some(provider)) =
            (request.state, lease.placement.provider())
        {
            return format!("{provider} cannot serve it; another provider could, but none will do");
        }
        if let Some(text) = self.book.explain.failure(id).await {
            return text;
        }
        match request.declined_by.len() {
            0 => "there is no pool that could serve it".to_owned(),
            count => format!("all {count} pools have declined it"),
        }
    }

    /// Joins the queue for the lock of a node, unless the lease has changed or the node is gone.
    async fn contend(&self, lease: LeaseId, version: i32, node: NodeId) -> store::Result<()> {
        let directory = TreePath::new(layout::node_lock(node))?;
        let path = directory.join(&format!("{lease}__lock__"))?;
        let ops = vec![
            Op::Check {
                path: lease_path(lease)?,
                version: Version::Exactly(version),
            },
            create(
                &path,
                Bytes::from(format!("nodeyard lease {lease}")),
                CreateMode::PersistentSequential,
            ),
        ];
        let made = self
            .tree
            .create(&directory, Bytes::new(), CreateMode::Persistent)
            .await;
        match made {
            Ok(_) | Err(store::Error::NodeExists { .. }) => {}
            Err(store::Error::NoNode { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
        self.apply(ops).await.map(drop)
    }

    async fn accept(&self, id: LeaseId, seen: Seen, now: Timestamp) -> store::Result<()> {
        let Seen {
            mut lease,
            version,
            request,
            nodes,
            scope,
        } = seen;
        let records = nodes
            .iter()
            .filter_map(|node| Some(&node.stored.as_ref()?.value));
        if let Place::Instead(placement) = decide::place(&lease, records) {
            lease.placement = placement;
        }
        let mut ops = Vec::new();
        let mut provider = None;
        for node in &nodes {
            let Some(stored) = &node.stored else {
                return Ok(());
            };
            let mut record = stored.value.clone();
            if provider.is_none() {
                provider.clone_from(&record.provider);
            }
            record.user_data = book::mark(id)?;
            record.set_state(NodeState::InUse, now);
            ops.push(set_node(node.id, &record, stored.stat.version)?);
        }
        if let Some((request, _)) = request {
            ops.push(delete(request_path(request)?));
        }
        if let (Some(Some(stored)), Some(scope)) = (scope, lease.scope)
            && stored.value.provider.is_none()
        {
            let path = scope_path(scope)?;
            let pinned = Scope {
                provider,
                ..stored.value
            };
            ops.push(set(&path, &pinned, stored.stat.version)?);
        }
        lease.phase = Phase::Active;
        lease.expires = now + Duration::from_secs(lease.ask.duration);
        if self.commit(id, lease, version, ops).await? {
            info!(lease = %id, nodes = nodes.len(), "nodes are leased");
        }
        Ok(())
    }

    /// Undoes what the lease has so far and makes another request, in one write.
    async fn ask_again(&self, id: LeaseId, seen: Seen, now: Timestamp) -> store::Result<()> {
        let mut lease = seen.lease;
        let mut ops: Vec<Op> = seen.nodes.iter().flat_map(SeenNode::unlock).collect();
        if let Some((request, _)) = seen.request {
            ops.push(delete(request_path(request)?));
        }
        lease.phase = Phase::Waiting;
        lease.request = None;
        lease.parts.clear();
        ops.push(make::create_request(
            &lease,
            &make::new_request(id, &lease, now)?,
        )?);
        if self.commit(id, lease, seen.version, ops).await? {
            info!(lease = %id, "lease asks again");
        }
        Ok(())
    }

    async fn finish(&self, id: LeaseId, seen: Seen, now: Timestamp) -> store::Result<()> {
        let mut lease = seen.lease.clone();
        let mut ops = Vec::new();
        for node in &seen.nodes {
            let leased = lease.part(node.id).map(|part| part.state) == Some(PartState::Leased);
            if !leased {
                continue;
            }
            ops.extend(node.give(&Given::Back, now)?);
            lease.set_part(node.id, PartState::Returned);
        }
        if let Some((request, _)) = seen.request {
            ops.push(delete(request_path(request)?));
        }
        lease.phase = Phase::Ended;
        if self.commit(id, lease, seen.version, ops).await? {
            info!(lease = %id, "lease has ended");
        }
        Ok(())
    }

    /// Lets one node leave an active lease; none if something has changed.
    pub(crate) async fn part_with(
        &self,
        id: LeaseId,
        mut lease: Lease,
        version: i32,
        node: NodeId,
        given: &Given,
    ) -> store::Result<Option<Lease>> {
        let now = self.book.clock.now();
        let seen = self.look_at(id, node).await?;
        let ops = seen.give(given, now)?;
        let state = if decide::is_used(&seen.sight()) {
            given.state()
        } else {
            PartState::Lost
        };
        lease.set_part(node, state);
        if lease.leased().next().is_none() {
            end(&mut lease, Cause::Released, None, now);
            lease.phase = Phase::Ended;
        }
        let done = self.commit(id, lease.clone(), version, ops).await?;
        Ok(done.then_some(lease))
    }

    /// Writes a lease and all of `ops`; false if something is not as it was.
    async fn commit(
        &self,
        id: LeaseId,
        lease: Lease,
        version: i32,
        ops: Vec<Op>,
    ) -> store::Result<bool> {
        let path = lease_path(id)?;
        let ops = [vec![set(&path, &lease, version)?], ops].concat();
        let Some(outcomes) = self.apply(ops).await? else {
            return Ok(false);
        };
        if let Some(OpOutcome::Set(stat)) = outcomes.into_iter().next() {
            self.book.leases.wrote(id, Arc::new(lease), stat);
        }
        Ok(true)
    }

    /// None if something is not as it was.
    async fn apply(&self, ops: Vec<Op>) -> store::Result<Option<Vec<OpOutcome>>> {
        match self.tree.multi(ops).await {
            Ok(outcomes) => Ok(Some(outcomes)),
            Err(error) if is_conflict(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
