//! Finds nodes that have been ready or held for too long, or that no request can use any more.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use nodeyard_model::{Label, NodeId, NodeState, ProviderName, Timestamp};

use crate::protocol::node::ObservedState;
use crate::scheduler::RequestScheduler;
use crate::setup::{LabelPolicy, PoolSetup};
use crate::span::HumanDuration;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Expiry {
    /// The nodes to lock, check for changes, and set to `deleting`.
    pub expired: Vec<Expired>,
    /// No other node expires before this.
    pub again_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Expired {
    pub node: NodeId,
    pub seen: ObservedState,
    pub reason: Reason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    Ready {
        age: Duration,
        limit: Duration,
    },
    Hold {
        age: Duration,
        limit: Duration,
    },
    /// It was launched for one request, which was deleted.
    Bound,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, age, limit) = match self {
            Self::Ready { age, limit } => ("ready", age, limit),
            Self::Hold { age, limit } => ("held", age, limit),
            Self::Bound => return f.write_str("the request that it was launched for is gone"),
        };
        let (age, limit) = (HumanDuration(*age), HumanDuration(*limit));
        write!(f, "{what} for {age}, the limit is {limit}")
    }
}

/// Returns the expired nodes of our providers. The cost is proportional to expired and held nodes. `max_hold_age`
/// limits all held nodes; None is unlimited.
pub fn plan(
    scheduler: &RequestScheduler,
    labels: &BTreeMap<Label, LabelPolicy>,
    max_hold_age: Option<Duration>,
    now: Timestamp,
) -> Expiry {
    let mut plan = Expiry::default();
    let is_ours = |name: &ProviderName| scheduler.providers.contains_key(name);
    let is_first = |id: NodeId, label: &Label| {
        let node = scheduler.node_index.node(id);
        node.is_some_and(|node| node.labels.first() == Some(label))
    };
    let limits = labels.iter();
    let limits = limits.filter_map(|(label, policy)| Some((label, policy.max_ready_age?)));
    let pools = scheduler.node_index.pools().map(|(key, _)| key);
    for key in pools.filter(|key| is_ours(&key.provider)) {
        for (label, limit) in limits.clone() {
            for nodes in scheduler.node_index.free_by_age(key, label) {
                for (since, id) in nodes {
                    let age = now.since(*since);
                    if age < limit {
                        plan.schedule_recheck(*since, limit);
                        break;
                    }
                    if is_first(*id, label) {
                        plan.expire(*id, ObservedState::ready(*since), age, limit);
                    }
                }
            }
        }
    }
    for PoolSetup { key, labels, .. } in scheduler.own.values().map(|own| &own.setup) {
        let bound = labels.iter().filter(|(_, setup)| setup.bound);
        for (label, _) in bound {
            let nodes = scheduler.node_index.free_by_age(key, label).flatten();
            for (since, node) in nodes.filter(|(_, node)| is_first(*node, label)) {
                plan.expired.push(Expired {
                    node: *node,
                    seen: ObservedState::ready(*since),
                    reason: Reason::Bound,
                });
            }
        }
    }
    for (id, node) in scheduler.node_index.held() {
        let own = node
            .hold_expiration
            .and_then(|seconds| u64::try_from(seconds).ok());
        let own = own.filter(|seconds| *seconds > 0).map(Duration::from_secs);
        let Some(limit) = own.into_iter().chain(max_hold_age).min() else {
            continue;
        };
        if !node.locked && node.provider.as_ref().is_some_and(is_ours) {
            let age = now.since(node.state_time);
            if age < limit {
                plan.schedule_recheck(node.state_time, limit);
            } else {
                plan.expire(id, ObservedState::held(node.state_time), age, limit);
            }
        }
    }
    plan.expired.sort_by_key(|expired| expired.node);
    plan.expired.dedup_by_key(|expired| expired.node);
    plan
}

impl Expiry {
    fn expire(&mut self, node: NodeId, seen: ObservedState, age: Duration, limit: Duration) {
        let reason = match seen.state {
            NodeState::Hold => Reason::Hold { age, limit },
            _ => Reason::Ready { age, limit },
        };
        self.expired.push(Expired { node, seen, reason });
    }

    fn schedule_recheck(&mut self, since: Timestamp, limit: Duration) {
        let due = since + limit;
        self.again_at = Some(self.again_at.map_or(due, |first| first.min(due)));
    }
}
