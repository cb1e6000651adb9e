//! Where nodes come from: providers, their pools, and the labels these offer.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::State;
use nodeyard_api::{Census, PerState};
use nodeyard_model::{Label as LabelName, PoolComponent, ProviderName};
use nodeyard_store::registry::PoolShape;
use nodeyard_store::view::Item;
use serde::Serialize;
use utoipa::ToSchema;

use crate::access::Reader;
use crate::answer::{Answer, Result};
use crate::app::App;
use crate::events::{Kind, Subject};
use crate::extract::{Named, Query};
use crate::page::{Page, PageQuery, Place};
use crate::problem::Problem;
use crate::schema;

/// One cloud, cluster or set of machines.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Provider {
    name: String,
    /// Null for a provider that left the configuration and still has nodes.
    #[schema(examples("openstack"))]
    driver: Option<&'static str>,
    /// Its pools, as configured.
    pools: Vec<String>,
    /// The images that are uploaded to it.
    images: Vec<String>,
    /// Some launcher runs it now.
    running: bool,
    /// How many nodes it has in each state.
    nodes: BTreeMap<&'static str, u64>,
}

/// A pool of a provider, as run by one launcher.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Pool {
    /// What it writes to its nodes and to the requests that it declines; another one after each restart.
    id: String,
    provider: String,
    name: String,
    /// The host of its launcher.
    launcher: String,
    #[schema(value_type = schema::ComponentState)]
    state: &'static str,
    labels: Vec<String>,
    /// It accepts nothing for now: it waits for room, or is drained.
    paused: bool,
    /// Lower is asked first.
    priority: i64,
    version: Option<String>,
}

/// A kind of node that can be asked for.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Label {
    #[schema(examples("debian"))]
    name: String,
    /// How many are kept ready; null for a label that is not in the configuration of this launcher.
    min_ready: Option<i64>,
    /// The pools that offer it now, as `<provider>/<pool>`.
    pools: Vec<String>,
    /// How many nodes with it there are in each state.
    nodes: BTreeMap<&'static str, u64>,
}

fn counts(counts: &PerState) -> BTreeMap<&'static str, u64> {
    let counts = counts.iter().filter(|(_, count)| *count > 0);
    counts
        .map(|(state, count)| (state.as_str(), count))
        .collect()
}

/// Counting looks at every node, which is not for a thread that others wait for.
async fn census(app: &App) -> Result<Census> {
    let views = app.views.clone();
    let counting = tokio::task::spawn_blocking(move || Census::take(&views));
    counting.await.map_err(|error| Problem::internal(&error))
}

/// List providers
#[utoipa::path(
    get, path = "/providers", tag = "providers", params(PageQuery),
    responses((status = 200, description = "Providers, in the order of their names.", body = Page<Provider>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_providers(
    State(app): State<App>,
    Reader(_): Reader,
    Query(query): Query<PageQuery>,
) -> Result<Answer<Page<Provider>>> {
    let place = Place::new(query.limit, query.cursor.as_deref())?;
    let all = providers(&app).await?;
    let all = all.into_iter().map(|found| (found.name.clone(), found));
    Ok(Answer::ok(place.fill(all)))
}

/// Show a provider
#[utoipa::path(
    get, path = "/providers/{name}", tag = "providers", params(("name" = String, Path, description = "Its name.")),
    responses((status = 200, description = "The provider.", body = Provider)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_provider(
    State(app): State<App>,
    Reader(_): Reader,
    Named(name): Named<String>,
) -> Result<Answer<Provider>> {
    let mut all = providers(&app).await?.into_iter();
    let found = all.find(|provider| provider.name == name);
    found
        .map(Answer::ok)
        .ok_or_else(|| Problem::not_found(format!("there is no provider {name:?}")))
}

async fn providers(app: &App) -> Result<Vec<Provider>> {
    let census = census(app).await?;
    let config = app.config();
    let pools = app.views.pools.items();
    let running: BTreeSet<&ProviderName> =
        pools.iter().map(|pool| &pool.value.provider_name).collect();
    let mut names: BTreeSet<&str> = census
        .by_provider
        .keys()
        .map(ProviderName::as_str)
        .collect();
    names.extend(config.providers.keys().map(String::as_str));
    let nodes = |name: &str| census.by_provider.get(name).map(counts).unwrap_or_default();
    let shown = names.into_iter().map(|name| {
        let configured = config.provider(name);
        let images = configured.map(|provider| provider.diskimages());
        let images = images.iter().flatten();
        let pools = configured.map(nodeyard_config::Provider::pools);
        let pools = pools.iter().flatten();
        Provider {
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
/// Those that launchers run now. The same pool is there once for each launcher that runs it.
#[utoipa::path(
    get, path = "/pools", tag = "providers", params(PageQuery),
    responses((status = 200, description = "Pools, in the order of their ids.", body = Page<Pool>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_pools(
    State(app): State<App>,
    Reader(_): Reader,
    Query(query): Query<PageQuery>,
) -> Result<Answer<Page<Pool>>> {
    let place = Place::new(query.limit, query.cursor.as_deref())?;
    let pools = app.views.pools.items();
    let mut pools: Vec<_> = pools
        .iter()
        .map(|pool| (pool.value.id.to_string(), Pool::of(&pool.value)))
        .collect();
    pools.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(Answer::ok(place.fill(pools)))
}

impl Pool {
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
    responses((status = 200, description = "Labels, in the order of their names.", body = Page<Label>)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn list_labels(
    State(app): State<App>,
    Reader(_): Reader,
    Query(query): Query<PageQuery>,
) -> Result<Answer<Page<Label>>> {
    let place = Place::new(query.limit, query.cursor.as_deref())?;
    let all = labels(&app).await?;
    let all = all.into_iter().map(|label| (label.name.clone(), label));
    Ok(Answer::ok(place.fill(all)))
}

/// Show a label
#[utoipa::path(
    get, path = "/labels/{name}", tag = "providers", params(("name" = String, Path, description = "Its name.")),
    responses((status = 200, description = "The label.", body = Label)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_label(
    State(app): State<App>,
    Reader(_): Reader,
    Named(name): Named<String>,
) -> Result<Answer<Label>> {
    let mut all = labels(&app).await?.into_iter();
    let found = all.find(|label| label.name == name);
    found
        .map(Answer::ok)
        .ok_or_else(|| Problem::not_found(format!("there is no label {name:?}")))
}

async fn labels(app: &App) -> Result<Vec<Label>> {
    let census = census(app).await?;
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
    let mut names: BTreeSet<&str> = census.by_label.keys().map(LabelName::as_str).collect();
    names.extend(config.labels.keys().map(String::as_str));
    let shown = names.into_iter().map(|name| Label {
        name: name.to_owned(),
        min_ready: config.labels.get(name).map(|label| label.min_ready),
        pools: offers.get(name).into_iter().flatten().cloned().collect(),
        nodes: census.by_label.get(name).map(counts).unwrap_or_default(),
    });
    Ok(shown.collect())
}

/// As events tell of a pool.
pub(crate) fn tell(item: &Item<PoolShape>) -> Option<(Subject, String)> {
    let pool = &item.value;
    let subject = Subject {
        related: [pool.provider_name.as_str().into()].into(),
        ..Subject::new(Kind::Pool, pool.id.as_str())
    };
    Some((subject, serde_json::to_string(&Pool::of(pool)).ok()?))
}
