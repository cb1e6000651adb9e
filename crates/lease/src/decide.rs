//! Decides the next step of a lease or a scope: pure functions of snapshots and of the time.
//!
//! [`Observed`] is read after the record of the lease, and a step is written with the versions that were read. So a
//! decision on stale data is never written.

#[cfg(test)]
mod tests;

use std::time::Duration;

use nodeyard_model::{Node, NodeId, NodeRequest, NodeState, RequestId, RequestState, Timestamp};

use crate::lease::{EndCause, Lease, LeasePhase, LeasePlacement, LeasedNodeState};
use crate::scope::LeaseScope;
use crate::spec::ScopeAffinity;

/// The records that a lease refers to.
#[derive(Debug, Clone)]
pub(crate) struct Observed<'a> {
    pub(crate) request: Option<(RequestId, &'a NodeRequest)>,
    /// One for each node of the lease, in the same order.
    pub(crate) nodes: Vec<ObservedNode<'a>>,
    pub(crate) scope: ObservedScope<'a>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct ObservedNode<'a> {
    /// None if there is no record.
    pub(crate) node: Option<&'a Node>,
    pub(crate) lock: LeaseLock,
}

/// The place of a lease in the lock queue of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseLock {
    /// It has not joined the queue.
    Absent,
    /// Another contender holds the lock.
    Queued,
    /// The lease holds the lock.
    Held,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum ObservedScope<'a> {
    /// The lease has no scope.
    None,
    Exists(&'a LeaseScope),
    /// The record of its scope was deleted.
    Missing,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum LeaseStep {
    /// Do nothing until an observed record changes, or until a time.
    Wait { until: Option<Timestamp> },
    /// Record the id of the request.
    RecordRequest(RequestId),
    /// Record the nodes of the fulfilled request, before they are locked.
    RecordNodes {
        request: RequestId,
        nodes: Vec<NodeId>,
    },
    /// Join the lock queues of the nodes.
    JoinLockQueues,
    /// With all locks held, set the nodes to in-use and delete the request.
    Activate,
    /// Record that the nodes cannot be used.
    Abandon,
    /// Leave the lock queues and make a new request.
    RequestAgain,
    /// Record that the lease ends, and why.
    End(EndCause),
    /// Release all nodes and delete the request.
    Release,
    /// Record the new states of nodes that were lost or released.
    RecordStates(Vec<(NodeId, LeasedNodeState)>),
    /// Delete the record.
    Delete,
}

/// How long overdue leases and scopes can still be renewed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Renewal {
    /// The longest time after an interruption.
    pub(crate) window: Duration,
    /// The time since the last interruption.
    pub(crate) possible_for: Duration,
}

impl Renewal {
    /// Keeps everything that is overdue, for callers that do not know of interruptions.
    pub(crate) const OPEN: Self = Self {
        window: Duration::MAX,
        possible_for: Duration::ZERO,
    };

    /// Returns when a lease or a scope ends that expires at a time and lasts so many seconds after a renewal.
    fn end_of(&self, expires: Timestamp, duration: u64, now: Timestamp) -> Timestamp {
        let window = self.window.min(Duration::from_secs(duration));
        expires.max(later(now, window.saturating_sub(self.possible_for)))
    }
}

/// Returns the time after a delay.
pub(crate) fn later(now: Timestamp, by: Duration) -> Timestamp {
    Timestamp::from_secs(now.as_secs() + by.as_secs_f64()).unwrap_or(now)
}

/// Returns the next step of a lease. Its record is kept for the retention time after its end.
pub(crate) fn next_step(
    lease: &Lease,
    observed: &Observed<'_>,
    retention: Duration,
    renewal: Renewal,
    now: Timestamp,
) -> LeaseStep {
    let next = match lease.phase {
        LeasePhase::Waiting => waiting,
        LeasePhase::Taking => taking,
        LeasePhase::Active => active,
        LeasePhase::Dropping => return LeaseStep::RequestAgain,
        LeasePhase::Ending => return LeaseStep::Release,
        LeasePhase::Ended => return ended(lease, observed, retention, now),
    };
    let scope_ends = match observed.scope {
        ObservedScope::None => false,
        ObservedScope::Exists(scope) => scope.closing,
        ObservedScope::Missing => true,
    };
    if scope_ends {
        return LeaseStep::End(EndCause::ScopeEnded);
    }
    let end = renewal.end_of(lease.expires, lease.spec.duration, now);
    if now >= end {
        return LeaseStep::End(EndCause::Expired);
    }
    next(lease, observed).unwrap_or(LeaseStep::Wait { until: Some(end) })
}

fn waiting(lease: &Lease, observed: &Observed<'_>) -> Option<LeaseStep> {
    let Some((id, request)) = observed.request else {
        return Some(LeaseStep::End(EndCause::Withdrawn));
    };
    Some(match request.state {
        RequestState::Failed => LeaseStep::End(EndCause::Failed),
        RequestState::Fulfilled if request.nodes.len() == lease.spec.labels.len() => {
            LeaseStep::RecordNodes {
                request: id,
                nodes: request.nodes.clone(),
            }
        }
        // With another number of nodes than labels the request was not served.
        RequestState::Fulfilled => LeaseStep::Abandon,
        RequestState::Requested | RequestState::Pending if lease.request != Some(id) => {
            LeaseStep::RecordRequest(id)
        }
        RequestState::Requested | RequestState::Pending => return None,
    })
}

fn taking(lease: &Lease, observed: &Observed<'_>) -> Option<LeaseStep> {
    let Some((request, _)) = observed.request else {
        return Some(LeaseStep::End(EndCause::Withdrawn));
    };
    let unclaimed =
        |seen: &ObservedNode<'_>| seen.node.is_some_and(|node| is_unclaimed(node, request));
    if observed.nodes.len() != lease.nodes.len() || !observed.nodes.iter().all(unclaimed) {
        return Some(LeaseStep::Abandon);
    }
    if match_placement(lease, observed.nodes.iter().filter_map(|seen| seen.node))
        == PlacementMatch::Mismatch
    {
        return Some(LeaseStep::End(EndCause::Failed));
    }
    let locks = || observed.nodes.iter().map(|seen| seen.lock);
    if locks().any(|lock| lock == LeaseLock::Absent) {
        return Some(LeaseStep::JoinLockQueues);
    }
    let all_held = locks().all(|lock| lock == LeaseLock::Held);
    all_held.then_some(LeaseStep::Activate)
}

/// Whether nodes are where a lease wants them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PlacementMatch {
    Matches,
    /// Another provider is accepted.
    Fallback(LeasePlacement),
    Mismatch,
}

/// Compares the providers of nodes with the placement of a lease. A launcher may fulfil a request on another provider
/// when the requested one has declined it.
pub(crate) fn match_placement<'a>(
    lease: &Lease,
    nodes: impl IntoIterator<Item = &'a Node>,
) -> PlacementMatch {
    let Some(wanted) = lease.placement.provider() else {
        return PlacementMatch::Matches;
    };
    let mut nodes = nodes.into_iter();
    if nodes.all(|node| node.provider.as_ref() == Some(wanted)) {
        return PlacementMatch::Matches;
    }
    match (&lease.placement, lease.spec.affinity) {
        (LeasePlacement::Scope { provider }, ScopeAffinity::Prefer) => {
            PlacementMatch::Fallback(LeasePlacement::Fallback {
                instead_of: provider.clone(),
            })
        }
        _ => PlacementMatch::Mismatch,
    }
}

/// Returns true for a node that was allocated to a request and is not in use yet.
fn is_unclaimed(node: &Node, request: RequestId) -> bool {
    node.state == NodeState::Ready && node.request() == Some(request)
}

/// Returns true for a node that is in use by the lease.
pub(crate) fn is_used(seen: &ObservedNode<'_>) -> bool {
    let in_use = seen.node.is_some_and(|node| node.state == NodeState::InUse);
    in_use && seen.lock == LeaseLock::Held
}

fn active(lease: &Lease, observed: &Observed<'_>) -> Option<LeaseStep> {
    let lost = changed_nodes(
        lease,
        observed,
        LeasedNodeState::Leased,
        LeasedNodeState::Lost,
        is_used,
    );
    if !lost.is_empty() {
        return Some(LeaseStep::RecordStates(lost));
    }
    if lease.leased().next().is_none() {
        let lost = lease
            .nodes
            .iter()
            .any(|leased| leased.state == LeasedNodeState::Lost);
        let cause = if lost {
            EndCause::Lost
        } else {
            EndCause::Released
        };
        return Some(LeaseStep::End(cause));
    }
    let returned = released_holds(lease, observed);
    (!returned.is_empty()).then_some(LeaseStep::RecordStates(returned))
}

fn ended(lease: &Lease, observed: &Observed<'_>, retention: Duration, now: Timestamp) -> LeaseStep {
    let returned = released_holds(lease, observed);
    if !returned.is_empty() {
        return LeaseStep::RecordStates(returned);
    }
    if lease.held().next().is_some() {
        return LeaseStep::Wait { until: None };
    }
    let ended = lease.end.as_ref().map_or(lease.expires, |end| end.at);
    let until = later(ended, retention);
    if now >= until {
        LeaseStep::Delete
    } else {
        LeaseStep::Wait { until: Some(until) }
    }
}

fn released_holds(lease: &Lease, observed: &Observed<'_>) -> Vec<(NodeId, LeasedNodeState)> {
    let held =
        |seen: &ObservedNode<'_>| seen.node.is_some_and(|node| node.state == NodeState::Hold);
    changed_nodes(
        lease,
        observed,
        LeasedNodeState::Held,
        LeasedNodeState::Returned,
        held,
    )
}

/// Returns the nodes recorded in one state whose records do not match it, with their new state.
fn changed_nodes(
    lease: &Lease,
    observed: &Observed<'_>,
    recorded: LeasedNodeState,
    new: LeasedNodeState,
    matches: impl Fn(&ObservedNode<'_>) -> bool,
) -> Vec<(NodeId, LeasedNodeState)> {
    let nodes = lease.nodes.iter().zip(&observed.nodes);
    nodes
        .filter(|(leased, seen)| leased.state == recorded && !matches(seen))
        .map(|(leased, _)| (leased.node, new))
        .collect()
}

/// The next step of a scope.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ScopeStep {
    Wait {
        until: Option<Timestamp>,
    },
    /// Record that it ends; until then it can be renewed.
    Close,
    /// Delete the record.
    Delete,
}

/// Returns the next step of a scope with so many leases that have not ended. The leases of a closing scope end, and the
/// scope is deleted after them.
pub(crate) fn next_scope_step(
    scope: &LeaseScope,
    leases: usize,
    renewal: Renewal,
    now: Timestamp,
) -> ScopeStep {
    let duration = scope.duration.unwrap_or_default();
    let end = scope.expires;
    let end = end.map(|expires| renewal.end_of(expires, duration, now));
    let ends = scope.closing || end.is_some_and(|end| now >= end);
    match leases {
        0 if ends || end.is_none() => ScopeStep::Delete,
        _ if ends && !scope.closing => ScopeStep::Close,
        _ => ScopeStep::Wait {
            until: end.filter(|_| !ends),
        },
    }
}
