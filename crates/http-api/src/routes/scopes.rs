//! Scopes: names that own several leases.

use async_trait::async_trait;
use axum::extract::State;
use axum::http::StatusCode;
use nodeyard_lease::{Leases, ScopeId, ScopeName, ScopeStatus};
use nodeyard_model::TenantName;
use nodeyard_store::view::Changes;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::leases::Renewal;
use super::refusal::refused;
use crate::access::{Caller, Insider, Requestor, Right};
use crate::answer::{Answer, Result};
use crate::app::App;
use crate::events::{Follow, Kind, Subject};
use crate::extract::{Json, Named, OptionalJson, Query, check_plain};
use crate::page::{Page, PageQuery, Place};
use crate::problem::Problem;
use crate::whole::whole;
use crate::{schema, time};

/// A name that owns leases, or a buildset of Zuul.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Scope {
    #[schema(value_type = schema::ScopeName)]
    name: String,
    tenant: Option<String>,
    /// Who opened it; null for a buildset of Zuul, which can only be looked at.
    owner: Option<String>,
    #[schema(format = DateTime)]
    created: Option<String>,
    /// When it ends unless it is renewed; null for one that lives as long as its leases.
    #[schema(format = DateTime)]
    expires: Option<String>,
    /// Where its first nodes are; later ones come from there as well, if possible.
    provider: Option<String>,
    /// It takes nothing new, and ends with its leases.
    closing: bool,
    leases: Vec<String>,
    /// Requests of Zuul that still wait.
    requests: Vec<String>,
    nodes: Vec<String>,
}

impl Scope {
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
/// Our own, and the buildsets of Zuul that have requests or nodes now.
#[utoipa::path(
    get, path = "/scopes", tag = "scopes", params(PageQuery),
    responses((status = 200, description = "Scopes, in the order of their names.", body = Page<Scope>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_scopes(
    State(app): State<App>,
    Insider(caller): Insider,
    Query(query): Query<PageQuery>,
) -> Result<Answer<Page<Scope>>> {
    let place = Place::new(query.limit, query.cursor.as_deref())?;
    let found = app.leases.scopes(&caller.as_lessee());
    let mut found: Vec<(String, Scope)> = found
        .iter()
        .map(|status| {
            let shown = Scope::of(status);
            // Two tenants may have scopes of one name.
            let key = format!("{} {}", shown.name, shown.tenant.as_deref().unwrap_or(""));
            (key, shown)
        })
        .collect();
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(Answer::ok(place.fill(found)))
}

/// What to open.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"name": "debugging", "duration": 14400})))]
pub(crate) struct NewScope {
    #[schema(value_type = schema::ScopeName)]
    name: String,
    /// For how many seconds it lives unless it is renewed.
    #[serde(deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 2_592_000)]
    duration: u64,
    /// Whose it is; only for tokens that have no tenant of their own.
    #[serde(default)]
    #[schema(value_type = Option<schema::LabelName>)]
    tenant: Option<String>,
}

/// Open a scope
///
/// Requests that name it belong to it. When it is closed, or not renewed in time, their leases end.
#[utoipa::path(
    post, path = "/scopes", tag = "scopes", request_body = NewScope,
    responses(
        (status = 201, description = "It is open.", body = Scope),
        (status = 409, description = "It is open already, or being closed.", body = Problem, content_type = "application/problem+json"),
    ),
    security(("token" = ["request"])),
)]
pub(crate) async fn open_scope(
    State(app): State<App>,
    Requestor(caller): Requestor,
    Json(body): Json<NewScope>,
) -> Result<Answer<Scope>> {
    let name: ScopeName = body.name.parse().map_err(|error| {
        let problem: nodeyard_lease::Error = error;
        match problem {
            nodeyard_lease::Error::Invalid { why, .. } => Problem::invalid_body("/name", why),
            other => refused(other),
        }
    })?;
    let tenant = tenant(body.tenant.as_deref())?;
    let lessee = caller.as_lessee();
    let opened = app
        .leases
        .open_scope(&lessee, tenant.as_ref(), &name, body.duration);
    opened.await.map_err(refused)?;
    let status = app.leases.scope(&lessee, tenant.as_ref(), &name).await;
    let status = status.map_err(refused)?;
    Ok(Answer(StatusCode::CREATED, Scope::of(&status)))
}

fn tenant(text: Option<&str>) -> Result<Option<TenantName>> {
    let Some(text) = text else { return Ok(None) };
    check_plain("/tenant", text)?;
    Ok(Some(text.into()))
}

/// Whose scope is meant.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct TenantQuery {
    /// The tenant of the scope; only for tokens that have no tenant of their own.
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
    params(("name" = schema::ScopeName, Path, description = "Its name."), TenantQuery),
    responses((status = 200, description = "The scope.", body = Scope)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_scope(
    State(app): State<App>,
    Insider(caller): Insider,
    Named(name): Named<String>,
    Query(query): Query<TenantQuery>,
) -> Result<Answer<Scope>> {
    let status = find(&app, &caller, &name, &query).await?;
    Ok(Answer::ok(Scope::of(&status)))
}

fn scope_name(text: &str) -> Result<ScopeName> {
    let name = text.parse();
    name.map_err(|_| Problem::not_found(format!("there is no scope {text:?}")))
}

async fn find(app: &App, caller: &Caller, name: &str, query: &TenantQuery) -> Result<ScopeStatus> {
    let name = scope_name(name)?;
    let tenant = query.tenant();
    let lessee = caller.as_lessee();
    let status = app.leases.scope(&lessee, tenant.as_ref(), &name).await;
    status.map_err(refused)
}

/// A scope that the caller may touch.
async fn own(app: &App, caller: &Caller, name: &str, query: &TenantQuery) -> Result<ScopeStatus> {
    let status = find(app, caller, name, query).await?;
    if let ScopeStatus::Own { scope, .. } = &status {
        let own = caller.tenant().is_some() || caller.name.as_deref() == Some(&*scope.owner);
        if !own && !caller.may(Right::Operate) {
            return Err(Problem::forbidden(
                Right::Operate,
                format!(
                    "the scope is {:?}'s; without the right \"operate\" a token can only use its own",
                    scope.owner
                ),
            ));
        }
    }
    Ok(status)
}

/// List the nodes of a scope as an Ansible inventory
///
/// In the form that `ansible-inventory --list` prints and that dynamic inventories have.
#[utoipa::path(
    get, path = "/scopes/{name}/inventory", tag = "scopes",
    params(("name" = schema::ScopeName, Path, description = "Its name."), TenantQuery),
    responses((status = 200, description = "The inventory.", body = Object)),
    security(("token" = ["request"])),
)]
pub(crate) async fn show_inventory(
    State(app): State<App>,
    Requestor(caller): Requestor,
    Named(name): Named<String>,
    Query(query): Query<TenantQuery>,
) -> Result<Answer<serde_json::Value>> {
    let status = own(&app, &caller, &name, &query).await?;
    if let ScopeStatus::Buildset(_) = status {
        // Zuul's nodes are Zuul's.
        if !caller.may(Right::Operate) {
            let text = "nodes of a buildset are Zuul's; this needs the right \"operate\"";
            return Err(Problem::forbidden(Right::Operate, text));
        }
    }
    Ok(Answer::ok(status.inventory()))
}

/// Renew a scope
#[utoipa::path(
    post, path = "/scopes/{name}/renew", tag = "scopes", request_body = Option<Renewal>,
    params(("name" = schema::ScopeName, Path, description = "Its name."), TenantQuery),
    responses(
        (status = 200, description = "It is renewed.", body = Scope),
        (status = 409, description = "It is being closed, or is Zuul's.", body = Problem, content_type = "application/problem+json"),
    ),
    security(("token" = ["request"])),
)]
pub(crate) async fn renew_scope(
    State(app): State<App>,
    Requestor(caller): Requestor,
    Named(name): Named<String>,
    Query(query): Query<TenantQuery>,
    OptionalJson(body): OptionalJson<Renewal>,
) -> Result<Answer<Scope>> {
    own(&app, &caller, &name, &query).await?;
    let (scope, tenant) = (scope_name(&name)?, query.tenant());
    let lessee = caller.as_lessee();
    let renewed = app
        .leases
        .renew_scope(&lessee, tenant.as_ref(), &scope, body.duration);
    renewed.await.map_err(refused)?;
    let status = find(&app, &caller, &name, &query).await?;
    Ok(Answer::ok(Scope::of(&status)))
}

/// Close a scope
///
/// It takes nothing new; its leases end, one after the other.
#[utoipa::path(
    delete, path = "/scopes/{name}", tag = "scopes",
    params(("name" = schema::ScopeName, Path, description = "Its name."), TenantQuery),
    responses(
        (status = 202, description = "It is being closed.", body = Scope),
        (status = 409, description = "It is Zuul's.", body = Problem, content_type = "application/problem+json"),
    ),
    security(("token" = ["request"])),
)]
pub(crate) async fn close_scope(
    State(app): State<App>,
    Requestor(caller): Requestor,
    Named(name): Named<String>,
    Query(query): Query<TenantQuery>,
) -> Result<Answer<Scope>> {
    let status = own(&app, &caller, &name, &query).await?;
    let (scope, tenant) = (scope_name(&name)?, query.tenant());
    let lessee = caller.as_lessee();
    let closed = app.leases.close_scope(&lessee, tenant.as_ref(), &scope);
    closed.await.map_err(refused)?;
    let mut shown = Scope::of(&status);
    shown.closing = true;
    Ok(Answer(StatusCode::ACCEPTED, shown))
}

/// Scopes, as events tell of them.
pub(crate) struct ScopeFeed(pub(crate) Leases);

#[async_trait]
impl Follow for ScopeFeed {
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

    fn show(&self, id: &ScopeId) -> Option<(Subject, String)> {
        let status = self.0.cached_scope(*id)?;
        let subject = Subject {
            tenant: status.tenant().cloned(),
            ..Subject::new(Kind::Scope, status.name().as_str())
        };
        Some((subject, serde_json::to_string(&Scope::of(&status)).ok()?))
    }
}
