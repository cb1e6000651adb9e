//! Providers, their pools and labels.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::State;
use nodeyard_api::{NodeStateCounts, RecordCounts};
use nodeyard_model::{Label as LabelName, PoolComponent, ProviderName};
use nodeyard_store::registry::PoolShape;
use nodeyard_store::view::Item;
use serde::Serialize;
use utoipa::ToSchema;

use crate::access::ReadAccess;
use crate::app::ApiState;
use crate::events::{EventSubject, ObjectKind};
use crate::extract::{PathParams, QueryParams};
use crate::page::{ListPage, PageQuery, Pagination};
use crate::problem::ApiProblem;
use crate::response::{JsonResponse, Result};
use crate::schema;

/// One cloud, cluster or set of machines.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Provider)]
pub(crate) struct ApiProvider {
    name: String,
    /// Null for a provider that was removed from the configuration and still has nodes.
    #[schema(examples("openstack"))]
    driver: Option<&'static str>,
    /// Its pools, as configured.
    pools: Vec<String>,
    /// The images that are uploaded to it.
    images: Vec<String>,
    /// A launcher runs it now.
    running: bool,
    /// The number of nodes in each state.
    nodes: BTreeMap<&'static str, u64>,
}

/// A pool of a provider, as run by one launcher.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Pool)]
pub(crate) struct ApiPool {
    /// The id of the pool in its nodes and in the requests that it declines; changes with each restart.
    id: String,
    provider: String,
    name: String,
    /// The host of its launcher.
    launcher: String,
    #[schema(value_type = schema::ComponentStateSchema)]
    state: &'static str,
    labels: Vec<String>,
    /// It accepts no requests at the moment: it waits for quota, its provider did not start, or it is drained.
    paused: bool,
    /// Pools with lower values are used first.
    priority: i64,
    version: Option<String>,
}

/// A kind of node that can be requested.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Label)]
pub(crate) struct ApiLabel {
    #[schema(examples("debian"))]
    name: String,
    /// How many nodes are kept ready; null for a label that is not in this launcher's configuration.
    min_ready: Option<i64>,
    /// The pools that offer it now, as `<provider>/<pool>`.
    pools: Vec<String>,
    /// The number of its nodes in each state.
    nodes: BTreeMap<&'static str, u64>,
}

fn counts(counts: &NodeStateCounts) -> BTreeMap<&'static str, u64> {
    let counts = counts.iter().filter(|(_, count)| *count > 0);
    counts
        .map(|(state, count)| (state.as_str(), count))
        .collect()
}

/// Counts the records on a blocking thread, because there may be many nodes.
async fn count_records(app: &ApiState) -> Result<RecordCounts> {
    let views = app.views.clone();
    let counting = tokio::task::spawn_blocking(move || RecordCounts::take(&views));
    counting.await.map_err(|error| ApiProblem::internal(&error))
}

/// List providers
#[utoipa::path(
    get, path = "/providers", tag = "providers", params(PageQuery),
    responses((status = 200, description = "Providers, in the order of their names.", body = ListPage<ApiProvider>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_providers(
    State(app): State<ApiState>,
    ReadAccess(_): ReadAccess,
    QueryParams(query): QueryParams<PageQuery>,
) -> Result<JsonResponse<ListPage<ApiProvider>>> {
    let pagination = Pagination::new(query.limit, query.cursor.as_deref())?;
    let all = providers(&app).await?;
    let all = all.into_iter().map(|found| (found.name.clone(), found));
    Ok(JsonResponse::ok(pagination.page(all)))
}

/// Show a provider
#[utoipa::path(
    get, path = "/providers/{name}", tag = "providers", params(("name" = String, Path, description = "Its name.")),
    responses((status = 200, description = "The provider.", body = ApiProvider)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_provider(
    State(app): State<ApiState>,
    ReadAccess(_): ReadAccess,
    PathParams(name): PathParams<String>,
) -> Result<JsonResponse<ApiProvider>> {
    let mut all = providers(&app).await?.into_iter();
    let found = all.find(|provider| provider.name == name);
    found
        .map(JsonResponse::ok)
        .ok_or_else(|| ApiProblem::not_found(format!("no provider {name:?}")))
}

async fn providers(app: &ApiState) -> Result<Vec<ApiProvider>> {
    let counted = count_records(app).await?;
    let config = app.config();
    let pools = app.views.pools.items();
    let running: BTreeSet<&ProviderName> =
        pools.iter().map(|pool| &pool.value.provider_name).collect();
    let mut names: BTreeSet<&str> = counted
        .by_provider
        .keys()
        .map(ProviderName::as_str)
        .collect();
    names.extend(config.providers.keys().map(String::as_str));
    let nodes = |name: &str| {
        counted
            .by_provider
            .get(name)
            .map(counts)
            .unwrap_or_default()
    };
    let shown = names.into_iter().map(|name| {
        let configured = config.provider(name);
        let images = configured.map(|provider| provider.diskimages());
        let images = images.iter().flatten();
        let pools = configured.map(nodeyard_config::Provider::pools);
        let pools = pools.iter().flatten();
        ApiProvider {
            name: name.to_owned(),
            driver: configured.map(|provider| provider.driver.name()),
            pools: pools.map(|pool| pool.common.name.to_string()).collect(),
            images: images.map(ToString::to_string).collect(),
            running: running.iter().any(|running| running.as_str() == name),
            nodes: nodes(name),
        }
    });
    Ok(shown.collect())
}

/// List pools
///
/// The pools that launchers run now. A pool is listed once for each launcher that runs it.
#[utoipa::path(
    get, path = "/pools", tag = "providers", params(PageQuery),
    responses((status = 200, description = "Pools, in the order of their ids.", body = ListPage<ApiPool>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_pools(
    State(app): State<ApiState>,
    ReadAccess(_): ReadAccess,
    QueryParams(query): QueryParams<PageQuery>,
) -> Result<JsonResponse<ListPage<ApiPool>>> {
    let pagination = Pagination::new(query.limit, query.cursor.as_deref())?;
    let pools = app.views.pools.items();
    let mut pools: Vec<_> = pools
        .iter()
        .map(|pool| (pool.value.id.to_string(), ApiPool::of(&pool.value)))
        .collect();
    pools.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(JsonResponse::ok(pagination.page(pools)))
}

impl ApiPool {
    fn of(pool: &PoolComponent) -> Self {
        Self {
            id: pool.id.to_string(),
            provider: pool.provider_name.to_string(),
            name: pool.name.to_string(),
            launcher: pool.hostname.to_string(),
            state: pool.state.as_str(),
            labels: pool
                .supported_labels
                .iter()
                .map(ToString::to_string)
                .collect(),
            paused: pool.paused,
            priority: pool.priority,
            version: pool.version.as_deref().map(str::to_owned),
        }
    }
}

/// List labels
#[utoipa::path(
    get, path = "/labels", tag = "providers", params(PageQuery),
    responses((status = 200, description = "Labels, in the order of their names.", body = ListPage<ApiLabel>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_labels(
    State(app): State<ApiState>,
    ReadAccess(_): ReadAccess,
    QueryParams(query): QueryParams<PageQuery>,
) -> Result<JsonResponse<ListPage<ApiLabel>>> {
    let pagination = Pagination::new(query.limit, query.cursor.as_deref())?;
    let all = labels(&app).await?;
    let all = all.into_iter().map(|label| (label.name.clone(), label));
    Ok(JsonResponse::ok(pagination.page(all)))
}

/// Show a label
#[utoipa::path(
    get, path = "/labels/{name}", tag = "providers", params(("name" = String, Path, description = "Its name.")),
    responses((status = 200, description = "The label.", body = ApiLabel)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_label(
    State(app): State<ApiState>,
    ReadAccess(_): ReadAccess,
    PathParams(name): PathParams<String>,
) -> Result<JsonResponse<ApiLabel>> {
    let mut all = labels(&app).await?.into_iter();
    let found = all.find(|label| label.name == name);
    found
        .map(JsonResponse::ok)
        .ok_or_else(|| ApiProblem::not_found(format!("no label {name:?}")))
}

async fn labels(app: &ApiState) -> Result<Vec<ApiLabel>> {
    let counted = count_records(app).await?;
    let config = app.config();
    let pools = app.views.pools.items();
    let mut offers: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for pool in &pools {
        let name = format!("{}/{}", pool.value.provider_name, pool.value.name);
        for label in &pool.value.supported_labels {
            offers
                .entry(label.as_str())
                .or_default()
                .insert(name.clone());
        }
    }
    let mut names: BTreeSet<&str> = counted.by_label.keys().map(LabelName::as_str).collect();
    names.extend(config.labels.keys().map(String::as_str));
    let shown = names.into_iter().map(|name| ApiLabel {
        name: name.to_owned(),
        min_ready: config.labels.get(name).map(|label| label.min_ready),
        pools: offers.get(name).into_iter().flatten().cloned().collect(),
        nodes: counted.by_label.get(name).map(counts).unwrap_or_default(),
    });
    Ok(shown.collect())
}

/// Renders a pool as an event.
pub(crate) fn to_event(item: &Item<PoolShape>) -> Option<(EventSubject, String)> {
    let pool = &item.value;
    let subject = EventSubject {
        related: [pool.provider_name.as_str().into()].into(),
        ..EventSubject::new(ObjectKind::Pool, pool.id.as_str())
    };
    Some((subject, serde_json::to_string(&ApiPool::of(pool)).ok()?))
}
