//! Does what [`decide`] asks for.
//!
//! There is no lock on a lease. Each step reads the lease, then everything it speaks of, and writes with the versions
//! it has read; if anything has changed meanwhile, nothing is written, and it begins anew.
//!
//! Only the contenders for the locks of nodes are made one by one, and a contender that nobody knows of would block
//! its node for ever. Therefore one is made only while the lease is `taking`, in one write with a check that
//! it still has the version that was read: once the lease has moved on, no more can appear, and those that there are
//! stand in the locks of the nodes that the lease names.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{join, join_all, try_join_all};
use nodeyard_model::{
    Node, NodeId, NodeRequest, NodeState, Record as _, RequestId, RequestState, TenantName,
    Timestamp, layout,
};
use nodeyard_store::lock::LockContender;
use nodeyard_store::registry::{RequestShape, Stored};
use nodeyard_store::view::Item;
use nodeyard_store::{self as store, CreateMode, Op, OpOutcome, Tree, TreePath, Version, ext};
use tracing::{info, warn};

use crate::ask::{Ask, Caller};
use crate::book::{self, Book, json, lease_path, node_path, request_path, scope_path};
use crate::decide::{self, LockSight, NodeSight, ScopeSight, ScopeStep, Sight, Step};
use crate::error::{Error, Result};
use crate::ids::{LeaseId, ScopeId};
use crate::lease::{Cause, End, LEASES, Lease, Part, PartState, Phase, Placement};
use crate::leases::{Asked, Hold};
use crate::scope::{SCOPES, Scope};

/// How long the record of a lease stays after its end, for whoever asks what became of it.
pub(crate) const KEEP: std::time::Duration = std::time::Duration::from_secs(3600);

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

/// A lease and everything it speaks of, read after it.
struct Seen {
    lease: Lease,
    version: i32,
    request: Option<(RequestId, NodeRequest)>,
    nodes: Vec<SeenNode>,
    scope: Option<Option<Stored<Scope>>>,
}

struct SeenNode {
    id: NodeId,
    stored: Option<Stored<Node>>,
    contenders: Vec<LockContender>,
    lock: LockSight,
}

pub(crate) fn later(now: Timestamp, seconds: u64) -> Timestamp {
    Timestamp::from_secs(now.as_secs() + seconds as f64).unwrap_or(now)
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

    /// Makes the lease and its request, in one write.
    pub(crate) async fn make(
        &self,
        id: LeaseId,
        caller: &Caller,
        ask: &Ask,
        tenant: Option<&TenantName>,
    ) -> Result<Asked> {
        loop {
            if let Some(found) = self.found(id, ask).await? {
                return Ok(found);
            }
            let now = self.book.clock.now();
            let mut ops = Vec::new();
            let mut placement = match &ask.provider {
                Some(provider) => Placement::Asked {
                    provider: provider.clone(),
                },
                None => Placement::Anywhere,
            };
            let mut scope_id = None;
            if let Some(name) = &ask.scope {
                let scope = ScopeId::of_name(tenant, name.as_str());
                scope_id = Some(scope);
                let path = scope_path(scope)?;
                let stored: Option<Stored<Scope>> = book::read(&**self.tree, &path).await?;
                match stored {
                    Some(stored) if !stored.value.is_alive(now) => {
                        return Err(Error::ScopeCloses {
                            scope: name.clone(),
                        });
                    }
                    Some(stored) => {
                        let pin = stored.value.provider.clone();
                        if let (Some(provider), Placement::Anywhere) = (pin, &placement) {
                            placement = Placement::Scope { provider };
                        }
                        // Written as it is, so that nobody removes it for having no leases.
                        ops.push(set(&path, &stored.value, stored.stat.version)?);
                    }
                    None => {
                        let scope = Scope {
                            name: name.clone(),
                            tenant: tenant.cloned(),
                            owner: caller.name.clone(),
                            created: now,
                            expires: None,
                            duration: None,
                            provider: None,
                            closing: false,
                        };
                        ops.push(create(&path, json(&path, &scope)?, CreateMode::Persistent));
                    }
                }
            }
            let lease = Lease {
                phase: Phase::Waiting,
                ask: ask.clone(),
                tenant: tenant.cloned(),
                requestor: caller.name.clone(),
                scope: scope_id,
                created: now,
                expires: later(now, ask.duration),
                request: None,
                placement,
                parts: Vec::new(),
                end: None,
            };
            let path = lease_path(id)?;
            ops.push(create(&path, json(&path, &lease)?, CreateMode::Persistent));
            ops.push(self.new_request(id, &lease, now)?);
            match self.tree.multi(ops).await {
                Ok(outcomes) => {
                    let request = made_request(&outcomes);
                    info!(lease = %id, request = ?request, requestor = %caller.name, "lease asked for");
                    let lease = Lease { request, ..lease };
                    return Ok(Asked {
                        id,
                        lease,
                        new: true,
                    });
                }
                Err(error) => {
                    if !is_conflict(&error) {
                        return Err(error.into());
                    }
                    for directory in [LEASES, SCOPES, layout::REQUESTS] {
                        let directory = TreePath::new(directory).map_err(store::Error::from)?;
                        ext::ensure_path(&**self.tree, &directory).await?;
                    }
                }
            }
        }
    }

    /// The lease with this id, if it was asked for already.
    async fn found(&self, id: LeaseId, ask: &Ask) -> Result<Option<Asked>> {
        let stored: Option<Stored<Lease>> = book::read(&**self.tree, &lease_path(id)?).await?;
        match stored {
            Some(stored) if stored.value.ask != *ask => Err(Error::KeyReused { lease: id }),
            Some(stored) => Ok(Some(Asked {
                id,
                lease: stored.value,
                new: false,
            })),
            None => Ok(None),
        }
    }

    fn new_request(&self, id: LeaseId, lease: &Lease, now: Timestamp) -> store::Result<Op> {
        let mut request = NodeRequest::new(RequestState::Requested, now);
        request.labels.clone_from(&lease.ask.labels);
        request.requestor = Some(book::requestor(&lease.requestor));
        request.requestor_data = book::mark(id)?;
        request.provider = lease.placement.provider().cloned();
        request.relative_priority = lease.ask.relative_priority;
        request.event_id = Some(id.to_string().into());
        request.created_time = Some(now);
        request.tenant_name.clone_from(&lease.tenant);
        let prefix = layout::request_prefix(lease.ask.priority.precedence());
        let path = TreePath::new(prefix)?;
        let data = Bytes::from(request.to_json());
        Ok(create(&path, data, CreateMode::PersistentSequential))
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
            tracing::debug!(lease = %id, phase = %seen.lease.phase, ?step, "lease goes on");
            self.act(id, seen, step).await?;
        }
    }

    async fn look(&self, id: LeaseId) -> store::Result<Option<Seen>> {
        let tree = &**self.tree;
        let Some(stored) = book::read::<Lease>(tree, &lease_path(id)?).await? else {
            return Ok(None);
        };
        let (lease, version) = (stored.value, stored.stat.version);
        let nodes =
            try_join_all(lease.parts.iter().map(|part| self.look_at(id, part.node))).await?;
        let over = lease.phase == Phase::Ended;
        let request = if over || lease.phase == Phase::Active {
            None
        } else {
            self.request(id, lease.request).await?
        };
        let scope = match lease.scope {
            Some(scope) if !over => Some(book::read(tree, &scope_path(scope)?).await?),
            _ => None,
        };
        Ok(Some(Seen {
            lease,
            version,
            request,
            nodes,
            scope,
        }))
    }

    async fn look_at(&self, lease: LeaseId, id: NodeId) -> store::Result<SeenNode> {
        let nodes = self.book.registry.nodes();
        let lock = nodes.lock_of(id)?;
        let path = node_path(id)?;
        let (contenders, stored) = join(lock.contenders(), read_node(&**self.tree, &path)).await;
        let contenders = contenders?;
        let prefix = lease.to_string();
        let ours = |contender: &LockContender| {
            contender.session.is_none() && contender.path.name().starts_with(&prefix)
        };
        let lock = match contenders.iter().position(ours) {
            None => LockSight::Absent,
            Some(0) => LockSight::Held,
            Some(_) => LockSight::Queued,
        };
        Ok(SeenNode {
            id,
            stored: stored?,
            contenders: contenders.into_iter().filter(ours).collect(),
            lock,
        })
    }

    /// The request of a lease. Its number is in the request's own record before it is in that of the lease.
    async fn request(
        &self,
        lease: LeaseId,
        known: Option<RequestId>,
    ) -> store::Result<Option<(RequestId, NodeRequest)>> {
        let mut id = known;
        if id.is_none() {
            id = self.request_in_view(lease).map(|item| item.id);
        }
        if id.is_none() {
            self.book.requests.synced().await?;
            id = self.request_in_view(lease).map(|item| item.id);
        }
        let Some(id) = id else { return Ok(None) };
        let stored = ext::get_opt(&**self.tree, &request_path(id)?).await?;
        let Some(record) = stored else {
            return Ok(None);
        };
        match NodeRequest::from_json(&record.data) {
            Ok(request) => Ok(Some((id, request))),
            Err(source) => Err(store::Error::Malformed {
                path: request_path(id)?,
                source,
            }),
        }
    }

    pub(crate) fn request_in_view(&self, lease: LeaseId) -> Option<Item<RequestShape>> {
        let mut found = None;
        self.book.requests.for_each(|item| {
            if book::lease_of(&item.value) == Some(lease) {
                found = Some(item);
            }
        });
        found
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
                for contends in join_all(contending).await {
                    contends?;
                }
            }
            Step::Accept => self.accept(id, seen, now).await?,
            Step::GiveUp => {
                lease.phase = Phase::Dropping;
                self.write(id, &lease, version).await?;
            }
            Step::AskAgain(placement) => {
                lease.placement = placement;
                self.ask_again(id, seen, lease, now).await?;
            }
            Step::Undo => self.ask_again(id, seen, lease, now).await?,
            Step::End(cause) => {
                let text = match (cause, &seen.request) {
                    (Cause::Failed, Some((request, record))) => {
                        Some(self.why(*request, record).await)
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
    async fn why(&self, id: RequestId, request: &NodeRequest) -> String {
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
        lease.expires = later(now, lease.ask.duration);
        if self.commit(id, lease, version, ops).await? {
            info!(lease = %id, nodes = nodes.len(), "nodes are leased");
        }
        Ok(())
    }

    /// Undoes what the lease has so far and makes another request, in one write.
    async fn ask_again(
        &self,
        id: LeaseId,
        seen: Seen,
        mut lease: Lease,
        now: Timestamp,
    ) -> store::Result<()> {
        let mut ops: Vec<Op> = seen.nodes.iter().flat_map(SeenNode::unlock).collect();
        if let Some((request, _)) = seen.request {
            ops.push(delete(request_path(request)?));
        }
        lease.phase = Phase::Waiting;
        lease.request = None;
        lease.parts.clear();
        ops.push(self.new_request(id, &lease, now)?);
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

    /// Requests and nodes that carry the mark of a lease are undone if there is no such lease.
    pub(crate) async fn undo_strays(
        &self,
        lease: LeaseId,
        requests: BTreeSet<RequestId>,
        nodes: BTreeSet<NodeId>,
    ) -> store::Result<()> {
        if self.tree.stat(&lease_path(lease)?).await?.is_some() {
            return Ok(());
        }
        for request in requests {
            warn!(%lease, %request, "a request of a lease that is gone is deleted");
            ext::delete_opt(&**self.tree, &request_path(request)?).await?;
        }
        for id in nodes {
            let seen = self.look_at(lease, id).await?;
            if decide::is_used(&seen.sight()) {
                warn!(%lease, node = %id, "a node of a lease that is gone is given back");
                let ops = seen.give(&Given::Back, self.book.clock.now())?;
                self.apply(ops).await?;
            }
        }
        Ok(())
    }

    /// Removes a scope that is over and has no leases any more; says when to come back.
    pub(crate) async fn advance_scope(&self, id: ScopeId) -> store::Result<Option<Timestamp>> {
        let path = scope_path(id)?;
        loop {
            let Some(stored) = book::read::<Scope>(&**self.tree, &path).await? else {
                return Ok(None);
            };
            // Whoever asks for something in the scope writes it, too: leases that are not seen here change its version.
            self.book.leases.synced().await?;
            let mut leases = 0;
            self.book.leases.for_each(|item| {
                let ended = item.value.phase == Phase::Ended;
                leases += usize::from(item.value.scope == Some(id) && !ended);
            });
            match decide::next_for_scope(&stored.value, leases, self.book.clock.now()) {
                ScopeStep::Wait { until } => return Ok(until),
                ScopeStep::Forget => {
                    let version = Version::Exactly(stored.stat.version);
                    match self.tree.delete(&path, version).await {
                        Ok(()) => {
                            self.book.scopes.deleted(&id);
                            info!(scope = %stored.value.name, "scope has ended");
                        }
                        Err(store::Error::BadVersion { .. } | store::Error::NoNode { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        }
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

impl Seen {
    fn sight(&self) -> Sight<'_> {
        Sight {
            request: self.request.as_ref().map(|(id, record)| (*id, record)),
            nodes: self.nodes.iter().map(SeenNode::sight).collect(),
            scope: match &self.scope {
                None => ScopeSight::None,
                Some(None) => ScopeSight::Gone,
                Some(Some(scope)) => ScopeSight::There(&scope.value),
            },
        }
    }
}

impl SeenNode {
    fn sight(&self) -> NodeSight<'_> {
        NodeSight {
            node: self.stored.as_ref().map(|stored| &stored.value),
            lock: self.lock,
        }
    }

    /// Leaves the queue for its lock.
    fn unlock(&self) -> impl Iterator<Item = Op> {
        let contenders = self.contenders.iter();
        contenders.map(|contender| delete(contender.path.clone()))
    }

    /// Writes what becomes of it and unlocks it. What is not used by us is only unlocked.
    fn give(&self, given: &Given, now: Timestamp) -> store::Result<Vec<Op>> {
        let mut ops = Vec::new();
        if let (Some(stored), true) = (&self.stored, decide::is_used(&self.sight())) {
            let mut record = stored.value.clone();
            match given {
                Given::Back => record.set_state(NodeState::Used, now),
                Given::OnHold { by, hold } => {
                    record.set_state(NodeState::Hold, now);
                    record.hold_job = Some(by.clone());
                    record.comment = hold.comment.as_deref().map(Into::into);
                    record.hold_expiration = hold.expiration.map(i64::from);
                }
            }
            ops.push(set_node(self.id, &record, stored.stat.version)?);
        }
        ops.extend(self.unlock());
        Ok(ops)
    }
}

async fn read_node(tree: &dyn Tree, path: &TreePath) -> store::Result<Option<Stored<Node>>> {
    let Some(record) = ext::get_opt(tree, path).await? else {
        return Ok(None);
    };
    if record.data.is_empty() {
        return Ok(None);
    }
    match Node::from_json(&record.data) {
        Ok(value) => Ok(Some(Stored {
            value,
            stat: record.stat,
        })),
        Err(source) => Err(store::Error::Malformed {
            path: path.clone(),
            source,
        }),
    }
}

fn made_request(outcomes: &[OpOutcome]) -> Option<RequestId> {
    match outcomes.last() {
        Some(OpOutcome::Created(path)) => path.name().parse().ok(),
        _ => None,
    }
}

/// True if somebody else was faster.
fn is_conflict(error: &store::Error) -> bool {
    match error {
        store::Error::Multi { source, .. } => is_conflict(source),
        store::Error::BadVersion { .. }
        | store::Error::NoNode { .. }
        | store::Error::NodeExists { .. }
        | store::Error::NotEmpty { .. } => true,
        _ => false,
    }
}

fn create(path: &TreePath, data: Bytes, mode: CreateMode) -> Op {
    Op::Create {
        path: path.clone(),
        data,
        mode,
    }
}

pub(crate) fn set(
    path: &TreePath,
    value: &impl serde::Serialize,
    version: i32,
) -> store::Result<Op> {
    Ok(Op::Set {
        path: path.clone(),
        data: json(path, value)?,
        version: Version::Exactly(version),
    })
}

fn set_node(id: NodeId, node: &Node, version: i32) -> store::Result<Op> {
    Ok(Op::Set {
        path: node_path(id)?,
        data: Bytes::from(node.to_json()),
        version: Version::Exactly(version),
    })
}

fn delete(path: TreePath) -> Op {
    Op::Delete {
        path,
        version: Version::Any,
    }
}
