//! What everybody who works on leases has at hand: the store, copies of its records, the time.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use nodeyard_model::layout::{LEASES, SCOPES};
use nodeyard_model::{Clock, NodeId, NodeRequest, Opaque, RequestId, layout};
use nodeyard_store::registry::{NodeShape, Registry, RequestShape, Stored, Views};
use nodeyard_store::view::{Kind, Shape, View};
use nodeyard_store::{Error, Result, Tree, TreePath, ext};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::buildsets::Buildsets;
use crate::ids::{LeaseId, ScopeId};
use crate::lease::Lease;
use crate::scope::{Scope, ScopeName};

/// What leases are kept with.
#[derive(Debug, Clone)]
pub struct Parts {
    pub tree: Arc<dyn Tree>,
    /// Of the same store; others may look at them as well.
    pub views: Views,
    pub clock: Clock,
    pub explain: Arc<dyn Explain>,
}

/// Knows why requests failed.
#[async_trait]
pub trait Explain: fmt::Debug + Send + Sync {
    /// Why nobody could serve a request, in a few lines; none if that is not known.
    async fn failure(&self, request: RequestId) -> Option<String>;
}

/// Knows nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoExplanations;

#[async_trait]
impl Explain for NoExplanations {
    async fn failure(&self, _: RequestId) -> Option<String> {
        None
    }
}

#[derive(Debug)]
pub(crate) struct Book {
    pub(crate) registry: Registry,
    pub(crate) requests: View<RequestShape>,
    pub(crate) nodes: View<NodeShape>,
    pub(crate) leases: View<LeaseShape>,
    pub(crate) scopes: View<ScopeShape>,
    pub(crate) buildsets: Buildsets,
    pub(crate) clock: Clock,
    pub(crate) explain: Arc<dyn Explain>,
}

impl Book {
    pub(crate) fn open(parts: Parts) -> Result<Self> {
        let open = |path| TreePath::new(path).map(|path| (Arc::clone(&parts.tree), path));
        let (tree, path) = open(LEASES)?;
        let leases = View::open(tree, path, LeaseShape);
        let (tree, path) = open(SCOPES)?;
        let scopes = View::open(tree, path, ScopeShape);
        let Views {
            requests, nodes, ..
        } = parts.views;
        Ok(Self {
            buildsets: Buildsets::follow(requests.clone(), nodes.clone()),
            registry: Registry::new(parts.tree),
            requests,
            nodes,
            leases,
            scopes,
            clock: parts.clock,
            explain: parts.explain,
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
    type Value = Scope;

    fn kind(&self, path: &TreePath) -> Kind<ScopeId> {
        record(SCOPES, path)
    }

    fn parse(&self, _: &ScopeId, data: &[u8]) -> Result<Scope, ParseError> {
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

/// A record of ours as it is now; none if there is none.
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
            context: format!("{path}: the record is malformed"),
            source: cause.into(),
        }),
    }
}

pub(crate) fn json(path: &TreePath, value: &impl Serialize) -> Result<Bytes> {
    match serde_json::to_vec(value) {
        Ok(data) => Ok(data.into()),
        Err(cause) => Err(Error::Backend {
            context: format!("{path}: the record cannot be written"),
            source: cause.into(),
        }),
    }
}

/// What the name of a requestor begins with in requests and nodes.
const REQUESTOR: &str = "nodeyard:";

pub(crate) fn requestor(name: &str) -> Arc<str> {
    format!("{REQUESTOR}{name}").into()
}

/// What our requests say in `requestor_data`, and our nodes in `user_data`.
#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    nodeyard_lease: LeaseId,
    /// Only in requests: drivers may keep what belongs together in one place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nodeyard_scope: Option<ScopeName>,
    /// Only in requests: launchers let them wait for an image that is being made ([`NodeRequest::waits_for_image`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    nodeyard_wait_for_image: bool,
}

pub(crate) fn mark(lease: LeaseId) -> Result<Opaque> {
    encode(&Mark {
        nodeyard_lease: lease,
        nodeyard_scope: None,
        nodeyard_wait_for_image: false,
    })
}

pub(crate) fn request_mark(lease: LeaseId, scope: Option<&ScopeName>) -> Result<Opaque> {
    encode(&Mark {
        nodeyard_lease: lease,
        nodeyard_scope: scope.cloned(),
        nodeyard_wait_for_image: true,
    })
}

fn encode(mark: &Mark) -> Result<Opaque> {
    Opaque::encode(mark).map_err(|cause| Error::Backend {
        context: format!(
            "the mark of lease {} cannot be written",
            mark.nodeyard_lease
        ),
        source: cause.into(),
    })
}

/// The lease that a record was made for or is used by, if any.
pub(crate) fn marked(requestor: Option<&str>, data: &Opaque) -> Option<LeaseId> {
    if !requestor?.starts_with(REQUESTOR) {
        return None;
    }
    let mark: Mark = data.decode().ok()?;
    Some(mark.nodeyard_lease)
}

/// The lease that a request was made for, as its record says.
pub fn lease_of(request: &NodeRequest) -> Option<LeaseId> {
    marked(request.requestor.as_deref(), &request.requestor_data)
}
