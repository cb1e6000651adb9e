//! What Zuul has for each of its buildsets.
//!
//! Zuul names the buildset in its requests, and deletes a request as soon as it has the nodes; a node says only which
//! request it was given to. So what the requests said is remembered while nodes of theirs are there. It is not
//! stored: a process that starts later shows what it has seen itself.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nodeyard_model::{NodeRequest, RequestId, TenantName};
use nodeyard_store::registry::{NodeShape, RequestShape};
use nodeyard_store::view::{Change, View};
use serde::Deserialize;
use tokio::task::AbortHandle;

use crate::book::Book;
use crate::error::{Error, Result};
use crate::scope::ScopeName;
use crate::scopes::Buildset;

/// What the names of Zuul's scopes begin with.
const PREFIX: &str = "zuul:";
/// After so many new requests, those that nothing is left of are forgotten.
const FORGET_EVERY: usize = 1000;

#[derive(Debug)]
pub(crate) struct Buildsets {
    known: Arc<Known>,
    task: AbortHandle,
}

#[derive(Debug, Default)]
struct Known(Mutex<HashMap<RequestId, Arc<Origin>>>);

/// Where a request of Zuul's comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Origin {
    name: ScopeName,
    tenant: Option<TenantName>,
    pipeline: Option<Box<str>>,
}

/// What Zuul writes into `requestor_data`, as far as it matters here.
#[derive(Deserialize)]
struct RequestorData {
    build_set_uuid: Option<String>,
    tenant_name: Option<TenantName>,
    pipeline_name: Option<Box<str>>,
}

fn origin(request: &NodeRequest) -> Option<Origin> {
    let data: Option<RequestorData> = request.requestor_data.decode().ok()?;
    let data = data?;
    Some(Origin {
        name: ScopeName::new(format!("{PREFIX}{}", data.build_set_uuid?)).ok()?,
        tenant: request.tenant_name.clone().or(data.tenant_name),
        pipeline: data.pipeline_name,
    })
}

/// Refuses a name that is Zuul's.
pub(crate) fn check_own(name: &ScopeName) -> Result<()> {
    if is_of_zuul(name) {
        return Err(Error::ScopeOfZuul {
            scope: name.clone(),
        });
    }
    Ok(())
}

pub(crate) fn is_of_zuul(name: &ScopeName) -> bool {
    name.as_str().starts_with(PREFIX)
}

impl Known {
    /// Nothing panics while it holds the lock, so poison is ignored.
    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, Arc<Origin>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buildsets {
    /// Follows the views until it is dropped. Must be called inside a runtime.
    pub(crate) fn follow(requests: View<RequestShape>, nodes: View<NodeShape>) -> Self {
        let known = Arc::new(Known::default());
        let task = tokio::spawn(follow(Arc::clone(&known), requests, nodes)).abort_handle();
        Self { known, task }
    }

    pub(crate) fn list(&self, book: &Book) -> Vec<Buildset> {
        let known = self.known.lock();
        let mut found: BTreeMap<&Origin, Buildset> = BTreeMap::new();
        book.requests.for_each(|item| {
            if let Some(origin) = known.get(&item.id) {
                let buildset = found.entry(origin).or_insert_with(|| empty(origin));
                buildset.requests.push((item.id, item.value));
            }
        });
        book.nodes.for_each(|item| {
            let request = item.value.request();
            if let Some(origin) = request.and_then(|request| known.get(&request)) {
                let buildset = found.entry(origin).or_insert_with(|| empty(origin));
                buildset.nodes.push((item.id, item.value));
            }
        });
        found.into_values().collect()
    }
}

fn empty(origin: &Origin) -> Buildset {
    Buildset {
        name: origin.name.clone(),
        tenant: origin.tenant.clone(),
        pipeline: origin.pipeline.clone(),
        requests: Vec::new(),
        nodes: Vec::new(),
    }
}

async fn follow(known: Arc<Known>, requests: View<RequestShape>, nodes: View<NodeShape>) {
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
        if new >= FORGET_EVERY {
            new = 0;
            forget(&known, &requests, &nodes);
        }
        change = changes.next().await;
    }
}

fn forget(known: &Known, requests: &View<RequestShape>, nodes: &View<NodeShape>) {
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
