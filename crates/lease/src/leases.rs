//! The way in for everybody who wants nodes.

use std::sync::Arc;
use std::time::Duration;

use nodeyard_model::{Node, NodeId, NodeRequest, NodeState, RequestId, Timestamp};
use nodeyard_store::registry::{Attempt, Patience, Stored};
use nodeyard_store::view::Changes;
use nodeyard_store::{self as store, ext};

use crate::act::{self, Given, Hand};
use crate::ask::{self, Ask, Caller};
use crate::book::{self, Book, Parts};
use crate::buildsets;
use crate::error::{Error, Result};
use crate::ids::{LeaseId, ScopeId};
use crate::lease::{Cause, Lease, Part, PartState, Phase};

/// How long somebody else may have the lock of a node on hold.
const LOCK_PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

/// Leases and scopes, for those who ask for them. Cloning is cheap.
///
/// Calls outlast lost connections; a caller that does not want to wait for the store drops the future. Whatever was
/// begun then is finished by a [`Keeper`](crate::Keeper).
#[derive(Debug, Clone)]
pub struct Leases {
    pub(crate) book: Arc<Book>,
}

/// The answer to [`Leases::ask`].
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    pub id: LeaseId,
    pub lease: Lease,
    /// False if it was asked for before with the same key.
    pub new: bool,
}

/// A lease and what it has.
#[derive(Debug, Clone)]
pub struct Status {
    pub id: LeaseId,
    pub lease: Arc<Lease>,
    /// The request's record, while there is one.
    pub request: Option<Arc<NodeRequest>>,
    /// One for each part of the lease.
    pub nodes: Vec<NodeStatus>,
}

#[derive(Debug, Clone)]
pub struct NodeStatus {
    pub part: Part,
    /// None if its record is gone.
    pub node: Option<Arc<Node>>,
}

/// What is said about a node that is put on hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hold {
    pub comment: Option<String>,
    /// Seconds; without end if none, as far as `max-hold-age` allows.
    pub expiration: Option<u32>,
}

impl Leases {
    /// Begins to follow the store; does not wait for it. Must be called inside a runtime.
    pub fn open(parts: Parts) -> store::Result<Self> {
        let book = Arc::new(Book::open(parts)?);
        Ok(Self { book })
    }

    /// Asks for nodes. With a `key`, asking again gives the same lease, for as long as its record is kept.
    pub async fn ask(&self, caller: &Caller, ask: &Ask, key: Option<&str>) -> Result<Asked> {
        ask.check()?;
        ask::check_text("name of the caller", &caller.name)?;
        ask.scope.as_ref().map_or(Ok(()), buildsets::check_own)?;
        let tenant = caller.tenant_of(ask.tenant.as_ref())?;
        let id = match key {
            Some(key) => {
                ask::check_text("idempotency key", key)?;
                LeaseId::of_key(tenant.as_ref(), key)
            }
            None => LeaseId::random(),
        };
        self.persist(|| async { self.hand().make(id, caller, ask, tenant.as_ref()).await })
            .await
    }

    /// A lease as it is now.
    pub async fn get(&self, caller: &Caller, id: LeaseId) -> Result<Status> {
        let lease = self.persist(|| self.read(caller, id)).await?;
        let mut status = self.status(id, Arc::new(lease.value));
        // The copies may be a moment behind the lease.
        for seen in &mut status.nodes {
            if seen.node.is_none() && seen.part.state == PartState::Leased {
                let node = self.book.registry.nodes().get(seen.part.node).await?;
                seen.node = node.map(|stored| Arc::new(stored.value));
            }
        }
        Ok(status)
    }

    /// All leases that the caller may see, as last heard of.
    pub fn list(&self, caller: &Caller) -> Vec<Status> {
        let mut leases = self.book.leases.items();
        leases.retain(|item| caller.sees(item.value.tenant.as_ref()));
        let status = |item: nodeyard_store::view::Item<_>| self.status(item.id, item.value);
        leases.into_iter().map(status).collect()
    }

    /// Returns when the lease has its nodes, or will not get any.
    pub async fn settled(&self, caller: &Caller, id: LeaseId) -> Result<Status> {
        let mut changes = self.book.leases.changes();
        loop {
            let status = self.get(caller, id).await?;
            if status.lease.phase.is_settled() {
                return Ok(status);
            }
            self.changed(&mut changes, id).await?;
        }
    }

    /// Which leases change from now on.
    pub fn changes(&self) -> Changes<LeaseId> {
        self.book.leases.changes()
    }

    /// The lease that a request was made for.
    pub fn of_request(&self, request: RequestId) -> Option<LeaseId> {
        let known = self.book.requests.get(&request);
        let known = known.and_then(|item| book::lease_of(&item.value));
        known.or_else(|| self.find(|lease| lease.request == Some(request)))
    }

    /// The lease that has a node, or had it last.
    pub fn of_node(&self, node: NodeId) -> Option<LeaseId> {
        let has = |lease: &Lease| {
            lease
                .leased()
                .chain(lease.held())
                .any(|part| part.node == node)
        };
        self.find(has)
            .or_else(|| self.find(|lease| lease.part(node).is_some()))
    }

    /// Prolongs a lease from now on, by the time it was asked for with or another; says until when.
    pub async fn renew(
        &self,
        caller: &Caller,
        id: LeaseId,
        duration: Option<u64>,
    ) -> Result<Timestamp> {
        duration.map_or(Ok(()), ask::check_duration)?;
        self.persist(|| async {
            loop {
                let stored = self.read(caller, id).await?;
                let mut lease = alive(id, stored.value)?;
                let seconds = duration.unwrap_or(lease.ask.duration);
                lease.expires = self.book.clock.now() + Duration::from_secs(seconds);
                let hand = self.hand();
                if hand.write(id, &lease, stored.stat.version).await? {
                    return Ok(lease.expires);
                }
            }
        })
        .await
    }

    /// Ends a lease: its request is taken back, or its nodes are given back. Nodes on hold stay. Returns when that
    /// is done; one that is over already is left as it is.
    pub async fn release(&self, caller: &Caller, id: LeaseId) -> Result<Arc<Lease>> {
        self.persist(|| async {
            loop {
                let stored = self.read(caller, id).await?;
                let (mut lease, version) = (stored.value, stored.stat.version);
                if lease.phase == Phase::Ended {
                    return Ok(Arc::new(lease));
                }
                let hand = self.hand();
                if lease.phase.is_alive() {
                    let cause = match lease.phase {
                        Phase::Active => Cause::Released,
                        _ => Cause::Cancelled,
                    };
                    act::end(&mut lease, cause, None, self.book.clock.now());
                    hand.write(id, &lease, version).await?;
                }
                hand.advance(id).await?;
            }
        })
        .await
    }

    /// Gives one node back. With its last node a lease ends.
    pub async fn release_node(
        &self,
        caller: &Caller,
        id: LeaseId,
        node: NodeId,
    ) -> Result<Arc<Lease>> {
        self.part_with(caller, id, node, &Given::Back).await
    }

    /// Keeps one node for somebody to look at: it leaves the lease, and stays until it is released from hold.
    pub async fn hold(
        &self,
        caller: &Caller,
        id: LeaseId,
        node: NodeId,
        hold: Hold,
    ) -> Result<Arc<Lease>> {
        if let Some(comment) = &hold.comment {
            ask::check_text("comment", comment)?;
        }
        let given = Given::OnHold {
            by: caller.name.clone(),
            hold,
        };
        self.part_with(caller, id, node, &given).await
    }

    /// Lets a node go that was put on hold.
    pub async fn release_hold(
        &self,
        caller: &Caller,
        id: LeaseId,
        node: NodeId,
    ) -> Result<Arc<Lease>> {
        self.persist(|| async {
            let mut stored = self.read(caller, id).await?;
            let state = part(id, &stored.value, node)?.state;
            if state != PartState::Held {
                return Ok(Arc::new(stored.value));
            }
            let nodes = self.book.registry.nodes();
            let patience = Patience::For(LOCK_PATIENCE);
            match nodes.lock(node, patience).await? {
                Attempt::Held(mut held) => {
                    if held.value.state == NodeState::Hold {
                        let now = self.book.clock.now();
                        held.value.set_state(NodeState::Used, now);
                        nodes.store(&held.guard, node, &held.value).await?;
                    }
                    held.guard.release().await?;
                }
                Attempt::Busy => return Err(Error::NodeBusy { node }),
                Attempt::Gone => {}
            }
            // If somebody else has written the lease meanwhile, a keeper does this.
            stored.value.set_part(node, PartState::Returned);
            self.hand()
                .write(id, &stored.value, stored.stat.version)
                .await?;
            Ok(Arc::new(stored.value))
        })
        .await
    }

    async fn part_with(
        &self,
        caller: &Caller,
        id: LeaseId,
        node: NodeId,
        given: &Given,
    ) -> Result<Arc<Lease>> {
        self.persist(|| async {
            loop {
                let stored = self.read(caller, id).await?;
                let version = stored.stat.version;
                let state = part(id, &stored.value, node)?.state;
                if state == given.state() || (state != PartState::Leased && *given == Given::Back) {
                    return Ok(Arc::new(stored.value));
                }
                let lease = alive(id, stored.value)?;
                if lease.phase != Phase::Active || state != PartState::Leased {
                    return Err(Error::NodeIs {
                        node,
                        state: format!("not in use under lease {id}"),
                    });
                }
                if let Some(lease) = self
                    .hand()
                    .part_with(id, lease, version, node, given)
                    .await?
                {
                    return Ok(Arc::new(lease));
                }
            }
        })
        .await
    }

    pub(crate) fn hand(&self) -> Hand<'_> {
        Hand::new(&self.book, self.book.tree())
    }

    async fn read(&self, caller: &Caller, id: LeaseId) -> Result<Stored<Lease>> {
        let path = book::lease_path(id)?;
        let stored: Option<Stored<Lease>> = book::read(&**self.book.tree(), &path).await?;
        stored
            .filter(|stored| caller.sees(stored.value.tenant.as_ref()))
            .ok_or(Error::NoSuchLease { lease: id })
    }

    pub(crate) fn status(&self, id: LeaseId, lease: Arc<Lease>) -> Status {
        let request = match lease.request {
            Some(request) => self.book.requests.get(&request),
            None => self.hand().request_in_view(id),
        };
        let nodes = lease.parts.iter().map(|part| NodeStatus {
            part: part.clone(),
            node: self.book.nodes.get(&part.node).map(|item| item.value),
        });
        Status {
            id,
            request: request.map(|item| item.value),
            nodes: nodes.collect(),
            lease,
        }
    }

    fn find(&self, is_it: impl Fn(&Lease) -> bool) -> Option<LeaseId> {
        let mut found = None;
        self.book.leases.for_each(|item| {
            if is_it(&item.value) {
                found = Some(item.id);
            }
        });
        found
    }

    pub(crate) fn members(&self, scope: ScopeId) -> Vec<Status> {
        let mut leases = self.book.leases.items();
        leases.retain(|item| item.value.scope == Some(scope));
        let status = |item: nodeyard_store::view::Item<_>| self.status(item.id, item.value);
        leases.into_iter().map(status).collect()
    }

    async fn changed(&self, changes: &mut Changes<LeaseId>, id: LeaseId) -> Result<()> {
        use nodeyard_store::view::Change;
        loop {
            match changes.next().await {
                Some(Change::Ids(ids)) if !ids.contains(&id) => {}
                Some(_) => return Ok(()),
                None => return Err(store::Error::Closed.into()),
            }
        }
    }

    /// Repeats what may be done twice until its answer arrives.
    pub(crate) async fn persist<T, F>(&self, work: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        ext::persist(&**self.book.tree(), work).await
    }
}

fn part(lease: LeaseId, record: &Lease, node: NodeId) -> Result<&Part> {
    let part = record.part(node);
    part.ok_or(Error::NoSuchNode { lease, node })
}

/// The record, unless its end has begun.
fn alive(id: LeaseId, lease: Lease) -> Result<Lease> {
    match &lease.end {
        Some(end) => Err(Error::Over {
            lease: id,
            cause: end.cause,
        }),
        None => Ok(lease),
    }
}
