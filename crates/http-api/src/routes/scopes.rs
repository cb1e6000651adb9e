//! Scopes: named owners of several leases.

use async_trait::async_trait;
use axum::extract::State;
use axum::http::StatusCode;
use nodeyard_lease::{Leases, ScopeId, ScopeName, ScopeStatus};
use nodeyard_model::TenantName;
use nodeyard_store::view::Changes;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::lease_errors::lease_problem;
use super::leases::RenewRequest;
use crate::access::{ApiCaller, RequestAccess, Right, TenantDataAccess};
use crate::app::ApiState;
use crate::events::{EventSource, EventSubject, ObjectKind};
use crate::extract::{JsonBody, OptionalJsonBody, PathParams, QueryParams, check_short_text};
use crate::integer::integer;
use crate::page::{ListPage, PageQuery, Pagination};
use crate::problem::ApiProblem;
use crate::response::{JsonResponse, Result};
use crate::{schema, time};

/// A named owner of leases, or a buildset of Zuul.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Scope)]
pub(crate) struct ApiScope {
    #[schema(value_type = schema::ScopeNameSchema)]
    name: String,
    tenant: Option<String>,
    /// The token that opened it; null for a buildset of Zuul, which is read-only.
    owner: Option<String>,
    #[schema(format = DateTime)]
    created: Option<String>,
    /// When it ends unless it is renewed; null for a scope that ends with its leases.
    #[schema(format = DateTime)]
    expires: Option<String>,
    /// The provider of its first nodes, which is preferred for later ones.
    provider: Option<String>,
    /// It accepts no new leases, and ends with its leases.
    closing: bool,
    leases: Vec<String>,
    /// Waiting requests of Zuul.
    requests: Vec<String>,
    nodes: Vec<String>,
}

impl ApiScope {
    fn of(status: &ScopeStatus) -> Self {
        let nodes = status.nodes();
        let nodes = nodes.iter().map(|(id, ..)| id.to_string()).collect();
        let name = status.name().to_string();
        let tenant = status.tenant().map(ToString::to_string);
        match status {
            ScopeStatus::Own { scope, leases, .. } => Self {
                name,
                tenant,
                owner: Some(scope.owner.to_string()),
                created: time::shown(scope.created),
                expires: scope.expires.and_then(time::shown),
                provider: scope.provider.as_ref().map(ToString::to_string),
                closing: scope.closing,
                leases: leases.iter().map(|lease| lease.id.to_string()).collect(),
                requests: Vec::new(),
                nodes,
            },
            ScopeStatus::Buildset(buildset) => Self {
                name,
                tenant,
                owner: None,
                created: None,
                expires: None,
                provider: None,
                closing: false,
                leases: Vec::new(),
                requests: buildset
                    .requests
                    .iter()
                    .map(|(id, _)| id.to_string())
                    .collect(),
                nodes,
            },
        }
    }
}

/// List scopes
///
/// Scopes opened by clients, and buildsets of Zuul that have requests or nodes now.
#[utoipa::path(
    get, path = "/scopes", tag = "scopes", params(PageQuery),
    responses((status = 200, description = "Scopes, in the order of their names.", body = ListPage<ApiScope>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_scopes(
    State(app): State<ApiState>,
    TenantDataAccess(caller): TenantDataAccess,
    QueryParams(query): QueryParams<PageQuery>,
) -> Result<JsonResponse<ListPage<ApiScope>>> {
    let pagination = Pagination::new(query.limit, query.cursor.as_deref())?;
    let found = app.leases.scopes(&caller.to_lease_caller());
    let mut found: Vec<(String, ApiScope)> = found
        .iter()
        .map(|status| {
            let shown = ApiScope::of(status);
            // Two tenants may have scopes with the same name.
            let key = format!("{} {}", shown.name, shown.tenant.as_deref().unwrap_or(""));
            (key, shown)
        })
        .collect();
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(JsonResponse::ok(pagination.page(found)))
}

/// A scope to open.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"name": "debugging", "duration": 14400})))]
pub(crate) struct NewScope {
    #[schema(value_type = schema::ScopeNameSchema)]
    name: String,
    /// How long it lives unless it is renewed, in seconds.
    #[serde(deserialize_with = "integer")]
    #[schema(minimum = 1, maximum = 2_592_000)]
    duration: u64,
    /// The tenant of the scope; only for tokens without a tenant.
    #[serde(default)]
    #[schema(value_type = Option<schema::LabelNameSchema>)]
    tenant: Option<String>,
}

/// Open a scope
///
/// Leases can name it as their owner. When it is closed, or not renewed in time, its leases end.
#[utoipa::path(
    post, path = "/scopes", tag = "scopes", request_body = NewScope,
    responses(
        (status = 201, description = "It is open.", body = ApiScope),
        (status = 409, description = "It is already open, or being closed.", body = ApiProblem, content_type = "application/problem+json"),
    ),
    security(("token" = ["request"])),
)]
pub(crate) async fn open_scope(
    State(app): State<ApiState>,
    RequestAccess(caller): RequestAccess,
    JsonBody(body): JsonBody<NewScope>,
) -> Result<JsonResponse<ApiScope>> {
    let name: ScopeName = body.name.parse().map_err(|error| {
        let error: nodeyard_lease::Error = error;
        match error {
            nodeyard_lease::Error::Invalid { why, .. } => ApiProblem::invalid_body("/name", why),
            other => lease_problem(other),
        }
    })?;
    let tenant = tenant(body.tenant.as_deref())?;
    let lease_caller = caller.to_lease_caller();
    let opened = app
        .leases
        .open_scope(&lease_caller, tenant.as_ref(), &name, body.duration);
    opened.await.map_err(lease_problem)?;
    let status = app
        .leases
        .scope(&lease_caller, tenant.as_ref(), &name)
        .await;
    let status = status.map_err(lease_problem)?;
    Ok(JsonResponse(StatusCode::CREATED, ApiScope::of(&status)))
}

fn tenant(text: Option<&str>) -> Result<Option<TenantName>> {
    let Some(text) = text else { return Ok(None) };
    check_short_text("/tenant", text)?;
    Ok(Some(text.into()))
}

/// The tenant of the scope.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct TenantQuery {
    /// The tenant of the scope; only for tokens without a tenant.
    tenant: Option<String>,
}

impl TenantQuery {
    fn tenant(&self) -> Option<TenantName> {
        self.tenant.as_deref().map(TenantName::from)
    }
}

/// Show a scope
#[utoipa::path(
    get, path = "/scopes/{name}", tag = "scopes",
    params(("name" = schema::ScopeNameSchema, Path, description = "Its name."), TenantQuery),
    responses((status = 200, description = "The scope.", body = ApiScope)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_scope(
    State(app): State<ApiState>,
    TenantDataAccess(caller): TenantDataAccess,
    PathParams(name): PathParams<String>,
    QueryParams(query): QueryParams<TenantQuery>,
) -> Result<JsonResponse<ApiScope>> {
    let status = find(&app, &caller, &name, &query).await?;
    Ok(JsonResponse::ok(ApiScope::of(&status)))
}

fn scope_name(text: &str) -> Result<ScopeName> {
    let name = text.parse();
    name.map_err(|_| ApiProblem::not_found(format!("no scope {text:?}")))
}

async fn find(
    app: &ApiState,
    caller: &ApiCaller,
    name: &str,
    query: &TenantQuery,
) -> Result<ScopeStatus> {
    let name = scope_name(name)?;
    let tenant = query.tenant();
    let lease_caller = caller.to_lease_caller();
    let status = app
        .leases
        .scope(&lease_caller, tenant.as_ref(), &name)
        .await;
    status.map_err(lease_problem)
}

/// Returns a scope that the caller may use.
async fn find_usable(
    app: &ApiState,
    caller: &ApiCaller,
    name: &str,
    query: &TenantQuery,
) -> Result<ScopeStatus> {
    let status = find(app, caller, name, query).await?;
    if let ScopeStatus::Own { scope, .. } = &status {
        let own = caller.tenant().is_some() || caller.name.as_deref() == Some(&*scope.owner);
        if !own && !caller.may(Right::Operate) {
            return Err(ApiProblem::forbidden(
                Right::Operate,
                format!(
                    "the scope belongs to {:?}; without the right \"operate\" a token can only use its own",
                    scope.owner
                ),
            ));
        }
    }
    Ok(status)
}

/// List the nodes of a scope as an Ansible inventory
///
/// In the format of `ansible-inventory --list` and of dynamic inventories.
#[utoipa::path(
    get, path = "/scopes/{name}/inventory", tag = "scopes",
    params(("name" = schema::ScopeNameSchema, Path, description = "Its name."), TenantQuery),
    responses((status = 200, description = "The inventory.", body = Object)),
    security(("token" = ["request"])),
)]
pub(crate) async fn show_inventory(
    State(app): State<ApiState>,
    RequestAccess(caller): RequestAccess,
    PathParams(name): PathParams<String>,
    QueryParams(query): QueryParams<TenantQuery>,
) -> Result<JsonResponse<serde_json::Value>> {
    let status = find_usable(&app, &caller, &name, &query).await?;
    if let ScopeStatus::Buildset(_) = status {
        // Nodes of a buildset belong to Zuul.
        if !caller.may(Right::Operate) {
            let text =
                "nodes of a buildset belong to Zuul; reading them needs the right \"operate\"";
            return Err(ApiProblem::forbidden(Right::Operate, text));
        }
    }
    Ok(JsonResponse::ok(status.inventory()))
}

/// Renew a scope
#[utoipa::path(
    post, path = "/scopes/{name}/renew", tag = "scopes", request_body = Option<RenewRequest>,
    params(("name" = schema::ScopeNameSchema, Path, description = "Its name."), TenantQuery),
    responses(
        (status = 200, description = "It is renewed.", body = ApiScope),
        (status = 409, description = "It is being closed, or belongs to Zuul.", body = ApiProblem, content_type = "application/problem+json"),
    ),
    security(("token" = ["request"])),
)]
pub(crate) async fn renew_scope(
    State(app): State<ApiState>,
    RequestAccess(caller): RequestAccess,
    PathParams(name): PathParams<String>,
    QueryParams(query): QueryParams<TenantQuery>,
    OptionalJsonBody(body): OptionalJsonBody<RenewRequest>,
) -> Result<JsonResponse<ApiScope>> {
    find_usable(&app, &caller, &name, &query).await?;
    let (scope, tenant) = (scope_name(&name)?, query.tenant());
    let lease_caller = caller.to_lease_caller();
    let renewed = app
        .leases
        .renew_scope(&lease_caller, tenant.as_ref(), &scope, body.duration);
    renewed.await.map_err(lease_problem)?;
    let status = find(&app, &caller, &name, &query).await?;
    Ok(JsonResponse::ok(ApiScope::of(&status)))
}

/// Close a scope
///
/// It accepts no new leases; its leases end one after the other.
#[utoipa::path(
    delete, path = "/scopes/{name}", tag = "scopes",
    params(("name" = schema::ScopeNameSchema, Path, description = "Its name."), TenantQuery),
    responses(
        (status = 202, description = "It is being closed.", body = ApiScope),
        (status = 409, description = "It belongs to Zuul.", body = ApiProblem, content_type = "application/problem+json"),
    ),
    security(("token" = ["request"])),
)]
pub(crate) async fn close_scope(
    State(app): State<ApiState>,
    RequestAccess(caller): RequestAccess,
    PathParams(name): PathParams<String>,
    QueryParams(query): QueryParams<TenantQuery>,
) -> Result<JsonResponse<ApiScope>> {
    let status = find_usable(&app, &caller, &name, &query).await?;
    let (scope, tenant) = (scope_name(&name)?, query.tenant());
    let lease_caller = caller.to_lease_caller();
    let closed = app
        .leases
        .close_scope(&lease_caller, tenant.as_ref(), &scope);
    closed.await.map_err(lease_problem)?;
    let mut shown = ApiScope::of(&status);
    shown.closing = true;
    Ok(JsonResponse(StatusCode::ACCEPTED, shown))
}

/// The source of events about scopes.
pub(crate) struct ScopeSource(pub(crate) Leases);

#[async_trait]
impl EventSource for ScopeSource {
    type Id = ScopeId;
    type Key = ScopeId;

    fn changes(&self) -> Changes<ScopeId> {
        self.0.scope_changes()
    }

    async fn loaded(&self) -> nodeyard_store::Result<()> {
        self.0.synced().await
    }

    fn key(&self, id: &ScopeId) -> ScopeId {
        *id
    }

    fn keys(&self) -> Vec<ScopeId> {
        self.0.cached_ids().1
    }

    fn show(&self, id: &ScopeId) -> Option<(EventSubject, String)> {
        let status = self.0.cached_scope(*id)?;
        let subject = EventSubject {
            tenant: status.tenant().cloned(),
            ..EventSubject::new(ObjectKind::Scope, status.name().as_str())
        };
        Some((subject, serde_json::to_string(&ApiScope::of(&status)).ok()?))
    }
}
