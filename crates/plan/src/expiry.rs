//! Nodes that have been ready or held for too long, or that nobody can use any more.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use nodeyard_model::{Label, NodeId, NodeState, ProviderName, Timestamp};

use crate::protocol::node::Seen;
use crate::setup::{LabelPolicy, PoolSetup};
use crate::span::Span;
use crate::world::World;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Expiry {
    /// Lock each, check that it still is what it was, and set it to `deleting`.
    pub expired: Vec<Expired>,
    /// No other node expires before this.
    pub again_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Expired {
    pub node: NodeId,
    pub seen: Seen,
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
    /// It was for one request, and that is gone.
    Bound,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, age, limit) = match self {
            Self::Ready { age, limit } => ("ready", age, limit),
            Self::Hold { age, limit } => ("held", age, limit),
            Self::Bound => return f.write_str("the request that it was launched for is gone"),
        };
        let (age, limit) = (Span(*age), Span(*limit));
        write!(f, "{what} for {age}, the limit is {limit}")
    }
}

/// Looks at the nodes of our providers; costs what expires and what is held. `max_hold_age` is the limit for all held nodes, none is without end.
pub fn plan(
    world: &World,
    labels: &BTreeMap<Label, LabelPolicy>,
    max_hold_age: Option<Duration>,
    now: Timestamp,
) -> Expiry {
    let mut plan = Expiry::default();
    let is_ours = |name: &ProviderName| world.providers.contains_key(name);
    let is_first = |id: NodeId, label: &Label| {
        let node = world.fleet.node(id);
        node.is_some_and(|node| node.labels.first() == Some(label))
    };
    let limits = labels.iter();
    let limits = limits.filter_map(|(label, policy)| Some((label, policy.max_ready_age?)));
    let pools = world.fleet.pools().map(|(key, _)| key);
    for key in pools.filter(|key| is_ours(&key.provider)) {
        for (label, limit) in limits.clone() {
            for nodes in world.fleet.free_by_age(key, label) {
                for (since, id) in nodes {
                    let age = now.since(*since);
                    if age < limit {
                        plan.look_again(*since, limit);
                        break;
                    }
                    if is_first(*id, label) {
                        plan.expire(*id, Seen::ready(*since), age, limit);
                    }
                }
            }
        }
    }
    for PoolSetup { key, labels, .. } in world.own.values().map(|own| &own.setup) {
        let bound = labels.iter().filter(|(_, setup)| setup.bound);
        for (label, _) in bound {
            let nodes = world.fleet.free_by_age(key, label).flatten();
            for (since, node) in nodes.filter(|(_, node)| is_first(*node, label)) {
                plan.expired.push(Expired {
                    node: *node,
                    seen: Seen::ready(*since),
                    reason: Reason::Bound,
                });
            }
        }
    }
    for (id, node) in world.fleet.held() {
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
                plan.look_again(node.state_time, limit);
            } else {
                plan.expire(id, Seen::held(node.state_time), age, limit);
            }
        }
    }
    plan.expired.sort_by_key(|expired| expired.node);
    plan.expired.dedup_by_key(|expired| expired.node);
    plan
}

impl Expiry {
    fn expire(&mut self, node: NodeId, seen: Seen, age: Duration, limit: Duration) {
        let reason = match seen.state {
            NodeState::Hold => Reason::Hold { age, limit },
            _ => Reason::Ready { age, limit },
        };
        self.expired.push(Expired { node, seen, reason });
    }

    fn look_again(&mut self, since: Timestamp, limit: Duration) {
        let due = since + limit;
        self.again_at = Some(self.again_at.map_or(due, |first| first.min(due)));
    }
}
