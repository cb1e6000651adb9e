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

/// How long overdue leases and scopes can be renewed yet.
#[derive(Debug, Clone, Copy)]
pub struct Renewal {
    /// After an interruption of the renewals, at most.
    pub window: Duration,
    /// How long renewals have been possible without an interruption.
    pub possible_for: Duration,
}

impl Renewal {
    /// Nothing is overdue: for callers who do not know of interruptions.
    pub const OPEN: Self = Self {
        window: Duration::MAX,
        possible_for: Duration::ZERO,
    };

    /// Returns when something ends that was to expire at a time and is renewed for so many seconds.
    fn end_of(&self, expires: Timestamp, duration: u64, now: Timestamp) -> Timestamp {
        let window = self.window.min(Duration::from_secs(duration));
        expires.max(later(now, window.saturating_sub(self.possible_for)))
    }
}

/// Returns a time after another.
pub(crate) fn later(now: Timestamp, by: Duration) -> Timestamp {
    Timestamp::from_secs(now.as_secs() + by.as_secs_f64()).unwrap_or(now)
}

/// `keep` says how long the record of a lease stays after its end.
pub fn next(
    lease: &Lease,
    sight: &Sight<'_>,
    keep: Duration,
    renewal: Renewal,
    now: Timestamp,
) -> Step {
    let alive = match lease.phase {
        Phase::Waiting => waiting,
        Phase::Taking => taking,
        Phase::Active => active,
        Phase::Dropping => return Step::Undo,
        Phase::Ending => return Step::Finish,
        Phase::Ended => return ended(lease, sight, keep, now),
    };
    let scope_ends = match sight.scope {
        ScopeSight::None => false,
        ScopeSight::There(scope) => scope.closing,
        ScopeSight::Gone => true,
    };
    let end = renewal.end_of(lease.expires, lease.ask.duration, now);
    if scope_ends {
        return Step::End(Cause::ScopeEnded);
    }
    if now >= end {
        return Step::End(Cause::Expired);
    }
    alive(lease, sight).unwrap_or(Step::Wait { until: Some(end) })
}

fn waiting(lease: &Lease, sight: &Sight<'_>) -> Option<Step> {
    let Some((id, request)) = sight.request else {
        return Some(Step::End(Cause::Withdrawn));
    };
    Some(match request.state {
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
        RequestState::Requested | RequestState::Pending => return None,
    })
}

fn taking(lease: &Lease, sight: &Sight<'_>) -> Option<Step> {
    let Some((request, _)) = sight.request else {
        return Some(Step::End(Cause::Withdrawn));
    };
    let given = |seen: &NodeSight<'_>| seen.node.is_some_and(|node| is_given(node, request));
    if sight.nodes.len() != lease.parts.len() || !sight.nodes.iter().all(given) {
        return Some(Step::GiveUp);
    }
    if place(lease, sight.nodes.iter().filter_map(|seen| seen.node)) == Place::Elsewhere {
        return Some(Step::End(Cause::Failed));
    }
    let locks = || sight.nodes.iter().map(|seen| seen.lock);
    if locks().any(|lock| lock == LockSight::Absent) {
        return Some(Step::Lock);
    }
    let all_held = locks().all(|lock| lock == LockSight::Held);
    all_held.then_some(Step::Accept)
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

fn active(lease: &Lease, sight: &Sight<'_>) -> Option<Step> {
    let lost = marks(lease, sight, PartState::Leased, PartState::Lost, is_used);
    if !lost.is_empty() {
        return Some(Step::Mark(lost));
    }
    if lease.leased().next().is_none() {
        let lost = lease.parts.iter().any(|part| part.state == PartState::Lost);
        let cause = if lost { Cause::Lost } else { Cause::Released };
        return Some(Step::End(cause));
    }
    let returned = released_holds(lease, sight);
    (!returned.is_empty()).then_some(Step::Mark(returned))
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
    let until = later(ended, keep);
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
    /// Write down that it ends. Until then it can be renewed.
    Close,
    /// Remove the record.
    Forget,
}

/// A scope that is closed ends its leases, and is deleted after them.
pub fn next_for_scope(
    scope: &Scope,
    leases: usize,
    renewal: Renewal,
    now: Timestamp,
) -> ScopeStep {
    let duration = scope.duration.unwrap_or_default();
    let end = scope.expires;
    let end = end.map(|expires| renewal.end_of(expires, duration, now));
    let ends = scope.closing || end.is_some_and(|end| now >= end);
    match leases {
        0 if ends || end.is_none() => ScopeStep::Forget,
        _ if ends && !scope.closing => ScopeStep::Close,
        _ => ScopeStep::Wait {
            until: end.filter(|_| !ends),
        },
    }
}
