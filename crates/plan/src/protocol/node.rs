//! Transitions of nodes, under the lock of the node.

use nodeyard_model::{
    Allocation, Label, LauncherId, Node, NodeRequest, NodeState, RequestId, Resources, Timestamp,
};

use super::WriteRefused;
use crate::setup::{PoolKey, ZoneName};

/// A node that is about to be launched.
#[derive(Debug, Clone)]
pub struct Planned<'a> {
    pub request: RequestId,
    pub record: &'a NodeRequest,
    pub pool: &'a PoolKey,
    pub launcher: &'a LauncherId,
    pub label: &'a Label,
    pub cost: &'a Resources,
    pub zone: Option<&'a ZoneName>,
}

/// Returns the record to create. It contains its cost from the start, so that the quota is taken before the launch,
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
pub fn begin(
    record: Option<&Node>,
    request: RequestId,
    now: Timestamp,
) -> Result<Node, WriteRefused> {
    transition(record, request, NodeState::Init, NodeState::Building, now)
}

/// Marks a launched node as ready.
pub fn launched(
    record: Option<&Node>,
    request: RequestId,
    now: Timestamp,
) -> Result<Node, WriteRefused> {
    transition(record, request, NodeState::Building, NodeState::Ready, now)
}

/// Marks a failed launch: `failed` if permanent, `aborted` for lack of quota. Clean-up deletes the node.
pub fn launch_failed(
    record: Option<&Node>,
    request: RequestId,
    quota: bool,
    now: Timestamp,
) -> Result<Node, WriteRefused> {
    let state = if quota {
        NodeState::Aborted
    } else {
        NodeState::Failed
    };
    transition(record, request, NodeState::Building, state, now)
}

/// Allocates a free ready node to a request. The state time is kept: it is when the node became ready.
pub fn allocate(
    record: Option<&Node>,
    request: RequestId,
    of: &NodeRequest,
) -> Result<Node, WriteRefused> {
    let mut node = in_state(record, NodeState::Ready)?.clone();
    allocated(&node, None)?;
    assign(&mut node, request, of);
    Ok(node)
}

/// Frees a ready node of a request that was deleted, or that this launcher holds and does not fulfil. The tenant is
/// removed.
pub fn free(record: Option<&Node>, from: impl Into<Allocation>) -> Result<Node, WriteRefused> {
    let mut node = in_state(record, NodeState::Ready)?.clone();
    allocated(&node, Some(&from.into()))?;
    unassign(&mut node);
    Ok(node)
}

/// Unassigns a node of an abandoned request, whose lock this launcher holds. A node that was never locked may be
/// incomplete and is deleted.
pub fn reset(
    record: Option<&Node>,
    request: RequestId,
    now: Timestamp,
) -> Result<Node, WriteRefused> {
    let mut node = record.ok_or(WriteRefused::Gone)?.clone();
    allocated(&node, Some(&request.into()))?;
    match node.state {
        NodeState::Init => node.set_state(NodeState::Deleting, now),
        NodeState::Ready
        | NodeState::Building
        | NodeState::Failed
        | NodeState::Aborted
        | NodeState::Deleting
        | NodeState::Deleted => {}
        state => return Err(WriteRefused::NodeIs { state }),
    }
    unassign(&mut node);
    Ok(node)
}

/// The state of a node when it was selected for deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedState {
    pub state: NodeState,
    pub since: Timestamp,
}

impl ObservedState {
    pub fn ready(since: Timestamp) -> Self {
        let state = NodeState::Ready;
        Self { state, since }
    }

    pub fn held(since: Timestamp) -> Self {
        let state = NodeState::Hold;
        Self { state, since }
    }
}

/// Marks a free ready node or a held one for deletion: it is too old, or its room is needed. Fails unless it is
/// unchanged: a ready node may have been held meanwhile, or a held one again.
pub fn retire(
    record: Option<&Node>,
    seen: ObservedState,
    now: Timestamp,
) -> Result<Node, WriteRefused> {
    let mut node = in_state(record, seen.state)?.clone();
    match node.state {
        NodeState::Hold => {}
        NodeState::Ready => allocated(&node, None)?,
        state => return Err(WriteRefused::NodeIs { state }),
    }
    if node.state_time != seen.since {
        return Err(WriteRefused::Renewed);
    }
    node.set_state(NodeState::Deleting, now);
    Ok(node)
}

/// The clean-up of a node that could be locked.
#[derive(Debug, Clone, PartialEq)]
pub enum Clean {
    /// Write this, remove the instance, write [`deleted`], remove the record.
    Delete(Box<Node>),
    /// Only the record is left: remove it.
    RemoveRecord,
    /// It is in use.
    Leave,
}

/// Decides on the clean-up of a node. `request_exists` is whether the request it is allocated to exists, read after
/// the node was locked.
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

/// Marks a node as deleted after its instance was deleted.
pub fn deleted(record: Option<&Node>, now: Timestamp) -> Result<Node, WriteRefused> {
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

fn transition(
    record: Option<&Node>,
    request: RequestId,
    from: NodeState,
    to: NodeState,
    now: Timestamp,
) -> Result<Node, WriteRefused> {
    let mut node = in_state(record, from)?.clone();
    allocated(&node, Some(&request.into()))?;
    node.set_state(to, now);
    Ok(node)
}

fn in_state(record: Option<&Node>, state: NodeState) -> Result<&Node, WriteRefused> {
    let record = record.ok_or(WriteRefused::Gone)?;
    if record.state == state {
        Ok(record)
    } else {
        let state = record.state;
        Err(WriteRefused::NodeIs { state })
    }
}

fn allocated(node: &Node, to: Option<&Allocation>) -> Result<(), WriteRefused> {
    if node.allocated_to.as_ref() == to {
        Ok(())
    } else {
        let to = node.allocated_to.clone();
        Err(WriteRefused::AllocatedTo { to })
    }
}
