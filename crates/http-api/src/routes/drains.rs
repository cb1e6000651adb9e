//! Drains of launchers, providers, pools and labels.
//!
//! A drain is identified by its target, so starting it again has no effect.

use axum::extract::State;
use axum::http::StatusCode;
use nodeyard_model::{PoolName, ProviderName};
use nodeyard_operations::drain::DrainScope;
use nodeyard_operations::drain::{self, DrainShape, DrainSnapshot};
use nodeyard_store::view::Item;
use serde::Serialize;
use utoipa::ToSchema;

use crate::access::{OperateAccess, ReadAccess, Right};
use crate::app::ApiState;
use crate::events::{EventSubject, ObjectKind};
use crate::extract::{PathParams, has_name_length};
use crate::page::ListPage;
use crate::problem::ApiProblem;
use crate::response::{JsonResponse, Result};
use crate::{schema, time};

/// A drain: its target accepts no new requests.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Drain)]
pub(crate) struct ApiDrain {
    #[schema(inline)]
    kind: DrainKind,
    /// The host of the launcher, or the name of the provider, pool or label.
    #[schema(examples("cloud"))]
    name: String,
    /// The provider of a pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    provider: Option<String>,
    #[schema(format = DateTime)]
    since: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DrainKind {
    Launcher,
    Provider,
    Pool,
    Label,
}

/// A drain and its remaining work.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DrainProgress {
    #[serde(flatten)]
    drain: ApiDrain,
    /// Nothing is in progress any more.
    drained: bool,
    /// Pools that still accept requests: they have not noticed the drain yet, or belong to Python Nodepool.
    accepting: Vec<String>,
    /// Requests in progress.
    requests: Vec<String>,
    /// Nodes that are launching, in use or being deleted.
    nodes: Vec<String>,
    /// Ready nodes that are not allocated; they stay.
    idle: Vec<String>,
    /// Held nodes; they stay.
    held: Vec<String>,
    /// Requests that wait for the end of a label's drain.
    waiting: Vec<String>,
}

impl ApiDrain {
    fn of(scope: &DrainScope, since: Option<String>) -> Self {
        let (kind, name, provider) = match scope {
            DrainScope::Launcher(host) => (DrainKind::Launcher, host.to_string(), None),
            DrainScope::Provider(name) => (DrainKind::Provider, name.to_string(), None),
            DrainScope::Pool(pool, provider) => (
                DrainKind::Pool,
                pool.to_string(),
                Some(provider.to_string()),
            ),
            DrainScope::Label(label) => (DrainKind::Label, label.to_string(), None),
        };
        Self {
            kind,
            name,
            provider,
            since,
        }
    }
}

/// List drains
#[utoipa::path(
    get, path = "/drains", tag = "drains",
    responses((status = 200, description = "All drains in force.", body = ListPage<ApiDrain>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_drains(
    State(app): State<ApiState>,
    ReadAccess(_): ReadAccess,
) -> Result<JsonResponse<ListPage<ApiDrain>>> {
    let items = app.drains.items().into_iter();
    let items = items.map(|item| ApiDrain::of(&item.id, time::of_millis(item.stat.ctime)));
    Ok(JsonResponse::ok(ListPage {
        items: items.collect(),
        next: None,
    }))
}

/// Show a drain and its remaining work
#[utoipa::path(
    get, path = "/drains/{kind}/{name}", tag = "drains",
    params(
        ("kind" = schema::DrainedSchema, Path, description = "The kind of target."),
        ("name" = String, Path, description = "The target: the host of a launcher, the name of a provider, or a label."),
    ),
    responses((status = 200, description = "The drain.", body = DrainProgress)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_drain(
    State(app): State<ApiState>,
    ReadAccess(_): ReadAccess,
    PathParams((kind, name)): PathParams<(String, String)>,
) -> Result<JsonResponse<DrainProgress>> {
    progress(&app, &scope(&kind, name)?)
}

/// Start a drain
///
/// The target accepts no new requests, on all launchers, until the drain is ended. Work in progress is finished.
#[utoipa::path(
    put, path = "/drains/{kind}/{name}", tag = "drains",
    params(
        ("kind" = schema::DrainedSchema, Path, description = "The kind of target."),
        ("name" = String, Path, description = "The target: the host of a launcher, the name of a provider, or a label."),
    ),
    responses(
        (status = 200, description = "It was already in force.", body = DrainProgress),
        (status = 201, description = "It is in force.", body = DrainProgress),
    ),
    security(("token" = ["operate"])),
)]
pub(crate) async fn begin_drain(
    State(app): State<ApiState>,
    OperateAccess(caller): OperateAccess,
    PathParams((kind, name)): PathParams<(String, String)>,
) -> Result<JsonResponse<DrainProgress>> {
    caller.require_all_tenants(Right::Operate)?;
    begin(&app, &scope(&kind, name)?).await
}

/// End a drain
#[utoipa::path(
    delete, path = "/drains/{kind}/{name}", tag = "drains",
    params(
        ("kind" = schema::DrainedSchema, Path, description = "The kind of target."),
        ("name" = String, Path, description = "The target: the host of a launcher, the name of a provider, or a label."),
    ),
    responses((status = 204, description = "It accepts requests again.")),
    security(("token" = ["operate"])),
)]
pub(crate) async fn end_drain(
    State(app): State<ApiState>,
    OperateAccess(caller): OperateAccess,
    PathParams((kind, name)): PathParams<(String, String)>,
) -> Result<StatusCode> {
    caller.require_all_tenants(Right::Operate)?;
    end(&app, &scope(&kind, name)?).await
}

/// Show the drain of a pool and its remaining work
#[utoipa::path(
    get, path = "/drains/pool/{provider}/{pool}", tag = "drains",
    params(("provider" = String, Path, description = "The provider."), ("pool" = String, Path, description = "The pool.")),
    responses((status = 200, description = "The drain.", body = DrainProgress)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_pool_drain(
    State(app): State<ApiState>,
    ReadAccess(_): ReadAccess,
    PathParams((provider, pool)): PathParams<(String, String)>,
) -> Result<JsonResponse<DrainProgress>> {
    progress(&app, &pool_scope(&provider, &pool)?)
}

/// Start the drain of a pool
#[utoipa::path(
    put, path = "/drains/pool/{provider}/{pool}", tag = "drains",
    params(("provider" = String, Path, description = "The provider."), ("pool" = String, Path, description = "The pool.")),
    responses(
        (status = 200, description = "It was already in force.", body = DrainProgress),
        (status = 201, description = "It is in force.", body = DrainProgress),
    ),
    security(("token" = ["operate"])),
)]
pub(crate) async fn begin_pool_drain(
    State(app): State<ApiState>,
    OperateAccess(caller): OperateAccess,
    PathParams((provider, pool)): PathParams<(String, String)>,
) -> Result<JsonResponse<DrainProgress>> {
    caller.require_all_tenants(Right::Operate)?;
    begin(&app, &pool_scope(&provider, &pool)?).await
}

/// End the drain of a pool
#[utoipa::path(
    delete, path = "/drains/pool/{provider}/{pool}", tag = "drains",
    params(("provider" = String, Path, description = "The provider."), ("pool" = String, Path, description = "The pool.")),
    responses((status = 204, description = "It accepts requests again.")),
    security(("token" = ["operate"])),
)]
pub(crate) async fn end_pool_drain(
    State(app): State<ApiState>,
    OperateAccess(caller): OperateAccess,
    PathParams((provider, pool)): PathParams<(String, String)>,
) -> Result<StatusCode> {
    caller.require_all_tenants(Right::Operate)?;
    end(&app, &pool_scope(&provider, &pool)?).await
}

fn scope(kind: &str, name: String) -> Result<DrainScope> {
    let unknown = || ApiProblem::not_found(format!("invalid drain: {kind} {name:?}"));
    if !has_name_length(&name) {
        return Err(unknown());
    }
    Ok(match kind {
        "launcher" => DrainScope::Launcher(name.into()),
        "provider" => {
            DrainScope::Provider(ProviderName::new(name.as_str()).map_err(|_| unknown())?)
        }
        "label" => DrainScope::Label(name.as_str().into()),
        _ => return Err(unknown()),
    })
}

fn pool_scope(provider: &str, pool: &str) -> Result<DrainScope> {
    let unknown = || ApiProblem::not_found(format!("invalid pool {provider:?}/{pool:?}"));
    if !has_name_length(pool) || !has_name_length(provider) {
        return Err(unknown());
    }
    let name = ProviderName::new(provider).map_err(|_| unknown())?;
    Ok(DrainScope::Pool(PoolName::new(pool), name))
}

async fn begin(app: &ApiState, scope: &DrainScope) -> Result<JsonResponse<DrainProgress>> {
    let new = drain::begin(&**app.registry.tree(), scope).await?;
    app.drains.synced().await?;
    let JsonResponse(_, shown) = progress(app, scope)?;
    let status = if new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok(JsonResponse(status, shown))
}

async fn end(app: &ApiState, scope: &DrainScope) -> Result<StatusCode> {
    if drain::end(&**app.registry.tree(), scope).await? {
        app.drains.deleted(scope);
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiProblem::not_found(format!("{scope} is not drained")))
    }
}

fn progress(app: &ApiState, scope: &DrainScope) -> Result<JsonResponse<DrainProgress>> {
    let item = app.drains.get(scope);
    let item = item.ok_or_else(|| ApiProblem::not_found(format!("{scope} is not drained")))?;
    let pools = app.views.pools.items().into_iter();
    let requests = app.views.requests.items().into_iter();
    let nodes = app.views.nodes.items().into_iter();
    let snapshot = DrainSnapshot {
        pools: pools.map(|item| (*item.value).clone()).collect(),
        requests: requests
            .map(|item| (item.id, (*item.value).clone()))
            .collect(),
        nodes: nodes.map(|item| (item.id, (*item.value).clone())).collect(),
    };
    let left = snapshot.remaining(scope);
    fn texts<T: ToString>(all: &[T]) -> Vec<String> {
        all.iter().map(ToString::to_string).collect()
    }
    Ok(JsonResponse::ok(DrainProgress {
        drain: ApiDrain::of(scope, time::of_millis(item.stat.ctime)),
        drained: left.is_drained(),
        accepting: texts(&left.accepting),
        requests: left
            .requests
            .iter()
            .map(|left| left.id.to_string())
            .collect(),
        nodes: left.nodes.iter().map(|left| left.id.to_string()).collect(),
        idle: texts(&left.idle),
        held: texts(&left.held),
        waiting: texts(&left.waiting),
    }))
}

/// Renders a drain as an event.
pub(crate) fn to_event(item: &Item<DrainShape>) -> Option<(EventSubject, String)> {
    let drain = ApiDrain::of(&item.id, time::of_millis(item.stat.ctime));
    let json = serde_json::to_string(&drain).ok()?;
    Some((
        EventSubject::new(ObjectKind::Drain, item.id.to_string()),
        json,
    ))
}
