//! The requests and nodes of Zuul's buildsets.
//!
//! Zuul names the buildset in its requests, but deletes a request as soon as it has the nodes, and a node only names its
//! request. So [`Buildsets`] remembers the buildset of each request while it has nodes. This is kept in memory: a process
//! shows the buildsets whose requests it has seen.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nodeyard_model::{NodeRequest, RequestId, TenantName};
use nodeyard_store::registry::{NodeShape, RequestShape};
use nodeyard_store::view::{Change, View};
use serde::Deserialize;
use tokio::task::AbortHandle;

use crate::context::LeaseContext;
use crate::error::{Error, Result};
use crate::scope::ScopeName;
use crate::scopes::ZuulBuildset;

/// The prefix of the names of Zuul's scopes.
const PREFIX: &str = "zuul:";
/// The number of new requests after which those without record and nodes are dropped.
const PRUNE_INTERVAL: usize = 1000;

#[derive(Debug)]
pub(crate) struct Buildsets {
    known: Arc<KnownRequests>,
    task: AbortHandle,
}

#[derive(Debug, Default)]
struct KnownRequests(Mutex<HashMap<RequestId, Arc<BuildsetOrigin>>>);

/// The buildset that a request of Zuul was made for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct BuildsetOrigin {
    name: ScopeName,
    tenant: Option<TenantName>,
    pipeline: Option<Box<str>>,
}

/// The fields of Zuul's `requestor_data` that are used here.
#[derive(Deserialize)]
struct RequestorData {
    build_set_uuid: Option<String>,
    tenant_name: Option<TenantName>,
    pipeline_name: Option<Box<str>>,
}

fn origin(request: &NodeRequest) -> Option<BuildsetOrigin> {
    let data: Option<RequestorData> = request.requestor_data.decode().ok()?;
    let data = data?;
    Some(BuildsetOrigin {
        name: ScopeName::new(format!("{PREFIX}{}", data.build_set_uuid?)).ok()?,
        tenant: request.tenant_name.clone().or(data.tenant_name),
        pipeline: data.pipeline_name,
    })
}

/// Returns an error for the name of a buildset of Zuul.
pub(crate) fn reject_zuul_scope(name: &ScopeName) -> Result<()> {
    if is_zuul_scope(name) {
        return Err(Error::ScopeOfZuul {
            scope: name.clone(),
        });
    }
    Ok(())
}

pub(crate) fn is_zuul_scope(name: &ScopeName) -> bool {
    name.as_str().starts_with(PREFIX)
}

impl KnownRequests {
    /// Nothing panics while it holds the lock, so poison is ignored.
    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, Arc<BuildsetOrigin>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buildsets {
    /// Follows the views until it is dropped. Must be called inside a runtime.
    pub(crate) fn follow(requests: View<RequestShape>, nodes: View<NodeShape>) -> Self {
        let known = Arc::new(KnownRequests::default());
        let task = tokio::spawn(follow(Arc::clone(&known), requests, nodes)).abort_handle();
        Self { known, task }
    }

    pub(crate) fn list(&self, context: &LeaseContext) -> Vec<ZuulBuildset> {
        let known = self.known.lock();
        let mut found: BTreeMap<&BuildsetOrigin, ZuulBuildset> = BTreeMap::new();
        context.requests.for_each(|item| {
            if let Some(origin) = known.get(&item.id) {
                let buildset = found.entry(origin).or_insert_with(|| empty(origin));
                buildset.requests.push((item.id, item.value));
            }
        });
        context.nodes.for_each(|item| {
            let request = item.value.request();
            if let Some(origin) = request.and_then(|request| known.get(&request)) {
                let buildset = found.entry(origin).or_insert_with(|| empty(origin));
                buildset.nodes.push((item.id, item.value));
            }
        });
        found.into_values().collect()
    }
}

fn empty(origin: &BuildsetOrigin) -> ZuulBuildset {
    ZuulBuildset {
        name: origin.name.clone(),
        tenant: origin.tenant.clone(),
        pipeline: origin.pipeline.clone(),
        requests: Vec::new(),
        nodes: Vec::new(),
    }
}

async fn follow(known: Arc<KnownRequests>, requests: View<RequestShape>, nodes: View<NodeShape>) {
    let mut changes = requests.changes();
    let mut new = 0;
    let mut change = Some(Change::Everything);
    while let Some(changed) = change {
        let mut note = |id, request: &NodeRequest| {
            if let Some(origin) = origin(request)
                && known.lock().insert(id, Arc::new(origin)).is_none()
            {
                new += 1;
            }
        };
        match changed {
            Change::Everything => requests.for_each(|item| note(item.id, &item.value)),
            Change::Ids(ids) => {
                for item in ids.iter().filter_map(|id| requests.get(id)) {
                    note(item.id, &item.value);
                }
            }
        }
        if new >= PRUNE_INTERVAL {
            new = 0;
            prune(&known, &requests, &nodes);
        }
        change = changes.next().await;
    }
}

fn prune(known: &KnownRequests, requests: &View<RequestShape>, nodes: &View<NodeShape>) {
    let mut needed = HashSet::new();
    nodes.for_each(|item| needed.extend(item.value.request()));
    requests.for_each(|item| {
        needed.insert(item.id);
    });
    known.lock().retain(|request, _| needed.contains(request));
}

impl Drop for Buildsets {
    fn drop(&mut self) {
        self.task.abort();
    }
}
