//! Leases: list, renew, release.

mod representation;

use std::time::Duration;

use async_trait::async_trait;
use axum::extract::State;
use nodeyard_lease as lease;
use nodeyard_lease::{LeaseId, LeasePhase, LeaseStatus, Leases};
use nodeyard_store::view::Changes;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::lease_errors::lease_problem;
use super::requests::{RequestExplanation, explain};
use crate::access::{ApiCaller, RequestAccess, Right, TenantDataAccess};
use crate::app::ApiState;
use crate::events::{EventSource, EventSubject, ObjectKind};
use crate::extract::{OptionalJsonBody, PathParams, QueryParams};
use crate::integer::optional_integer;
use crate::page::{ListPage, Pagination};
use crate::problem::ApiProblem;
use crate::response::{JsonResponse, Result};
use crate::schema;

pub(super) use self::representation::{ApiLease, ConnectionInfo};

/// The longest `wait`, in seconds.
const MAX_WAIT: u64 = 60;

/// Returns whether the caller may use a lease: its requestor, callers of its tenant, and operators. Reading it needs
/// only that the tenant is visible.
fn may_use(caller: &ApiCaller, lease: &lease::Lease) -> bool {
    let own = caller.tenant().is_some() || caller.name.as_deref() == Some(&*lease.requestor);
    caller.may(Right::Operate) || own && caller.may(Right::Request)
}

pub(super) fn must_use(caller: &ApiCaller, lease: &lease::Lease) -> Result<()> {
    if may_use(caller, lease) {
        return Ok(());
    }
    Err(ApiProblem::forbidden(
        Right::Operate,
        format!(
            "the lease belongs to {:?}; without the right \"operate\" a token can only use its own",
            lease.requestor
        ),
    ))
}

/// Which leases to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeaseQuery {
    /// Only in this phase.
    #[param(value_type = Option<schema::LeasePhaseSchema>)]
    phase: Option<LeasePhase>,
    /// Only of this requestor.
    requestor: Option<String>,
    /// The maximum number of items.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    /// The `next` of the previous page.
    #[param(value_type = Option<schema::CursorSchema>)]
    cursor: Option<String>,
}

/// List leases
#[utoipa::path(
    get, path = "/leases", tag = "leases", params(LeaseQuery),
    responses((status = 200, description = "Leases, in the order of their ids.", body = ListPage<ApiLease>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_leases(
    State(app): State<ApiState>,
    TenantDataAccess(caller): TenantDataAccess,
    QueryParams(query): QueryParams<LeaseQuery>,
) -> Result<JsonResponse<ListPage<ApiLease>>> {
    let pagination = Pagination::new(query.limit, query.cursor.as_deref())?;
    let mut found = app.leases.list(&caller.to_lease_caller());
    found.retain(|status| {
        let phase = query.phase.is_none_or(|phase| phase == status.lease.phase);
        let requestor = query.requestor.as_deref();
        phase && requestor.is_none_or(|requestor| requestor == &*status.lease.requestor)
    });
    let page = pagination.page(found.iter().map(|status| (status.id, status)));
    let items = page.items.into_iter();
    Ok(JsonResponse::ok(ListPage {
        items: items
            .map(|status| ApiLease::for_caller(&caller, status))
            .collect(),
        next: page.next,
    }))
}

/// How long to wait for a change.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct WaitQuery {
    /// Respond when the lease or request is settled, or after this many seconds.
    #[param(maximum = 60)]
    wait: Option<u64>,
}

impl WaitQuery {
    pub(super) fn timeout(&self) -> Result<Duration> {
        let wait = self.wait.unwrap_or(0);
        if wait > MAX_WAIT {
            return Err(ApiProblem::bad_request(format!(
                "`wait` is {wait}; it must be at most {MAX_WAIT}"
            )));
        }
        Ok(Duration::from_secs(wait))
    }
}

/// Show a lease
///
/// With `wait`, responds when the lease has its nodes or will not get any.
#[utoipa::path(
    get, path = "/leases/{id}", tag = "leases",
    params(("id" = schema::LeaseIdSchema, Path, description = "Its id."), WaitQuery),
    responses((status = 200, description = "The lease.", body = ApiLease)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_lease(
    State(app): State<ApiState>,
    TenantDataAccess(caller): TenantDataAccess,
    PathParams(id): PathParams<String>,
    QueryParams(query): QueryParams<WaitQuery>,
) -> Result<JsonResponse<ApiLease>> {
    let timeout = query.timeout()?;
    let id = lease_id(&id)?;
    let lease_caller = caller.to_lease_caller();
    let waiter = app.hub.waiters.join(ObjectKind::Lease, &id.to_string());
    let settled = async {
        loop {
            let change = waiter.next_change();
            let status = app.leases.get(&lease_caller, id).await?;
            if status.lease.phase.is_settled() {
                return Ok(status);
            }
            change.await;
        }
    };
    let status = match app.wait(timeout, settled).await? {
        Some(settled) => settled,
        None => app.leases.get(&lease_caller, id).await,
    };
    let status = status.map_err(lease_problem)?;
    Ok(JsonResponse::ok(ApiLease::for_caller(&caller, &status)))
}

pub(super) fn lease_id(text: &str) -> Result<LeaseId> {
    let id = text.parse();
    id.map_err(|_| ApiProblem::not_found(format!("no lease {text:?}")))
}

/// Returns a lease that the caller may use.
pub(super) async fn find_usable(
    app: &ApiState,
    caller: &ApiCaller,
    id: LeaseId,
) -> Result<LeaseStatus> {
    let status = app.leases.get(&caller.to_lease_caller(), id).await;
    let status = status.map_err(lease_problem)?;
    must_use(caller, &status.lease)?;
    Ok(status)
}

/// The time to renew for.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"duration": 600})))]
#[schema(as = Renewal)]
pub(crate) struct RenewRequest {
    /// Seconds from now on; the duration of the request if absent.
    #[serde(default, deserialize_with = "optional_integer")]
    #[schema(minimum = 1, maximum = 2_592_000)]
    pub(super) duration: Option<u64>,
}

/// Renew a lease
///
/// A lease that is not renewed in time ends, and its nodes are released.
#[utoipa::path(
    post, path = "/leases/{id}/renew", tag = "leases", request_body = Option<RenewRequest>,
    params(("id" = schema::LeaseIdSchema, Path, description = "Its id.")),
    responses(
        (status = 200, description = "It is renewed.", body = ApiLease),
        (status = 409, description = "It has ended.", body = ApiProblem, content_type = "application/problem+json"),
    ),
    security(("token" = ["request"])),
)]
pub(crate) async fn renew_lease(
    State(app): State<ApiState>,
    RequestAccess(caller): RequestAccess,
    PathParams(id): PathParams<String>,
    OptionalJsonBody(body): OptionalJsonBody<RenewRequest>,
) -> Result<JsonResponse<ApiLease>> {
    let id = lease_id(&id)?;
    find_usable(&app, &caller, id).await?;
    let lease_caller = caller.to_lease_caller();
    let renewed = app.leases.renew(&lease_caller, id, body.duration).await;
    renewed.map_err(lease_problem)?;
    let status = app
        .leases
        .get(&lease_caller, id)
        .await
        .map_err(lease_problem)?;
    Ok(JsonResponse::ok(ApiLease::for_caller(&caller, &status)))
}

/// Release a lease
///
/// A waiting request is cancelled; nodes are released. A lease that has ended is not changed.
#[utoipa::path(
    delete, path = "/leases/{id}", tag = "leases",
    params(("id" = schema::LeaseIdSchema, Path, description = "Its id.")),
    responses((status = 200, description = "It has ended.", body = ApiLease)),
    security(("token" = ["request"])),
)]
pub(crate) async fn end_lease(
    State(app): State<ApiState>,
    RequestAccess(caller): RequestAccess,
    PathParams(id): PathParams<String>,
) -> Result<JsonResponse<ApiLease>> {
    let id = lease_id(&id)?;
    end(&app, &caller, id).await
}

pub(super) async fn end(
    app: &ApiState,
    caller: &ApiCaller,
    id: LeaseId,
) -> Result<JsonResponse<ApiLease>> {
    find_usable(app, caller, id).await?;
    let lease_caller = caller.to_lease_caller();
    app.leases
        .release(&lease_caller, id)
        .await
        .map_err(lease_problem)?;
    let status = app
        .leases
        .get(&lease_caller, id)
        .await
        .map_err(lease_problem)?;
    Ok(JsonResponse::ok(ApiLease::for_caller(caller, &status)))
}

/// Explain why a lease is waiting
#[utoipa::path(
    get, path = "/leases/{id}/explanation", tag = "leases",
    params(("id" = schema::LeaseIdSchema, Path, description = "Its id.")),
    responses((status = 200, description = "Why its request is waiting, or how it ended.", body = RequestExplanation)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn explain_lease(
    State(app): State<ApiState>,
    TenantDataAccess(caller): TenantDataAccess,
    PathParams(id): PathParams<String>,
) -> Result<JsonResponse<RequestExplanation>> {
    let id = lease_id(&id)?;
    let status = app.leases.get(&caller.to_lease_caller(), id).await;
    let status = status.map_err(lease_problem)?;
    let explained = match status.lease.request {
        Some(request) => explain(&app, request).await?,
        None => None,
    };
    explained
        .ok_or_else(|| ApiProblem::not_found(format!("the request of lease {id} is not known yet")))
}

/// The source of events about leases.
pub(crate) struct LeaseSource(pub(crate) Leases);

#[async_trait]
impl EventSource for LeaseSource {
    type Id = LeaseId;
    type Key = LeaseId;

    fn changes(&self) -> Changes<LeaseId> {
        self.0.changes()
    }

    async fn loaded(&self) -> nodeyard_store::Result<()> {
        self.0.synced().await
    }

    fn key(&self, id: &LeaseId) -> LeaseId {
        *id
    }

    fn keys(&self) -> Vec<LeaseId> {
        self.0.cached_ids().0
    }

    fn show(&self, id: &LeaseId) -> Option<(EventSubject, String)> {
        let status = self.0.cached(*id)?;
        let request = status.lease.request.map(|request| request.to_string());
        let nodes = status
            .lease
            .nodes
            .iter()
            .map(|leased| leased.node.to_string());
        let shown = ApiLease::of(&status, false);
        let related = request.into_iter().chain(nodes).chain(shown.scope.clone());
        let subject = EventSubject {
            tenant: status.lease.tenant.clone(),
            related: related.map(Into::into).collect(),
            ..EventSubject::new(ObjectKind::Lease, id.to_string())
        };
        Some((subject, serde_json::to_string(&shown).ok()?))
    }
}
