//! Nodes, under the node's lock.

use nodeyard_model::{
    Allocation, Label, LauncherId, Node, NodeRequest, NodeState, RequestId, Resources, Timestamp,
};

use super::Refused;
use crate::setup::{PoolKey, Zone};

/// A node that is about to be launched.
#[derive(Debug, Clone)]
pub struct Planned<'a> {
    pub request: RequestId,
    pub record: &'a NodeRequest,
    pub pool: &'a PoolKey,
    pub launcher: &'a LauncherId,
    pub label: &'a Label,
    pub cost: &'a Resources,
    pub zone: Option<&'a Zone>,
}

/// The record to create. It carries its cost from the start, so that the quota is taken before the launch,
/// and its request, so that it is found if its launcher dies before locking it.
pub fn planned(plan: &Planned<'_>, now: Timestamp) -> Node {
    let mut node = Node::init(now);
    node.labels = vec![plan.label.clone()];
    node.provider = Some(plan.pool.provider.clone());
    node.pool = Some(plan.pool.pool.clone());
    node.launcher = Some(plan.launcher.clone());
    node.resources = Some(plan.cost.clone());
    node.az = plan.zone.map(|zone| (**zone).into());
    assign(&mut node, plan.request, plan.record);
    node
}

/// Starts the launch of a node that this launcher has just created and locked.
pub fn begin(record: Option<&Node>, request: RequestId, now: Timestamp) -> Result<Node, Refused> {
    move_on(record, request, NodeState::Init, NodeState::Building, now)
}

/// The launch succeeded.
pub fn launched(
    record: Option<&Node>,
    request: RequestId,
    now: Timestamp,
) -> Result<Node, Refused> {
    move_on(record, request, NodeState::Building, NodeState::Ready, now)
}

/// The launch failed for good (`failed`) or for lack of quota (`aborted`); clean-up takes it from here.
pub fn launch_failed(
    record: Option<&Node>,
    request: RequestId,
    quota: bool,
    now: Timestamp,
) -> Result<Node, Refused> {
    let state = if quota {
        NodeState::Aborted
    } else {
        NodeState::Failed
    };
    move_on(record, request, NodeState::Building, state, now)
}

/// Gives a free ready node to a request. Its state time stays: it says how long it has been ready.
pub fn allocate(
    record: Option<&Node>,
    request: RequestId,
    of: &NodeRequest,
) -> Result<Node, Refused> {
    let mut node = in_state(record, NodeState::Ready)?.clone();
    allocated(&node, None)?;
    assign(&mut node, request, of);
    Ok(node)
}

/// Takes a ready node back from a request that is gone, or that this launcher holds and does not fulfil.
/// It belongs to no tenant any more.
pub fn free(record: Option<&Node>, from: impl Into<Allocation>) -> Result<Node, Refused> {
    let mut node = in_state(record, NodeState::Ready)?.clone();
    allocated(&node, Some(&from.into()))?;
    unassign(&mut node);
    Ok(node)
}

/// Takes back a node of a lost request, whose lock this launcher holds. A node that was never locked cannot be
/// trusted to be complete: it goes.
pub fn reset(record: Option<&Node>, request: RequestId, now: Timestamp) -> Result<Node, Refused> {
    let mut node = record.ok_or(Refused::Gone)?.clone();
    allocated(&node, Some(&request.into()))?;
    match node.state {
        NodeState::Init => node.set_state(NodeState::Deleting, now),
        NodeState::Ready
        | NodeState::Building
        | NodeState::Failed
        | NodeState::Aborted
        | NodeState::Deleting
        | NodeState::Deleted => {}
        state => return Err(Refused::NodeIs { state }),
    }
    unassign(&mut node);
    Ok(node)
}

/// What a node was when somebody thought that it should go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub state: NodeState,
    pub since: Timestamp,
}

impl Seen {
    pub fn ready(since: Timestamp) -> Self {
        let state = NodeState::Ready;
        Self { state, since }
    }

    pub fn held(since: Timestamp) -> Self {
        let state = NodeState::Hold;
        Self { state, since }
    }
}

/// Lets a ready node go that nobody has, or a held one: it is too old, or in the way. Only if it still is what it was:
/// a ready node may have been put on hold meanwhile, and a held one again.
pub fn retire(record: Option<&Node>, seen: Seen, now: Timestamp) -> Result<Node, Refused> {
    let mut node = in_state(record, seen.state)?.clone();
    match node.state {
        NodeState::Hold => {}
        NodeState::Ready => allocated(&node, None)?,
        state => return Err(Refused::NodeIs { state }),
    }
    if node.state_time != seen.since {
        return Err(Refused::Renewed);
    }
    node.set_state(NodeState::Deleting, now);
    Ok(node)
}

/// What to do with a node that could be locked.
#[derive(Debug, Clone, PartialEq)]
pub enum Clean {
    /// Write this, remove the instance, write [`deleted`], remove the record.
    Delete(Box<Node>),
    /// Nothing is left of it but the record: remove that.
    RemoveRecord,
    /// It is somebody's.
    Leave,
}

/// `request_exists` says whether the request it is allocated to exists, read after the node was locked.
pub fn clean(record: Option<&Node>, request_exists: bool, now: Timestamp) -> Clean {
    let Some(node) = record else {
        return Clean::RemoveRecord;
    };
    match node.state {
        NodeState::Deleted => Clean::RemoveRecord,
        NodeState::Used
        | NodeState::InUse
        | NodeState::Building
        | NodeState::Failed
        | NodeState::Aborted
        | NodeState::Deleting => delete(node, now),
        NodeState::Init if !request_exists => delete(node, now),
        NodeState::Init | NodeState::Testing | NodeState::Ready | NodeState::Hold => Clean::Leave,
    }
}

fn delete(node: &Node, now: Timestamp) -> Clean {
    if node.provider.is_none() {
        return Clean::RemoveRecord;
    }
    let mut node = node.clone();
    node.set_state(NodeState::Deleting, now);
    Clean::Delete(Box::new(node))
}

/// The instance is gone.
pub fn deleted(record: Option<&Node>, now: Timestamp) -> Result<Node, Refused> {
    let mut node = in_state(record, NodeState::Deleting)?.clone();
    node.set_state(NodeState::Deleted, now);
    Ok(node)
}

fn assign(node: &mut Node, request: RequestId, of: &NodeRequest) {
    node.allocated_to = Some(request.into());
    node.tenant_name.clone_from(&of.tenant_name);
    node.requestor.clone_from(&of.requestor);
}

fn unassign(node: &mut Node) {
    node.allocated_to = None;
    node.tenant_name = None;
    node.requestor = None;
}

fn move_on(
    record: Option<&Node>,
    request: RequestId,
    from: NodeState,
    to: NodeState,
    now: Timestamp,
) -> Result<Node, Refused> {
    let mut node = in_state(record, from)?.clone();
    allocated(&node, Some(&request.into()))?;
    node.set_state(to, now);
    Ok(node)
}

fn in_state(record: Option<&Node>, state: NodeState) -> Result<&Node, Refused> {
    let record = record.ok_or(Refused::Gone)?;
    if record.state == state {
        Ok(record)
    } else {
        let state = record.state;
        Err(Refused::NodeIs { state })
    }
}

fn allocated(node: &Node, to: Option<&Allocation>) -> Result<(), Refused> {
    if node.allocated_to.as_ref() == to {
        Ok(())
    } else {
        let to = node.allocated_to.clone();
        Err(Refused::AllocatedTo { to })
    }
}
