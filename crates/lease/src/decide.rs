//! What to do next with a lease or a scope: pure functions of what was read and of the time.
//!
//! What they are given was read after the record they decide about, and what they ask for is written only if nothing
//! of it has changed since.

#[cfg(test)]
mod tests;

use std::time::Duration;

use nodeyard_model::{Node, NodeId, NodeRequest, NodeState, RequestId, RequestState, Timestamp};

use crate::ask::Affinity;
use crate::lease::{Cause, Lease, PartState, Phase, Placement};
use crate::scope::Scope;

/// What a lease speaks of, as it is.
#[derive(Debug, Clone)]
pub struct Sight<'a> {
    pub request: Option<(RequestId, &'a NodeRequest)>,
    /// One for each part of the lease.
    pub nodes: Vec<NodeSight<'a>>,
    pub scope: ScopeSight<'a>,
}

#[derive(Debug, Clone, Copy)]
pub struct NodeSight<'a> {
    /// None if its record is gone.
    pub node: Option<&'a Node>,
    pub lock: LockSight,
}

/// What the lock of a node says about a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockSight {
    /// The lease does not contend for it.
    Absent,
    /// The lease contends for it, and somebody else still has it.
    Queued,
    /// The lease has it.
    Held,
}

#[derive(Debug, Clone, Copy)]
pub enum ScopeSight<'a> {
    /// The lease has no scope.
    None,
    There(&'a Scope),
    /// It should have one, but there is none.
    Gone,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Nothing until something changes, or until then.
    Wait { until: Option<Timestamp> },
    /// Write down the number of the request.
    Note(RequestId),
    /// The request is fulfilled: write down the nodes before anything is done to them.
    Take {
        request: RequestId,
        nodes: Vec<NodeId>,
    },
    /// Contend for the locks of the nodes.
    Lock,
    /// All locks are held: mark the nodes as in use, delete the request.
    Accept,
    /// What was given cannot be taken: write down that it is given up.
    GiveUp,
    /// Undo what was taken so far, and ask again.
    Undo,
    /// Write down that it ends, and why.
    End(Cause),
    /// Give back all it has.
    Finish,
    /// Write down what became of nodes that are not the lease's any more.
    Mark(Vec<(NodeId, PartState)>),
    /// Remove the record.
    Forget,
}

/// `keep` says how long the record of a lease stays after its end.
pub fn next(lease: &Lease, sight: &Sight<'_>, keep: Duration, now: Timestamp) -> Step {
    match lease.phase {
        Phase::Waiting => overdue(lease, sight.scope, now).unwrap_or_else(|| waiting(lease, sight)),
        Phase::Taking => overdue(lease, sight.scope, now).unwrap_or_else(|| taking(lease, sight)),
        Phase::Active => overdue(lease, sight.scope, now).unwrap_or_else(|| active(lease, sight)),
        Phase::Dropping => Step::Undo,
        Phase::Ending => Step::Finish,
        Phase::Ended => ended(lease, sight, keep, now),
    }
}

/// It must end, however well it goes.
fn overdue(lease: &Lease, scope: ScopeSight<'_>, now: Timestamp) -> Option<Step> {
    let scope_is_over = match scope {
        ScopeSight::None => false,
        ScopeSight::There(scope) => !scope.is_alive(now),
        ScopeSight::Gone => true,
    };
    let expired = now >= lease.expires;
    let cause = scope_is_over.then_some(Cause::ScopeEnded);
    cause.or(expired.then_some(Cause::Expired)).map(Step::End)
}

/// The next moment at which it may be overdue.
fn due(lease: &Lease, scope: ScopeSight<'_>) -> Option<Timestamp> {
    let scope_ends = match scope {
        ScopeSight::There(scope) => scope.expires,
        ScopeSight::None | ScopeSight::Gone => None,
    };
    Some(scope_ends.map_or(lease.expires, |ends| ends.min(lease.expires)))
}

fn waiting(lease: &Lease, sight: &Sight<'_>) -> Step {
    let Some((id, request)) = sight.request else {
        return Step::End(Cause::Withdrawn);
    };
    match request.state {
        RequestState::Failed => Step::End(Cause::Failed),
        RequestState::Fulfilled if request.nodes.len() == lease.ask.labels.len() => Step::Take {
            request: id,
            nodes: request.nodes.clone(),
        },
        // A launcher that gives other than what was asked for has not served the request.
        RequestState::Fulfilled => Step::GiveUp,
        RequestState::Requested | RequestState::Pending if lease.request != Some(id) => {
            Step::Note(id)
        }
        RequestState::Requested | RequestState::Pending => Step::Wait {
            until: due(lease, sight.scope),
        },
    }
}

fn taking(lease: &Lease, sight: &Sight<'_>) -> Step {
    let Some((request, _)) = sight.request else {
        return Step::End(Cause::Withdrawn);
    };
    let given = |seen: &NodeSight<'_>| seen.node.is_some_and(|node| is_given(node, request));
    if sight.nodes.len() != lease.parts.len() || !sight.nodes.iter().all(given) {
        return Step::GiveUp;
    }
    if place(lease, sight.nodes.iter().filter_map(|seen| seen.node)) == Place::Elsewhere {
        return Step::End(Cause::Failed);
    }
    let locks = || sight.nodes.iter().map(|seen| seen.lock);
    if locks().any(|lock| lock == LockSight::Absent) {
        Step::Lock
    } else if locks().all(|lock| lock == LockSight::Held) {
        Step::Accept
    } else {
        Step::Wait {
            until: due(lease, sight.scope),
        }
    }
}

/// Where the nodes of a request are, compared with where they were to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    AsAsked,
    /// Elsewhere, which will do.
    Instead(Placement),
    /// Elsewhere, which will not do.
    Elsewhere,
}

/// To launchers the provider of a request is a wish: when it has declined, any other one may serve the request. What
/// to make of that is for the requestor to say.
pub fn place<'a>(lease: &Lease, nodes: impl IntoIterator<Item = &'a Node>) -> Place {
    let Some(wanted) = lease.placement.provider() else {
        return Place::AsAsked;
    };
    let mut nodes = nodes.into_iter();
    if nodes.all(|node| node.provider.as_ref() == Some(wanted)) {
        return Place::AsAsked;
    }
    match (&lease.placement, lease.ask.affinity) {
        (Placement::Scope { provider }, Affinity::Prefer) => Place::Instead(Placement::Fallback {
            instead_of: provider.clone(),
        }),
        _ => Place::Elsewhere,
    }
}

/// A node that a request was fulfilled with and that nobody has touched since.
fn is_given(node: &Node, request: RequestId) -> bool {
    node.state == NodeState::Ready && node.request() == Some(request)
}

/// True for a node that is used under the lease.
pub(crate) fn is_used(seen: &NodeSight<'_>) -> bool {
    let in_use = seen.node.is_some_and(|node| node.state == NodeState::InUse);
    in_use && seen.lock == LockSight::Held
}

fn active(lease: &Lease, sight: &Sight<'_>) -> Step {
    let lost = marks(lease, sight, PartState::Leased, PartState::Lost, is_used);
    if !lost.is_empty() {
        return Step::Mark(lost);
    }
    if lease.leased().next().is_none() {
        let lost = lease.parts.iter().any(|part| part.state == PartState::Lost);
        return Step::End(if lost { Cause::Lost } else { Cause::Released });
    }
    let returned = released_holds(lease, sight);
    if !returned.is_empty() {
        return Step::Mark(returned);
    }
    Step::Wait {
        until: due(lease, sight.scope),
    }
}

fn ended(lease: &Lease, sight: &Sight<'_>, keep: Duration, now: Timestamp) -> Step {
    let returned = released_holds(lease, sight);
    if !returned.is_empty() {
        return Step::Mark(returned);
    }
    if lease.held().next().is_some() {
        return Step::Wait { until: None };
    }
    let ended = lease.end.as_ref().map_or(lease.expires, |end| end.at);
    let until = ended + keep;
    if now >= until {
        Step::Forget
    } else {
        Step::Wait { until: Some(until) }
    }
}

fn released_holds(lease: &Lease, sight: &Sight<'_>) -> Vec<(NodeId, PartState)> {
    let held = |seen: &NodeSight<'_>| seen.node.is_some_and(|node| node.state == NodeState::Hold);
    marks(lease, sight, PartState::Held, PartState::Returned, held)
}

/// The parts in one state that are not as that says.
fn marks(
    lease: &Lease,
    sight: &Sight<'_>,
    of: PartState,
    becomes: PartState,
    is_so: impl Fn(&NodeSight<'_>) -> bool,
) -> Vec<(NodeId, PartState)> {
    let parts = lease.parts.iter().zip(&sight.nodes);
    parts
        .filter(|(part, seen)| part.state == of && !is_so(seen))
        .map(|(part, _)| (part.node, becomes))
        .collect()
}

/// What to do with a scope that owns so many leases that have not ended.
#[derive(Debug, Clone, PartialEq)]
pub enum ScopeStep {
    Wait {
        until: Option<Timestamp>,
    },
    /// Remove the record.
    Forget,
}

/// Its leases end by themselves when it is over. It goes after them.
pub fn next_for_scope(scope: &Scope, leases: usize, now: Timestamp) -> ScopeStep {
    let lives_by_itself = scope.is_alive(now) && scope.expires.is_some();
    if leases == 0 && !lives_by_itself {
        ScopeStep::Forget
    } else {
        let until = scope.expires.filter(|expires| now < *expires);
        ScopeStep::Wait { until }
    }
}
