//! Drains: what is to accept nothing new.
//!
//! A drain has no other name than what is drained, so that is its address, and beginning one twice is beginning it
//! once.

use axum::extract::State;
use axum::http::StatusCode;
use nodeyard_launcher::Scope;
use nodeyard_launcher::drain::{self, DrainShape, Picture};
use nodeyard_model::{PoolName, ProviderName};
use nodeyard_store::view::Item;
use serde::Serialize;
use utoipa::ToSchema;

use crate::access::{Operator, Reader, Right};
use crate::answer::{Answer, Result};
use crate::app::App;
use crate::events::{Kind, Subject};
use crate::extract::{Named, is_short};
use crate::page::Page;
use crate::problem::Problem;
use crate::{schema, time};

/// What is to accept nothing new.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Drain {
    #[schema(inline)]
    kind: DrainKind,
    /// The host of a launcher, or the name of a provider, pool or label.
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

/// A drain, and what is left of its work.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DrainProgress {
    #[serde(flatten)]
    drain: Drain,
    /// Nothing is under way any more.
    drained: bool,
    /// Pools that take requests all the same: they have not noticed yet, or belong to Python Nodepool.
    accepting: Vec<String>,
    /// Requests that are being served.
    requests: Vec<String>,
    /// Nodes on their way to or from a job, or under one.
    nodes: Vec<String>,
    /// Nodes that are ready for nobody; they stay.
    idle: Vec<String>,
    /// Nodes that are held for a person; they stay.
    held: Vec<String>,
    /// Requests that wait for the end of a label's drain.
    waiting: Vec<String>,
}

impl Drain {
    fn of(scope: &Scope, since: Option<String>) -> Self {
        let (kind, name, provider) = match scope {
            Scope::Launcher(host) => (DrainKind::Launcher, host.to_string(), None),
            Scope::Provider(name) => (DrainKind::Provider, name.to_string(), None),
            Scope::Pool(pool, provider) => (
                DrainKind::Pool,
                pool.to_string(),
                Some(provider.to_string()),
            ),
            Scope::Label(label) => (DrainKind::Label, label.to_string(), None),
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
    responses((status = 200, description = "All drains in force.", body = Page<Drain>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_drains(
    State(app): State<App>,
    Reader(_): Reader,
) -> Result<Answer<Page<Drain>>> {
    let items = app.drains.items().into_iter();
    let items = items.map(|item| Drain::of(&item.id, time::of_millis(item.stat.ctime)));
    Ok(Answer::ok(Page {
        items: items.collect(),
        next: None,
    }))
}

/// Show a drain and what is left of its work
#[utoipa::path(
    get, path = "/drains/{kind}/{name}", tag = "drains",
    params(
        ("kind" = schema::Drained, Path, description = "What kind of thing is drained."),
        ("name" = String, Path, description = "Which one: the host of a launcher, the name of a provider, or a label."),
    ),
    responses((status = 200, description = "The drain.", body = DrainProgress)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_drain(
    State(app): State<App>,
    Reader(_): Reader,
    Named((kind, name)): Named<(String, String)>,
) -> Result<Answer<DrainProgress>> {
    progress(&app, &scope(&kind, name)?)
}

/// Begin a drain
///
/// What is drained accepts nothing new, on all launchers and until the drain is taken back. What is under way is
/// finished.
#[utoipa::path(
    put, path = "/drains/{kind}/{name}", tag = "drains",
    params(
        ("kind" = schema::Drained, Path, description = "What kind of thing is drained."),
        ("name" = String, Path, description = "Which one: the host of a launcher, the name of a provider, or a label."),
    ),
    responses(
        (status = 200, description = "It was in force already.", body = DrainProgress),
        (status = 201, description = "It is in force.", body = DrainProgress),
    ),
    security(("token" = ["operate"])),
)]
pub(crate) async fn begin_drain(
    State(app): State<App>,
    Operator(caller): Operator,
    Named((kind, name)): Named<(String, String)>,
) -> Result<Answer<DrainProgress>> {
    caller.concerns_everybody(Right::Operate)?;
    begin(&app, &scope(&kind, name)?).await
}

/// End a drain
#[utoipa::path(
    delete, path = "/drains/{kind}/{name}", tag = "drains",
    params(
        ("kind" = schema::Drained, Path, description = "What kind of thing is drained."),
        ("name" = String, Path, description = "Which one: the host of a launcher, the name of a provider, or a label."),
    ),
    responses((status = 204, description = "It takes requests again.")),
    security(("token" = ["operate"])),
)]
pub(crate) async fn end_drain(
    State(app): State<App>,
    Operator(caller): Operator,
    Named((kind, name)): Named<(String, String)>,
) -> Result<StatusCode> {
    caller.concerns_everybody(Right::Operate)?;
    end(&app, &scope(&kind, name)?).await
}

/// Show the drain of a pool and what is left of its work
#[utoipa::path(
    get, path = "/drains/pool/{provider}/{pool}", tag = "drains",
    params(("provider" = String, Path, description = "The provider."), ("pool" = String, Path, description = "The pool.")),
    responses((status = 200, description = "The drain.", body = DrainProgress)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_pool_drain(
    State(app): State<App>,
    Reader(_): Reader,
    Named((provider, pool)): Named<(String, String)>,
) -> Result<Answer<DrainProgress>> {
    progress(&app, &pool_scope(&provider, &pool)?)
}

/// Begin the drain of a pool
#[utoipa::path(
    put, path = "/drains/pool/{provider}/{pool}", tag = "drains",
    params(("provider" = String, Path, description = "The provider."), ("pool" = String, Path, description = "The pool.")),
    responses(
        (status = 200, description = "It was in force already.", body = DrainProgress),
        (status = 201, description = "It is in force.", body = DrainProgress),
    ),
    security(("token" = ["operate"])),
)]
pub(crate) async fn begin_pool_drain(
    State(app): State<App>,
    Operator(caller): Operator,
    Named((provider, pool)): Named<(String, String)>,
) -> Result<Answer<DrainProgress>> {
    caller.concerns_everybody(Right::Operate)?;
    begin(&app, &pool_scope(&provider, &pool)?).await
}

/// End the drain of a pool
#[utoipa::path(
    delete, path = "/drains/pool/{provider}/{pool}", tag = "drains",
    params(("provider" = String, Path, description = "The provider."), ("pool" = String, Path, description = "The pool.")),
    responses((status = 204, description = "It takes requests again.")),
    security(("token" = ["operate"])),
)]
pub(crate) async fn end_pool_drain(
    State(app): State<App>,
    Operator(caller): Operator,
    Named((provider, pool)): Named<(String, String)>,
) -> Result<StatusCode> {
    caller.concerns_everybody(Right::Operate)?;
    end(&app, &pool_scope(&provider, &pool)?).await
}

fn scope(kind: &str, name: String) -> Result<Scope> {
    let unknown = || Problem::not_found(format!("nothing of kind {kind:?} can be called {name:?}"));
    if !is_short(&name) {
        return Err(unknown());
    }
    Ok(match kind {
        "launcher" => Scope::Launcher(name.into()),
        "provider" => Scope::Provider(ProviderName::new(name.as_str()).map_err(|_| unknown())?),
        "label" => Scope::Label(name.as_str().into()),
        _ => return Err(unknown()),
    })
}

fn pool_scope(provider: &str, pool: &str) -> Result<Scope> {
    let unknown = || Problem::not_found(format!("there can be no pool {provider:?}/{pool:?}"));
    if !is_short(pool) || !is_short(provider) {
        return Err(unknown());
    }
    let name = ProviderName::new(provider).map_err(|_| unknown())?;
    Ok(Scope::Pool(PoolName::new(pool), name))
}

async fn begin(app: &App, scope: &Scope) -> Result<Answer<DrainProgress>> {
    let new = drain::begin(&**app.registry.tree(), scope).await?;
    app.drains.synced().await?;
    let Answer(_, shown) = progress(app, scope)?;
    let status = if new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok(Answer(status, shown))
}

async fn end(app: &App, scope: &Scope) -> Result<StatusCode> {
    if drain::end(&**app.registry.tree(), scope).await? {
        app.drains.deleted(scope);
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(Problem::not_found(format!("{scope} is not drained")))
    }
}

fn progress(app: &App, scope: &Scope) -> Result<Answer<DrainProgress>> {
    let item = app.drains.get(scope);
    let item = item.ok_or_else(|| Problem::not_found(format!("{scope} is not drained")))?;
    let pools = app.views.pools.items().into_iter();
    let requests = app.views.requests.items().into_iter();
    let nodes = app.views.nodes.items().into_iter();
    let picture = Picture {
        pools: pools.map(|item| (*item.value).clone()).collect(),
        requests: requests
            .map(|item| (item.id, (*item.value).clone()))
            .collect(),
        nodes: nodes.map(|item| (item.id, (*item.value).clone())).collect(),
    };
    let left = picture.remaining(scope);
    fn texts<T: ToString>(all: &[T]) -> Vec<String> {
        all.iter().map(ToString::to_string).collect()
    }
    Ok(Answer::ok(DrainProgress {
        drain: Drain::of(scope, time::of_millis(item.stat.ctime)),
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

/// As events tell of it.
pub(crate) fn tell(item: &Item<DrainShape>) -> Option<(Subject, String)> {
    let drain = Drain::of(&item.id, time::of_millis(item.stat.ctime));
    let json = serde_json::to_string(&drain).ok()?;
    Some((Subject::new(Kind::Drain, item.id.to_string()), json))
}
