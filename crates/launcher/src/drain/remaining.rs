//! How far a drain is, judged from the records alone.
//!
//! A drain is complete when nothing within its scope moves any more: no request is being served and no node is on
//! its way to or from a job. Nodes that are ready for nobody, or held for a person, would stay for ever, so they
//! are told apart and not waited for.

use std::collections::{BTreeMap, BTreeSet};

use nodeyard_model::{
    Allocation, Label, LauncherId, Node, NodeId, NodeRequest, NodeState, PoolComponent, RequestId,
    RequestState,
};
use nodeyard_plan::PoolKey;
use nodeyard_store::Result;
use nodeyard_store::registry::Registry;

use super::Scope;

/// Everything that the judgement needs.
#[derive(Debug, Default)]
pub struct Picture {
    pub pools: Vec<PoolComponent>,
    pub requests: BTreeMap<RequestId, NodeRequest>,
    pub nodes: BTreeMap<NodeId, Node>,
}

/// What is left within the scope of a drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remaining {
    /// Registered pools within the scope; a drain of none may be a misspelt one.
    pub pools: Vec<LauncherId>,
    /// Those that take requests all the same: they have not noticed yet, or are Python Nodepool's, which never will.
    pub accepting: Vec<LauncherId>,
    /// Requests that are being served.
    pub requests: Vec<Left<RequestId, RequestState>>,
    /// Nodes on their way to or from a job, or under one.
    pub nodes: Vec<Left<NodeId, NodeState>>,
    /// Nodes that are ready and nobody's.
    pub idle: Vec<NodeId>,
    pub held: Vec<NodeId>,
    /// Requests that wait for the end of a label's drain.
    pub waiting: Vec<RequestId>,
}

/// Something that a drain waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left<I, S> {
    pub id: I,
    pub state: S,
    pub labels: Vec<Label>,
    pub pool: Option<PoolKey>,
    pub allocated_to: Option<Allocation>,
}

impl Remaining {
    pub fn is_drained(&self) -> bool {
        self.accepting.is_empty() && self.requests.is_empty() && self.nodes.is_empty()
    }
}

impl Picture {
    /// Requests are read before nodes: what becomes of a request in between is seen in its nodes.
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

    pub fn remaining(&self, scope: &Scope) -> Remaining {
        let covered = |pool: &&PoolComponent| match scope {
            Scope::Label(label) => pool.supported_labels.contains(label),
            _ => scope.covers(&pool.hostname, &key(pool)),
        };
        let pools: Vec<&PoolComponent> = self.pools.iter().filter(covered).collect();
        // A pool shows that it is drained by being paused; of labels there is no such sign.
        let accepts = |pool: &&&PoolComponent| !pool.paused && !matches!(scope, Scope::Label(_));
        let accepting = pools.iter().filter(accepts);
        let mut remaining = Remaining {
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
                _ => remaining.nodes.push(Left {
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
                Scope::Label(label) => request.labels.contains(label),
                // Who serves a request is told by its nodes. Before it has any, it may be any pool that can.
                _ if served.contains(id) => served_here.contains(id),
                _ => pools.iter().any(|pool| can_serve(pool, request)),
            };
            if in_flight && inside {
                remaining.requests.push(Left {
                    id: *id,
                    state: request.state,
                    labels: request.labels.clone(),
                    pool: None,
                    allocated_to: None,
                });
            } else if inside && matches!(scope, Scope::Label(_)) {
                let waits = request.state == RequestState::Requested;
                remaining.waiting.extend(waits.then_some(*id));
            }
        }
        remaining
    }

    fn covers_node(&self, scope: &Scope, pools: &[&PoolComponent], node: &Node) -> bool {
        match scope {
            Scope::Label(label) => node.labels.contains(label),
            Scope::Launcher(_) => {
                let signed = |pool: &PoolComponent| Some(&pool.id) == node.launcher.as_ref();
                if pools.iter().any(|pool| signed(pool)) {
                    return true;
                }
                // Left by an earlier run, or a static node: whoever has the pool looks after it.
                let orphan = !self.pools.iter().any(signed);
                let place = pool_of(node);
                orphan && place.is_some_and(|place| pools.iter().any(|pool| key(pool) == place))
            }
            Scope::Provider(name) => node.provider.as_ref() == Some(name),
            Scope::Pool(..) => pool_of(node).is_some_and(|key| scope.covers("", &key)),
        }
    }
}

fn key(pool: &PoolComponent) -> PoolKey {
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

    fn scopes() -> [Scope; 4] {
        let provider = ProviderName::new("cloud").unwrap();
        [
            Scope::Launcher("np01".into()),
            Scope::Provider(provider.clone()),
            Scope::Pool("main".into(), provider),
            Scope::Label("small".into()),
        ]
    }

    #[test]
    fn idle_and_held_nodes_are_told_but_not_waited_for() {
        let pool = pool("np01", "cloud", true);
        let picture = Picture {
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
            ..Picture::default()
        };
        for scope in scopes() {
            let remaining = picture.remaining(&scope);
            assert!(remaining.is_drained(), "{scope}: {remaining:?}");
            assert_eq!((remaining.idle.len(), remaining.held.len()), (1, 1));
        }
    }

    #[test]
    fn everything_else_is_waited_for() {
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
            let picture = Picture {
                nodes: BTreeMap::from([("0000000000".parse().unwrap(), record)]),
                pools: vec![pool.clone()],
                ..Picture::default()
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
    fn the_work_of_others_is_not_waited_for() {
        let (ours, theirs) = (pool("np01", "cloud", true), pool("np02", "other", false));
        let id: RequestId = "100-0000000000".parse().unwrap();
        let node = node(&theirs, NodeState::Building, Some("100-0000000000"));
        let picture = Picture {
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
    fn a_request_without_nodes_may_be_of_any_pool_that_has_not_declined() {
        let ours = pool("np01", "cloud", true);
        let mut pending = request(RequestState::Pending);
        let id: RequestId = "100-0000000000".parse().unwrap();
        let mut picture = Picture {
            pools: vec![ours.clone()],
            requests: BTreeMap::from([(id, pending.clone())]),
            ..Picture::default()
        };
        let provider = &scopes()[1];
        assert_eq!(picture.remaining(provider).requests.len(), 1);
        pending.declined_by.push(ours.id);
        picture.requests.insert(id, pending);
        assert!(picture.remaining(provider).is_drained());
    }

    #[test]
    fn a_pool_that_is_not_paused_has_not_noticed() {
        let picture = Picture {
            pools: vec![pool("np01", "cloud", false)],
            requests: BTreeMap::from([(
                "100-0000000000".parse().unwrap(),
                request(RequestState::Requested),
            )]),
            ..Picture::default()
        };
        let [launcher, .., label] = scopes();
        assert!(!picture.remaining(&launcher).is_drained());
        let remaining = picture.remaining(&label);
        assert!(remaining.is_drained());
        assert_eq!(remaining.waiting.len(), 1);
    }
}
