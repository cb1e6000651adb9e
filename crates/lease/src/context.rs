//! What operations on leases share: the store, its cached views, the clock, and the encoding of records and marks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use nodeyard_model::layout::{LEASES, SCOPES};
use nodeyard_model::{Clock, Node, NodeId, NodeRequest, NodeState, Opaque, RequestId, layout};
use nodeyard_reconcile::{Backoff, WorkQueue};
use nodeyard_store::registry::{NodeShape, Registry, RequestShape, Stored, Views};
use nodeyard_store::view::{Kind, Shape, View};
use nodeyard_store::{Error, Result, Tree, TreePath, ext};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::buildsets::Buildsets;
use crate::ids::{LeaseId, ScopeId};
use crate::keeper::LeaseKey;
use crate::lease::Lease;
use crate::scope::{LeaseScope, ScopeName};

const QUEUE: nodeyard_reconcile::Options = nodeyard_reconcile::Options {
    name: "leases",
    concurrency: 64,
    backoff: Backoff {
        first: Duration::from_secs(2),
        max: Duration::from_secs(60),
    },
    // The next keeper continues aborted work.
    grace: Duration::ZERO,
};

/// What [`Leases`](crate::Leases) are opened with.
#[derive(Debug, Clone)]
pub struct LeaseDependencies {
    pub tree: Arc<dyn Tree>,
    /// Views of the same store, which may be shared.
    pub views: Views,
    pub clock: Clock,
    pub explain: Arc<dyn ExplainFailure>,
}

/// Explains failed requests.
#[async_trait]
pub trait ExplainFailure: fmt::Debug + Send + Sync {
    /// Returns why no pool could serve a request, in a few lines, if that is known.
    async fn failure(&self, request: RequestId) -> Option<String>;
}

/// An [`ExplainFailure`] without explanations.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoExplanations;

#[async_trait]
impl ExplainFailure for NoExplanations {
    async fn failure(&self, _: RequestId) -> Option<String> {
        None
    }
}

#[derive(Debug)]
pub(crate) struct LeaseContext {
    pub(crate) registry: Registry,
    pub(crate) requests: View<RequestShape>,
    pub(crate) nodes: View<NodeShape>,
    pub(crate) leases: View<LeaseShape>,
    pub(crate) scopes: View<ScopeShape>,
    pub(crate) buildsets: Buildsets,
    pub(crate) clock: Clock,
    pub(crate) explain: Arc<dyn ExplainFailure>,
    /// The work queue of the keeper in this process; empty unless that is the leader.
    pub(crate) queue: WorkQueue<LeaseKey>,
}

impl LeaseContext {
    pub(crate) fn open(dependencies: LeaseDependencies) -> Result<Self> {
        let open = |path| TreePath::new(path).map(|path| (Arc::clone(&dependencies.tree), path));
        let (tree, path) = open(LEASES)?;
        let leases = View::open(tree, path, LeaseShape);
        let (tree, path) = open(SCOPES)?;
        let scopes = View::open(tree, path, ScopeShape);
        let Views {
            requests, nodes, ..
        } = dependencies.views;
        Ok(Self {
            buildsets: Buildsets::follow(requests.clone(), nodes.clone()),
            registry: Registry::new(dependencies.tree),
            requests,
            nodes,
            leases,
            scopes,
            clock: dependencies.clock,
            explain: dependencies.explain,
            queue: WorkQueue::new(QUEUE),
        })
    }

    pub(crate) fn tree(&self) -> &Arc<dyn Tree> {
        self.registry.tree()
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaseShape;

#[derive(Debug, Clone, Copy)]
pub(crate) struct ScopeShape;

type ParseError = Box<dyn std::error::Error + Send + Sync>;

fn record<I: std::str::FromStr>(root: &str, path: &TreePath) -> Kind<I> {
    let name = path.as_str().strip_prefix(root);
    let name = name.and_then(|rest| rest.strip_prefix('/'));
    match name.and_then(|name| name.parse().ok()) {
        Some(id) => Kind::Record {
            id,
            branch: false,
            lock: false,
        },
        None => Kind::Nothing,
    }
}

impl Shape for LeaseShape {
    type Id = LeaseId;
    type Value = Lease;

    fn kind(&self, path: &TreePath) -> Kind<LeaseId> {
        record(LEASES, path)
    }

    fn parse(&self, _: &LeaseId, data: &[u8]) -> Result<Lease, ParseError> {
        Ok(serde_json::from_slice(data)?)
    }
}

impl Shape for ScopeShape {
    type Id = ScopeId;
    type Value = LeaseScope;

    fn kind(&self, path: &TreePath) -> Kind<ScopeId> {
        record(SCOPES, path)
    }

    fn parse(&self, _: &ScopeId, data: &[u8]) -> Result<LeaseScope, ParseError> {
        Ok(serde_json::from_slice(data)?)
    }
}

pub(crate) fn lease_path(id: LeaseId) -> Result<TreePath> {
    Ok(TreePath::new(format!("{LEASES}/{id}"))?)
}

pub(crate) fn scope_path(id: ScopeId) -> Result<TreePath> {
    Ok(TreePath::new(format!("{SCOPES}/{id}"))?)
}

pub(crate) fn request_path(id: RequestId) -> Result<TreePath> {
    Ok(TreePath::new(layout::request(id))?)
}

pub(crate) fn node_path(id: NodeId) -> Result<TreePath> {
    Ok(TreePath::new(layout::node(id))?)
}

/// Reads a lease or a scope.
pub(crate) async fn read<T: DeserializeOwned>(
    tree: &dyn Tree,
    path: &TreePath,
) -> Result<Option<Stored<T>>> {
    let Some(record) = ext::get_opt(tree, path).await? else {
        return Ok(None);
    };
    match serde_json::from_slice(&record.data) {
        Ok(value) => Ok(Some(Stored {
            value,
            stat: record.stat,
        })),
        Err(cause) => Err(Error::Backend {
            context: format!("{path}: malformed record"),
            source: cause.into(),
        }),
    }
}

pub(crate) fn json(path: &TreePath, value: &impl Serialize) -> Result<Bytes> {
    match serde_json::to_vec(value) {
        Ok(data) => Ok(data.into()),
        Err(cause) => Err(Error::Backend {
            context: format!("{path}: failed to encode the record"),
            source: cause.into(),
        }),
    }
}

/// The prefix of the names of our requestors in requests and nodes.
const REQUESTOR: &str = "nodeyard:";

pub(crate) fn requestor(name: &str) -> Arc<str> {
    format!("{REQUESTOR}{name}").into()
}

/// Marks the requests of a lease, in `requestor_data`, and its nodes, in `user_data`.
#[derive(Debug, Serialize, Deserialize)]
struct LeaseMark {
    nodeyard_lease: LeaseId,
    /// Set in requests: drivers may create the nodes of a scope in one place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nodeyard_scope: Option<ScopeName>,
    /// Set in requests: launchers let them wait for an image that is being built ([`NodeRequest::waits_for_image`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    nodeyard_wait_for_image: bool,
}

pub(crate) fn encode_node_mark(lease: LeaseId) -> Result<Opaque> {
    encode(&LeaseMark {
        nodeyard_lease: lease,
        nodeyard_scope: None,
        nodeyard_wait_for_image: false,
    })
}

pub(crate) fn encode_request_mark(lease: LeaseId, scope: Option<&ScopeName>) -> Result<Opaque> {
    encode(&LeaseMark {
        nodeyard_lease: lease,
        nodeyard_scope: scope.cloned(),
        nodeyard_wait_for_image: true,
    })
}

fn encode(mark: &LeaseMark) -> Result<Opaque> {
    Opaque::encode(mark).map_err(|cause| Error::Backend {
        context: format!("failed to encode the mark of lease {}", mark.nodeyard_lease),
        source: cause.into(),
    })
}

/// Returns the lease in the mark of a request or a node.
fn decode_mark(requestor: Option<&str>, data: &Opaque) -> Option<LeaseId> {
    if !requestor?.starts_with(REQUESTOR) {
        return None;
    }
    let mark: LeaseMark = data.decode().ok()?;
    Some(mark.nodeyard_lease)
}

/// Returns the lease that uses a node, according to the node's mark.
pub(crate) fn lease_of_node(node: &Node) -> Option<LeaseId> {
    let in_use = node.state == NodeState::InUse;
    in_use.then(|| decode_mark(node.requestor.as_deref(), &node.user_data))?
}

/// Returns the lease that a request was made for, according to the request's mark.
pub fn lease_of_request(request: &NodeRequest) -> Option<LeaseId> {
    decode_mark(request.requestor.as_deref(), &request.requestor_data)
}
