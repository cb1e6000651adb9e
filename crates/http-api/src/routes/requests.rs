//! Node requests: those of Zuul, and those behind leases.

use axum::extract::State;
use nodeyard_lease::LeaseStatus;
use nodeyard_model as model;
use nodeyard_model::{RequestId, RequestState};
use nodeyard_store::registry::RequestShape;
use nodeyard_store::view::Item;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::leases::{self, Lease, WaitQuery};
use crate::access::{Caller, Insider, Requestor};
use crate::answer::{Answer, Result};
use crate::app::App;
use crate::events::{Kind, Subject};
use crate::extract::{Named, Query};
use crate::page::{Page, Place};
use crate::problem::Problem;
use crate::{schema, time};

/// A request for nodes.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Request {
    #[schema(value_type = schema::RequestId)]
    id: String,
    #[schema(value_type = schema::RequestState)]
    state: &'static str,
    /// Since when it is in this state.
    #[schema(format = DateTime)]
    since: Option<String>,
    #[schema(format = DateTime)]
    created: Option<String>,
    /// What was asked for, in order.
    #[schema(examples(json!(["debian", "debian"])))]
    labels: Vec<String>,
    /// What was given, in the order of the labels.
    nodes: Vec<String>,
    /// Who asked.
    requestor: Option<String>,
    tenant: Option<String>,
    /// The only provider that will do.
    provider: Option<String>,
    /// Lower is sooner, among requests whose ids begin with the same three digits.
    relative_priority: i64,
    /// The pools that have refused.
    declined_by: Vec<String>,
    /// Joins the log lines of all programs that work on one event.
    event_id: Option<String>,
    /// The lease it was made for.
    #[schema(value_type = Option<schema::LeaseId>)]
    lease: Option<String>,
}

impl Request {
    fn of(id: RequestId, request: &model::NodeRequest) -> Self {
        Self {
            id: id.to_string(),
            state: request.state.as_str(),
            since: time::shown(request.state_time),
            created: request.created_time.and_then(time::shown),
            labels: request.labels.iter().map(ToString::to_string).collect(),
            nodes: request.nodes.iter().map(ToString::to_string).collect(),
            requestor: request.requestor.as_deref().map(str::to_owned),
            tenant: request.tenant_name.as_ref().map(ToString::to_string),
            provider: request.provider.as_ref().map(ToString::to_string),
            relative_priority: request.relative_priority,
            declined_by: request
                .declined_by
                .iter()
                .map(ToString::to_string)
                .collect(),
            event_id: request.event_id.as_deref().map(str::to_owned),
            lease: nodeyard_lease::lease_of_request(request).map(|lease| lease.to_string()),
        }
    }

    /// The request of a lease whose record is gone: it has what it asked for, or is over.
    fn of_lease(id: RequestId, status: &LeaseStatus) -> Self {
        let lease = &status.lease;
        let fulfilled = !lease.nodes.is_empty();
        let since = lease.end.as_ref().map_or(lease.created, |end| end.at);
        let provider = lease.placement.provider();
        Self {
            id: id.to_string(),
            state: if fulfilled {
                RequestState::Fulfilled.as_str()
            } else {
                RequestState::Failed.as_str()
            },
            since: time::shown(since),
            created: time::shown(lease.created),
            labels: lease.spec.labels.iter().map(ToString::to_string).collect(),
            nodes: lease
                .nodes
                .iter()
                .map(|part| part.node.to_string())
                .collect(),
            requestor: Some(lease.requestor.to_string()),
            tenant: lease.tenant.as_ref().map(ToString::to_string),
            provider: provider.map(ToString::to_string),
            relative_priority: lease.spec.relative_priority,
            declined_by: Vec::new(),
            event_id: None,
            lease: Some(status.id.to_string()),
        }
    }
}

/// Which requests to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestQuery {
    /// Only in this state.
    #[param(value_type = Option<schema::RequestState>)]
    state: Option<RequestState>,
    /// Only those that ask for this label.
    label: Option<String>,
    /// Only of this requestor.
    requestor: Option<String>,
    /// How many to list at once.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    /// The `next` of the page before.
    #[param(value_type = Option<schema::Cursor>)]
    cursor: Option<String>,
}

impl RequestQuery {
    fn wants(&self, request: &model::NodeRequest) -> bool {
        let state = self.state.is_none_or(|state| state == request.state);
        let label = self.label.as_ref().is_none_or(|label| {
            let mut labels = request.labels.iter();
            labels.any(|own| own.as_str() == label)
        });
        let requestor = self
            .requestor
            .as_deref()
            .is_none_or(|requestor| request.requestor.as_deref() == Some(requestor));
        state && label && requestor
    }
}

/// List requests
///
/// Those of Zuul as well as those behind leases. The request of a lease goes when its nodes are taken; the lease
/// stays.
#[utoipa::path(
    get, path = "/requests", tag = "requests", params(RequestQuery),
    responses((status = 200, description = "Requests, in the order of their ids.", body = Page<Request>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_requests(
    State(app): State<App>,
    Insider(caller): Insider,
    Query(query): Query<RequestQuery>,
) -> Result<Answer<Page<Request>>> {
    let place = Place::new(query.limit, query.cursor.as_deref())?;
    let mut found = Vec::new();
    app.views.requests.for_each(|item| {
        let visible = caller.sees(item.value.tenant_name.as_ref());
        if visible && place.is_before(&item.id) && query.wants(&item.value) {
            found.push(item);
        }
    });
    let page = place.fill(found.iter().map(|item| (item.id, item)));
    let shown = |item: &Item<RequestShape>| Request::of(item.id, &item.value);
    Ok(Answer::ok(Page {
        items: page.items.into_iter().map(shown).collect(),
        next: page.next,
    }))
}

/// Show a request
///
/// With `wait` the answer comes when it is fulfilled or failed. Of a request that was made for a lease it is told what
/// became of it as long as the lease is known.
#[utoipa::path(
    get, path = "/requests/{id}", tag = "requests",
    params(("id" = schema::RequestId, Path, description = "Its id."), WaitQuery),
    responses((status = 200, description = "The request.", body = Request)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_request(
    State(app): State<App>,
    Insider(caller): Insider,
    Named(id): Named<String>,
    Query(query): Query<WaitQuery>,
) -> Result<Answer<Request>> {
    let patience = query.patience()?;
    let request: RequestId = id.parse().map_err(|_| unknown(&id))?;
    let waiter = app.hub.waiting.join(Kind::Request, &id);
    let settled = async {
        loop {
            let change = waiter.next_change();
            let found = find(&app, &caller, request).await?;
            if found.is_settled() {
                return Ok::<_, Problem>(found);
            }
            change.await;
        }
    };
    let found = match app.wait(patience, settled).await? {
        Some(settled) => settled?,
        None => find(&app, &caller, request).await?,
    };
    Ok(Answer::ok(found))
}

/// Take a request back
///
/// Ends the lease it was made for. Requests of others, such as Zuul, are theirs to take back.
#[utoipa::path(
    delete, path = "/requests/{id}", tag = "requests",
    params(("id" = schema::RequestId, Path, description = "Its id.")),
    responses(
        (status = 200, description = "Its lease is over.", body = Lease),
        (status = 409, description = "It was not made here.", body = Problem, content_type = "application/problem+json"),
    ),
    security(("token" = ["request"])),
)]
pub(crate) async fn cancel_request(
    State(app): State<App>,
    Requestor(caller): Requestor,
    Named(id): Named<String>,
) -> Result<Answer<Lease>> {
    let request: RequestId = id.parse().map_err(|_| unknown(&id))?;
    find(&app, &caller, request).await?;
    match app.leases.find_by_request(request) {
        Some(lease) => leases::end(&app, &caller, lease).await,
        None => Err(Problem::conflict(format!(
            "request {id} was not made here; its requestor has to take it back"
        ))),
    }
}

/// Why a request waits, or what became of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Explanation {
    /// For people.
    text: String,
    /// For programs: each pool that was considered, its verdict and the sums behind it, and what has to happen next.
    #[schema(value_type = Object)]
    reasons: serde_json::Value,
}

/// Explain a request
///
/// Says of each pool why it does not serve the request, and what has to happen next. Of requests that have ended it is
/// told for a while what became of them.
#[utoipa::path(
    get, path = "/requests/{id}/explanation", tag = "requests",
    params(("id" = schema::RequestId, Path, description = "Its id.")),
    responses((status = 200, description = "Why it waits, or what became of it.", body = Explanation)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn explain_request(
    State(app): State<App>,
    Insider(caller): Insider,
    Named(id): Named<String>,
) -> Result<Answer<Explanation>> {
    let unknown = || Problem::not_found(format!("nothing is known of a request {id:?}"));
    let request: RequestId = id.parse().map_err(|_| unknown())?;
    // Of what has ended it is not known whose it was.
    if caller.tenant().is_some() {
        find(&app, &caller, request).await?;
    }
    explain(&app, request).await?.ok_or_else(unknown)
}

pub(crate) async fn explain(app: &App, request: RequestId) -> Result<Option<Answer<Explanation>>> {
    let Some(reasons) = app.explain.explain(request).await else {
        return Ok(None);
    };
    let json = serde_json::from_str(&reasons.json).map_err(|error| Problem::internal(&error))?;
    Ok(Some(Answer::ok(Explanation {
        text: reasons.text,
        reasons: json,
    })))
}

fn unknown(id: &str) -> Problem {
    Problem::not_found(format!("there is no request {id:?}"))
}

/// A request that is there for the caller, or was: its record, or what its lease says of it.
async fn find(app: &App, caller: &Caller, id: RequestId) -> Result<Request> {
    let record = match app.views.requests.get(&id) {
        Some(item) => Some((*item.value).clone()),
        // It may have come a moment ago.
        None => app
            .registry
            .requests()
            .get(id)
            .await?
            .map(|stored| stored.value),
    };
    if let Some(record) = record {
        return match caller.sees(record.tenant_name.as_ref()) {
            true => Ok(Request::of(id, &record)),
            false => Err(unknown(&id.to_string())),
        };
    }
    let lease = app
        .leases
        .find_by_request(id)
        .and_then(|lease| app.leases.cached(lease));
    lease
        .filter(|status| caller.sees(status.lease.tenant.as_ref()))
        .map(|status| Request::of_lease(id, &status))
        .ok_or_else(|| unknown(&id.to_string()))
}

impl Request {
    fn is_settled(&self) -> bool {
        self.state
            .parse()
            .is_ok_and(|state: RequestState| state.is_final())
    }
}

/// As events tell of it.
pub(crate) fn tell(item: &Item<RequestShape>) -> Option<(Subject, String)> {
    let lease = nodeyard_lease::lease_of_request(&item.value).map(|id| id.to_string());
    let nodes = item.value.nodes.iter().map(ToString::to_string);
    let subject = Subject {
        tenant: item.value.tenant_name.clone(),
        related: nodes.chain(lease).map(Into::into).collect(),
        ..Subject::new(Kind::Request, item.id.to_string())
    };
    let shown = Request::of(item.id, &item.value);
    Some((subject, serde_json::to_string(&shown).ok()?))
}
