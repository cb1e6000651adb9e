//! Computes the progress of a drain from the records.
//!
//! A drain is complete when its scope has no request in progress and no node that is launching, in use or being deleted.
//! Idle ready nodes and held nodes may stay indefinitely, so they are listed separately and do not block completion.

use std::collections::{BTreeMap, BTreeSet};

use nodeyard_model::{
    Allocation, Label, LauncherId, Node, NodeId, NodeRequest, NodeState, PoolComponent, RequestId,
    RequestState,
};
use nodeyard_plan::PoolKey;
use nodeyard_store::Result;
use nodeyard_store::registry::Registry;

use super::DrainScope;

/// The records that the progress of a drain is computed from.
#[derive(Debug, Default)]
pub struct DrainSnapshot {
    pub pools: Vec<PoolComponent>,
    pub requests: BTreeMap<RequestId, NodeRequest>,
    pub nodes: BTreeMap<NodeId, Node>,
}

/// The remaining work within the scope of a drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemainingWork {
    /// Registered pools within the scope; if there are none, the drain's name may be misspelt.
    pub pools: Vec<LauncherId>,
    /// Pools that still accept requests: their launcher has not noticed yet, or is Python Nodepool, which ignores drains.
    pub accepting: Vec<LauncherId>,
    /// Requests in progress.
    pub requests: Vec<RemainingItem<RequestId, RequestState>>,
    /// Nodes that are launching, in use or being deleted.
    pub nodes: Vec<RemainingItem<NodeId, NodeState>>,
    /// Nodes that are ready and not allocated.
    pub idle: Vec<NodeId>,
    pub held: Vec<NodeId>,
    /// Requests that wait for the end of a label's drain.
    pub waiting: Vec<RequestId>,
}

/// A request or node that a drain waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemainingItem<I, S> {
    pub id: I,
    pub state: S,
    pub labels: Vec<Label>,
    pub pool: Option<PoolKey>,
    pub allocated_to: Option<Allocation>,
}

impl RemainingWork {
    /// Returns whether the drain is complete.
    pub fn is_drained(&self) -> bool {
        self.accepting.is_empty() && self.requests.is_empty() && self.nodes.is_empty()
    }
}

impl DrainSnapshot {
    /// Reads the records from the store. Requests come before nodes, so that a request that is served in between shows in
    /// its nodes.
    pub async fn read(registry: &Registry) -> Result<Self> {
        let pools = registry.components().pools().await?;
        let requests = registry.requests().list().await?.into_iter();
        let requests = requests.map(|(id, stored)| (id, stored.value)).collect();
        let nodes = registry.nodes().list().await?.into_iter();
        let nodes = nodes.map(|(id, stored)| (id, stored.value)).collect();
        Ok(Self {
            pools,
            requests,
            nodes,
        })
    }

    /// Computes the remaining work of a drain.
    pub fn remaining(&self, scope: &DrainScope) -> RemainingWork {
        let covered = |pool: &&PoolComponent| match scope {
            DrainScope::Label(label) => pool.supported_labels.contains(label),
            _ => scope.covers(&pool.hostname, &pool_key(pool)),
        };
        let pools: Vec<&PoolComponent> = self.pools.iter().filter(covered).collect();
        // A drained pool is registered as paused; nothing shows that a launcher follows the drain of a label.
        let accepts =
            |pool: &&&PoolComponent| !pool.paused && !matches!(scope, DrainScope::Label(_));
        let accepting = pools.iter().filter(accepts);
        let mut remaining = RemainingWork {
            accepting: accepting.map(|pool| pool.id.clone()).collect(),
            pools: pools.iter().map(|pool| pool.id.clone()).collect(),
            requests: Vec::new(),
            nodes: Vec::new(),
            idle: Vec::new(),
            held: Vec::new(),
            waiting: Vec::new(),
        };
        let mut served_here = BTreeSet::new();
        let mut served = BTreeSet::new();
        for (id, node) in &self.nodes {
            served.extend(node.request());
            if !self.covers_node(scope, &pools, node) {
                continue;
            }
            served_here.extend(node.request());
            match node.state {
                NodeState::Ready if node.allocated_to.is_none() => remaining.idle.push(*id),
                NodeState::Hold => remaining.held.push(*id),
                _ => remaining.nodes.push(RemainingItem {
                    id: *id,
                    state: node.state,
                    labels: node.labels.clone(),
                    pool: pool_of(node),
                    allocated_to: node.allocated_to.clone(),
                }),
            }
        }
        for (id, request) in &self.requests {
            let in_flight = matches!(
                request.state,
                RequestState::Pending | RequestState::Fulfilled
            );
            let inside = match scope {
                DrainScope::Label(label) => request.labels.contains(label),
                // The nodes of a request show which pool serves it. Without nodes it may be any pool that can.
                _ if served.contains(id) => served_here.contains(id),
                _ => pools.iter().any(|pool| can_serve(pool, request)),
            };
            if in_flight && inside {
                remaining.requests.push(RemainingItem {
                    id: *id,
                    state: request.state,
                    labels: request.labels.clone(),
                    pool: None,
                    allocated_to: None,
                });
            } else if inside && matches!(scope, DrainScope::Label(_)) {
                let waits = request.state == RequestState::Requested;
                remaining.waiting.extend(waits.then_some(*id));
            }
        }
        remaining
    }

    fn covers_node(&self, scope: &DrainScope, pools: &[&PoolComponent], node: &Node) -> bool {
        match scope {
            DrainScope::Label(label) => node.labels.contains(label),
            DrainScope::Launcher(_) => {
                let launched_by = |pool: &PoolComponent| Some(&pool.id) == node.launcher.as_ref();
                if pools.iter().any(|pool| launched_by(pool)) {
                    return true;
                }
                // Left by an earlier run, or a static node: the launcher that has the pool manages it.
                let orphan = !self.pools.iter().any(launched_by);
                let own = pool_of(node);
                orphan && own.is_some_and(|own| pools.iter().any(|pool| pool_key(pool) == own))
            }
            DrainScope::Provider(name) => node.provider.as_ref() == Some(name),
            DrainScope::Pool(..) => pool_of(node).is_some_and(|key| scope.covers("", &key)),
        }
    }
}

/// Returns the key of a registered pool.
pub fn pool_key(pool: &PoolComponent) -> PoolKey {
    PoolKey::new(pool.provider_name.clone(), pool.name.clone())
}

fn pool_of(node: &Node) -> Option<PoolKey> {
    Some(PoolKey::new(node.provider.clone()?, node.pool.clone()?))
}

fn can_serve(pool: &PoolComponent, request: &NodeRequest) -> bool {
    let wanted = request.provider.as_ref();
    let offered = |label: &Label| pool.supported_labels.contains(label);
    request.state == RequestState::Pending
        && wanted.is_none_or(|provider| *provider == pool.provider_name)
        && !request.declined_by.contains(&pool.id)
        && request.labels.iter().all(offered)
}

#[cfg(test)]
mod tests {
    use nodeyard_model::{ProviderName, Timestamp};

    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_secs(1.0).unwrap()
    }

    fn pool(host: &str, provider: &str, paused: bool) -> PoolComponent {
        let mut pool = PoolComponent::new(
            host.into(),
            format!("{host}-PoolWorker.{provider}-main-0")
                .as_str()
                .into(),
            "main".into(),
            ProviderName::new(provider).unwrap(),
        );
        pool.supported_labels = vec!["small".into()];
        pool.paused = paused;
        pool
    }

    fn node(pool: &PoolComponent, state: NodeState, request: Option<&str>) -> Node {
        let mut node = Node::new(state, now());
        node.labels = vec!["small".into()];
        node.provider = Some(pool.provider_name.clone());
        node.pool = Some(pool.name.clone());
        node.launcher = Some(pool.id.clone());
        node.allocated_to = request.map(|id| id.parse::<RequestId>().unwrap().into());
        node
    }

    fn request(state: RequestState) -> NodeRequest {
        let mut request = NodeRequest::new(state, now());
        request.labels = vec!["small".into()];
        request
    }

    fn scopes() -> [DrainScope; 4] {
        let provider = ProviderName::new("cloud").unwrap();
        [
            DrainScope::Launcher("np01".into()),
            DrainScope::Provider(provider.clone()),
            DrainScope::Pool("main".into(), provider),
            DrainScope::Label("small".into()),
        ]
    }

    #[test]
    fn idle_and_held_nodes_do_not_block_a_drain() {
        let pool = pool("np01", "cloud", true);
        let picture = DrainSnapshot {
            nodes: BTreeMap::from([
                (
                    "0000000000".parse().unwrap(),
                    node(&pool, NodeState::Ready, None),
                ),
                (
                    "0000000001".parse().unwrap(),
                    node(&pool, NodeState::Hold, None),
                ),
            ]),
            pools: vec![pool],
            ..DrainSnapshot::default()
        };
        for scope in scopes() {
            let remaining = picture.remaining(&scope);
            assert!(remaining.is_drained(), "{scope}: {remaining:?}");
            assert_eq!((remaining.idle.len(), remaining.held.len()), (1, 1));
        }
    }

    #[test]
    fn nodes_in_any_other_state_block_a_drain() {
        let pool = pool("np01", "cloud", true);
        let of_a_job = [
            NodeState::Building,
            NodeState::InUse,
            NodeState::Used,
            NodeState::Deleting,
            NodeState::Failed,
        ];
        let records = of_a_job
            .map(|state| node(&pool, state, None))
            .into_iter()
            .chain([node(&pool, NodeState::Ready, Some("100-0000000000"))]);
        for record in records {
            let picture = DrainSnapshot {
                nodes: BTreeMap::from([("0000000000".parse().unwrap(), record)]),
                pools: vec![pool.clone()],
                ..DrainSnapshot::default()
            };
            for scope in scopes() {
                assert!(
                    !picture.remaining(&scope).is_drained(),
                    "{scope}: {picture:?}"
                );
            }
        }
    }

    #[test]
    fn work_outside_the_scope_does_not_block_a_drain() {
        let (ours, theirs) = (pool("np01", "cloud", true), pool("np02", "other", false));
        let id: RequestId = "100-0000000000".parse().unwrap();
        let node = node(&theirs, NodeState::Building, Some("100-0000000000"));
        let picture = DrainSnapshot {
            pools: vec![ours, theirs],
            requests: BTreeMap::from([(id, request(RequestState::Pending))]),
            nodes: BTreeMap::from([("0000000000".parse().unwrap(), node)]),
        };
        let [launcher, provider, pool, label] = scopes();
        for scope in [launcher, provider, pool] {
            let remaining = picture.remaining(&scope);
            assert!(remaining.is_drained(), "{scope}: {remaining:?}");
        }
        assert!(!picture.remaining(&label).is_drained());
    }

    #[test]
    fn a_request_without_nodes_blocks_every_pool_that_has_not_declined_it() {
        let ours = pool("np01", "cloud", true);
        let mut pending = request(RequestState::Pending);
        let id: RequestId = "100-0000000000".parse().unwrap();
        let mut picture = DrainSnapshot {
            pools: vec![ours.clone()],
            requests: BTreeMap::from([(id, pending.clone())]),
            ..DrainSnapshot::default()
        };
        let provider = &scopes()[1];
        assert_eq!(picture.remaining(provider).requests.len(), 1);
        pending.declined_by.push(ours.id);
        picture.requests.insert(id, pending);
        assert!(picture.remaining(provider).is_drained());
    }

    #[test]
    fn a_pool_that_is_not_paused_still_accepts_requests() {
        let picture = DrainSnapshot {
            pools: vec![pool("np01", "cloud", false)],
            requests: BTreeMap::from([(
                "100-0000000000".parse().unwrap(),
                request(RequestState::Requested),
            )]),
            ..DrainSnapshot::default()
        };
        let [launcher, .., label] = scopes();
        assert!(!picture.remaining(&launcher).is_drained());
        let remaining = picture.remaining(&label);
        assert!(remaining.is_drained());
        assert_eq!(remaining.waiting.len(), 1);
    }
}
