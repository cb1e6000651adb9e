//! The handlers of the launcher's pages.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::Response;
use axum::routing::any;
use bytes::Bytes;
use nodeyard_model::now;
use tokio::sync::Mutex;

use super::WebappSources;
use super::accept::{self, ListFormat};
use super::cache::{Cache, CachedPage, MAX_AGE};
use super::lists::{ListKind, ListQuery};
use crate::index::IndexPage;

pub(crate) const TEXT: &str = "text/plain; charset=UTF-8";
const JSON: &str = "application/json";
/// The version is that of the Prometheus text format.
pub(crate) const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The paths that launchers and builders have in common, with a description of each.
pub(crate) const HEALTH: [(&str, &str); 3] = [
    ("/live", "whether the process runs"),
    ("/ready", "whether it is ready to work"),
    ("/metrics", "metrics for Prometheus"),
];

pub(super) fn router(sources: WebappSources) -> Router {
    let index = IndexPage::new(
        "Nodeyard launcher",
        ListKind::PATHS.into_iter().chain(HEALTH),
    );
    Router::new()
        .route("/", any(async move || index.response()))
        .route("/live", any(async || alive()))
        .route("/ready", any(ready))
        .route("/metrics", any(metrics))
        .route("/explain/{request}", any(explain))
        .route("/{list}", any(list))
        .with_state(Arc::new(WebappState {
            sources,
            lists: Mutex::default(),
        }))
}

struct WebappState {
    sources: WebappSources,
    /// Locked while a page is rendered.
    lists: Mutex<Cache<ListQuery>>,
}

async fn ready(State(app): State<Arc<WebappState>>) -> Response {
    if *app.sources.ready.borrow() {
        alive()
    } else {
        let body = "the launcher has not completed its first pass yet";
        answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, body)
    }
}

pub(crate) fn alive() -> Response {
    answer(StatusCode::OK, TEXT, "OK")
}

async fn metrics(State(app): State<Arc<WebappState>>) -> Response {
    let _turn = app.lists.lock().await;
    let sources = app.sources.clone();
    let made = tokio::task::spawn_blocking(move || sources.metrics.exposition(&sources.views));
    match made.await {
        Ok(text) => answer(StatusCode::OK, EXPOSITION, text),
        Err(error) => failure(&error),
    }
}

/// Not cached: an explanation changes all the time.
async fn explain(
    State(app): State<Arc<WebappState>>,
    Path(request): Path<String>,
    headers: HeaderMap,
) -> Response {
    let Ok(request) = request.parse() else {
        let body = "invalid request id: expected <precedence>-<number>, such as 200-0000000001";
        return answer(StatusCode::BAD_REQUEST, TEXT, body);
    };
    let Some(reasons) = app.sources.explain.explain(request).await else {
        return answer(StatusCode::NOT_FOUND, TEXT, "no such request");
    };
    match accept::format(&headers) {
        Some(ListFormat::Json) => answer(StatusCode::OK, JSON, reasons.json),
        _ => answer(StatusCode::OK, TEXT, reasons.text),
    }
}

async fn list(
    State(app): State<Arc<WebappState>>,
    Path(name): Path<String>,
    Query(parameters): Query<Vec<(String, String)>>,
    headers: HeaderMap,
) -> Response {
    let Some(list) = ListKind::named(&name) else {
        return answer(StatusCode::NOT_FOUND, TEXT, "no such page");
    };
    let Some(format) = accept::format(&headers) else {
        let body = "plain and application/plain and application/json";
        return answer(StatusCode::NOT_ACCEPTABLE, TEXT, body);
    };
    match app.page(ListQuery::new(list, format, parameters)).await {
        Ok(page) => conditional(&headers, format, page),
        Err(response) => response,
    }
}

impl WebappState {
    async fn page(&self, query: ListQuery) -> Result<CachedPage, Response> {
        let mut lists = self.lists.lock().await;
        if let Some(page) = lists.get(&query, Instant::now()) {
            return Ok(page);
        }
        let views = self.sources.views.clone();
        let made = now();
        let rendering = tokio::task::spawn_blocking(move || {
            let body = query.render(&views, made);
            (query, body)
        });
        let (query, body) = rendering.await.map_err(|error| failure(&error))?;
        let body = body.map_err(|error| failure(&error))?;
        let page = CachedPage {
            body: body.into(),
            made: made.into(),
        };
        lists.put(query, page.clone(), Instant::now());
        Ok(page)
    }
}

/// Returns the page, or 304 if the client's copy is current.
fn conditional(headers: &HeaderMap, format: ListFormat, page: CachedPage) -> Response {
    // Without an entity tag there is nothing that `If-None-Match` could compare with.
    let known = headers.get(header::IF_MODIFIED_SINCE);
    let known = known.and_then(|value| httpdate::parse_http_date(value.to_str().ok()?).ok());
    let made = httpdate::HttpDate::from(page.made);
    let kind = match format {
        ListFormat::Text => TEXT,
        ListFormat::Json => JSON,
    };
    let mut response = if known.is_some_and(|known| made <= known.into()) {
        answer(StatusCode::NOT_MODIFIED, kind, "")
    } else {
        answer(StatusCode::OK, kind, page.body)
    };
    let expires = httpdate::HttpDate::from(page.made + MAX_AGE);
    for (name, value) in [
        (
            header::CACHE_CONTROL,
            format!("max-age={}, public", MAX_AGE.as_secs()),
        ),
        (header::VARY, "Accept".to_owned()),
        (header::LAST_MODIFIED, made.to_string()),
        (header::EXPIRES, expires.to_string()),
    ] {
        set_header(&mut response, name, &value);
    }
    response
}

pub(crate) fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Body::from(body.into()));
    *response.status_mut() = status;
    set_header(&mut response, header::CONTENT_TYPE, kind);
    // Everything here is public, so pages of other origins may read it.
    set_header(&mut response, header::ACCESS_CONTROL_ALLOW_ORIGIN, "*");
    response
}

fn set_header(response: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = value.parse() {
        response.headers_mut().insert(name, value);
    }
}

fn failure(error: &(dyn std::error::Error + 'static)) -> Response {
    tracing::error!(error, "failed to render page");
    answer(
        StatusCode::INTERNAL_SERVER_ERROR,
        TEXT,
        "failed to render the page; see the log",
    )
}
