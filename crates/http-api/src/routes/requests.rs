//! Node requests, of Zuul and of leases.

use axum::extract::State;
use nodeyard_lease::LeaseStatus;
use nodeyard_model as model;
use nodeyard_model::{RequestId, RequestState};
use nodeyard_store::registry::RequestShape;
use nodeyard_store::view::Item;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::leases::{self, ApiLease, WaitQuery};
use crate::access::{ApiCaller, RequestAccess, TenantDataAccess};
use crate::app::ApiState;
use crate::events::{EventSubject, ObjectKind};
use crate::extract::{PathParams, QueryParams};
use crate::page::{ListPage, Pagination};
use crate::problem::ApiProblem;
use crate::response::{JsonResponse, Result};
use crate::{schema, time};

/// A request for nodes.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Request)]
pub(crate) struct ApiRequest {
    #[schema(value_type = schema::RequestIdSchema)]
    id: String,
    #[schema(value_type = schema::RequestStateSchema)]
    state: &'static str,
    /// When it entered this state.
    #[schema(format = DateTime)]
    since: Option<String>,
    #[schema(format = DateTime)]
    created: Option<String>,
    /// The requested labels, in order.
    #[schema(examples(json!(["debian", "debian"])))]
    labels: Vec<String>,
    /// The allocated nodes, in the order of the labels.
    nodes: Vec<String>,
    /// The requestor of the nodes.
    requestor: Option<String>,
    tenant: Option<String>,
    /// The only acceptable provider.
    provider: Option<String>,
    /// Lower values are served earlier, among requests whose ids begin with the same three digits.
    relative_priority: i64,
    /// The pools that have declined it.
    declined_by: Vec<String>,
    /// Correlates the log lines of all programs that handle one event.
    event_id: Option<String>,
    /// The lease that it was made for.
    #[schema(value_type = Option<schema::LeaseIdSchema>)]
    lease: Option<String>,
}

impl ApiRequest {
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

    /// Returns the request of a lease after its record was deleted: it was fulfilled or has failed.
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
    #[param(value_type = Option<schema::RequestStateSchema>)]
    state: Option<RequestState>,
    /// Only those for this label.
    label: Option<String>,
    /// Only of this requestor.
    requestor: Option<String>,
    /// The maximum number of items.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    /// The `next` of the previous page.
    #[param(value_type = Option<schema::CursorSchema>)]
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
/// Requests of Zuul as well as those of leases. The request of a lease is deleted when its nodes are taken; the lease
/// stays.
#[utoipa::path(
    get, path = "/requests", tag = "requests", params(RequestQuery),
    responses((status = 200, description = "Requests, in the order of their ids.", body = ListPage<ApiRequest>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_requests(
    State(app): State<ApiState>,
    TenantDataAccess(caller): TenantDataAccess,
    QueryParams(query): QueryParams<RequestQuery>,
) -> Result<JsonResponse<ListPage<ApiRequest>>> {
    let pagination = Pagination::new(query.limit, query.cursor.as_deref())?;
    let mut found = Vec::new();
    app.views.requests.for_each(|item| {
        let visible = caller.sees(item.value.tenant_name.as_ref());
        if visible && pagination.starts_before(&item.id) && query.wants(&item.value) {
            found.push(item);
        }
    });
    let page = pagination.page(found.iter().map(|item| (item.id, item)));
    let shown = |item: &Item<RequestShape>| ApiRequest::of(item.id, &item.value);
    Ok(JsonResponse::ok(ListPage {
        items: page.items.into_iter().map(shown).collect(),
        next: page.next,
    }))
}

/// Show a request
///
/// With `wait`, responds when the request is fulfilled or has failed. A deleted request of a lease is shown as long
/// as the lease is known.
#[utoipa::path(
    get, path = "/requests/{id}", tag = "requests",
    params(("id" = schema::RequestIdSchema, Path, description = "Its id."), WaitQuery),
    responses((status = 200, description = "The request.", body = ApiRequest)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_request(
    State(app): State<ApiState>,
    TenantDataAccess(caller): TenantDataAccess,
    PathParams(id): PathParams<String>,
    QueryParams(query): QueryParams<WaitQuery>,
) -> Result<JsonResponse<ApiRequest>> {
    let timeout = query.timeout()?;
    let request: RequestId = id.parse().map_err(|_| unknown(&id))?;
    let waiter = app.hub.waiters.join(ObjectKind::Request, &id);
    let settled = async {
        loop {
            let change = waiter.next_change();
            let found = find(&app, &caller, request).await?;
            if found.is_settled() {
                return Ok::<_, ApiProblem>(found);
            }
            change.await;
        }
    };
    let found = match app.wait(timeout, settled).await? {
        Some(settled) => settled?,
        None => find(&app, &caller, request).await?,
    };
    Ok(JsonResponse::ok(found))
}

/// Cancel a request
///
/// Ends the lease that it was made for. Requests of others, such as Zuul, cannot be cancelled here.
#[utoipa::path(
    delete, path = "/requests/{id}", tag = "requests",
    params(("id" = schema::RequestIdSchema, Path, description = "Its id.")),
    responses(
        (status = 200, description = "Its lease has ended.", body = ApiLease),
        (status = 409, description = "It does not belong to a lease.", body = ApiProblem, content_type = "application/problem+json"),
    ),
    security(("token" = ["request"])),
)]
pub(crate) async fn cancel_request(
    State(app): State<ApiState>,
    RequestAccess(caller): RequestAccess,
    PathParams(id): PathParams<String>,
) -> Result<JsonResponse<ApiLease>> {
    let request: RequestId = id.parse().map_err(|_| unknown(&id))?;
    find(&app, &caller, request).await?;
    match app.leases.find_by_request(request) {
        Some(lease) => leases::end(&app, &caller, lease).await,
        None => Err(ApiProblem::conflict(format!(
            "request {id} does not belong to a lease; only its requestor can cancel it"
        ))),
    }
}

/// Why a request is waiting, or how it ended.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Explanation)]
pub(crate) struct RequestExplanation {
    /// For people.
    text: String,
    /// For programs: each pool that was considered, its verdict and the numbers behind it, and what has to happen next.
    #[schema(value_type = Object)]
    reasons: serde_json::Value,
}

/// Explain a request
///
/// Says for each pool why it does not serve the request, and what has to happen next. The outcome of a request that
/// has ended is kept for some time.
#[utoipa::path(
    get, path = "/requests/{id}/explanation", tag = "requests",
    params(("id" = schema::RequestIdSchema, Path, description = "Its id.")),
    responses((status = 200, description = "Why it is waiting, or how it ended.", body = RequestExplanation)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn explain_request(
    State(app): State<ApiState>,
    TenantDataAccess(caller): TenantDataAccess,
    PathParams(id): PathParams<String>,
) -> Result<JsonResponse<RequestExplanation>> {
    let unknown = || ApiProblem::not_found(format!("no request {id:?}, and no outcome of it"));
    let request: RequestId = id.parse().map_err(|_| unknown())?;
    // The tenant of a request that has ended is not known.
    if caller.tenant().is_some() {
        find(&app, &caller, request).await?;
    }
    explain(&app, request).await?.ok_or_else(unknown)
}

pub(crate) async fn explain(
    app: &ApiState,
    request: RequestId,
) -> Result<Option<JsonResponse<RequestExplanation>>> {
    let Some(reasons) = app.explain.explain(request).await else {
        return Ok(None);
    };
    let json = serde_json::from_str(&reasons.json).map_err(|error| ApiProblem::internal(&error))?;
    Ok(Some(JsonResponse::ok(RequestExplanation {
        text: reasons.text,
        reasons: json,
    })))
}

fn unknown(id: &str) -> ApiProblem {
    ApiProblem::not_found(format!("no request {id:?}"))
}

/// Returns a request that is visible to the caller, from its record or from its lease.
async fn find(app: &ApiState, caller: &ApiCaller, id: RequestId) -> Result<ApiRequest> {
    let record = match app.views.requests.get(&id) {
        Some(item) => Some((*item.value).clone()),
        // The view may not contain a new record yet.
        None => app
            .registry
            .requests()
            .get(id)
            .await?
            .map(|stored| stored.value),
    };
    if let Some(record) = record {
        return match caller.sees(record.tenant_name.as_ref()) {
            true => Ok(ApiRequest::of(id, &record)),
            false => Err(unknown(&id.to_string())),
        };
    }
    let lease = app
        .leases
        .find_by_request(id)
        .and_then(|lease| app.leases.cached(lease));
    lease
        .filter(|status| caller.sees(status.lease.tenant.as_ref()))
        .map(|status| ApiRequest::of_lease(id, &status))
        .ok_or_else(|| unknown(&id.to_string()))
}

impl ApiRequest {
    fn is_settled(&self) -> bool {
        self.state
            .parse()
            .is_ok_and(|state: RequestState| state.is_final())
    }
}

/// Renders a request as an event.
pub(crate) fn to_event(item: &Item<RequestShape>) -> Option<(EventSubject, String)> {
    let lease = nodeyard_lease::lease_of_request(&item.value).map(|id| id.to_string());
    let nodes = item.value.nodes.iter().map(ToString::to_string);
    let subject = EventSubject {
        tenant: item.value.tenant_name.clone(),
        related: nodes.chain(lease).map(Into::into).collect(),
        ..EventSubject::new(ObjectKind::Request, item.id.to_string())
    };
    let shown = ApiRequest::of(item.id, &item.value);
    Some((subject, serde_json::to_string(&shown).ok()?))
}
