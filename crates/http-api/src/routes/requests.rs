//! Node requests: those of Zuul, and those behind leases.

use axum::extract::State;
use nodeyard_model as model;
use nodeyard_model::{RequestId, RequestState};
use nodeyard_store::registry::RequestShape;
use nodeyard_store::view::{Item, View};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::access::{Caller, Reader};
use crate::answer::{Answer, Result};
use crate::app::App;
use crate::events::{Follow, Kind, Subject};
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
    Reader(caller): Reader,
    Query(query): Query<RequestQuery>,
) -> Result<Answer<Page<Request>>> {
    let place: Place<RequestId> = Place::new(query.limit, query.cursor.as_deref())?;
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
#[utoipa::path(
    get, path = "/requests/{id}", tag = "requests",
    params(("id" = schema::RequestId, Path, description = "Its id.")),
    responses((status = 200, description = "The request.", body = Request)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_request(
    State(app): State<App>,
    Reader(caller): Reader,
    Named(id): Named<String>,
) -> Result<Answer<Request>> {
    let item = find(&app, &caller, &id)?;
    Ok(Answer::ok(Request::of(item.id, &item.value)))
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
    Reader(caller): Reader,
    Named(id): Named<String>,
) -> Result<Answer<Explanation>> {
    let unknown = || Problem::not_found(format!("nothing is known of a request {id:?}"));
    let request: RequestId = id.parse().map_err(|_| unknown())?;
    // Of what has ended it is not known whose it was.
    if caller.tenant.is_some() {
        find(&app, &caller, &id)?;
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

/// A request that is there for the caller.
pub(crate) fn find(app: &App, caller: &Caller, id: &str) -> Result<Item<RequestShape>> {
    let request = id.parse().ok().and_then(|id| app.views.requests.get(&id));
    request
        .filter(|request| caller.sees(request.value.tenant_name.as_ref()))
        .ok_or_else(|| Problem::not_found(format!("there is no request {id:?}")))
}

/// Requests, as events tell of them.
pub(crate) struct Requests;

impl Follow<RequestShape> for Requests {
    type Key = RequestId;

    fn key(&self, id: &RequestId) -> RequestId {
        *id
    }

    fn show(&self, view: &View<RequestShape>, id: &RequestId) -> Option<(Subject, String)> {
        let item = view.get(id)?;
        let nodes = item.value.nodes.iter();
        let subject = Subject {
            tenant: item.value.tenant_name.clone(),
            related: nodes.map(|id| id.to_string().into()).collect(),
            ..Subject::new(Kind::Request, id.to_string())
        };
        let json = serde_json::to_string(&Request::of(*id, &item.value)).ok()?;
        Some((subject, json))
    }

    fn all(&self, view: &View<RequestShape>) -> Vec<RequestId> {
        view.items().into_iter().map(|item| item.id).collect()
    }
}
