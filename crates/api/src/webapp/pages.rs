//! From a request to its answer.

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

use super::Sources;
use super::accept::{self, Format};
use super::cache::{Cache, MAX_AGE, Page};
use super::lists::{List, Wanted};
use crate::index::IndexPage;

pub(crate) const TEXT: &str = "text/plain; charset=UTF-8";
const JSON: &str = "application/json";
/// The version says which dialect of Prometheus this is.
pub(crate) const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The paths that launchers and builders have in common, with what each shows.
pub(crate) const HEALTH: [(&str, &str); 3] = [
    ("/live", "whether the process runs"),
    ("/ready", "whether it is ready to work"),
    ("/metrics", "metrics for Prometheus"),
];

pub(super) fn router(sources: Sources) -> Router {
    let index = IndexPage::new("Nodeyard launcher", List::PATHS.into_iter().chain(HEALTH));
    Router::new()
        .route("/", any(async move || index.response()))
        .route("/live", any(async || alive()))
        .route("/ready", any(ready))
        .route("/metrics", any(metrics))
        .route("/explain/{request}", any(explain))
        .route("/{list}", any(list))
        .with_state(Arc::new(App {
            sources,
            lists: Mutex::default(),
        }))
}

struct App {
    sources: Sources,
    /// Held while a page is made.
    lists: Mutex<Cache<Wanted>>,
}

async fn ready(State(app): State<Arc<App>>) -> Response {
    if *app.sources.ready.borrow() {
        alive()
    } else {
        let body = "the launcher has not worked through its first pass yet";
        answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, body)
    }
}

pub(crate) fn alive() -> Response {
    answer(StatusCode::OK, TEXT, "OK")
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    let _turn = app.lists.lock().await;
    let sources = app.sources.clone();
    let made = tokio::task::spawn_blocking(move || sources.metrics.exposition(&sources.views));
    match made.await {
        Ok(text) => answer(StatusCode::OK, EXPOSITION, text),
        Err(error) => failure(&error),
    }
}

/// Not kept: what stands in the way of a request changes by the moment.
async fn explain(
    State(app): State<Arc<App>>,
    Path(request): Path<String>,
    headers: HeaderMap,
) -> Response {
    let Ok(request) = request.parse() else {
        let body = "a request is called <precedence>-<number>, as in 200-0000000001";
        return answer(StatusCode::BAD_REQUEST, TEXT, body);
    };
    let Some(reasons) = app.sources.explain.explain(request).await else {
        return answer(StatusCode::NOT_FOUND, TEXT, "there is no such request");
    };
    match accept::format(&headers) {
        Some(Format::Json) => answer(StatusCode::OK, JSON, reasons.json),
        _ => answer(StatusCode::OK, TEXT, reasons.text),
    }
}

async fn list(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    Query(parameters): Query<Vec<(String, String)>>,
    headers: HeaderMap,
) -> Response {
    let Some(list) = List::named(&name) else {
        return answer(StatusCode::NOT_FOUND, TEXT, "there is no such page");
    };
    let Some(format) = accept::format(&headers) else {
        let body = "there is text/plain and application/json";
        return answer(StatusCode::NOT_ACCEPTABLE, TEXT, body);
    };
    match app.page(Wanted::new(list, format, parameters)).await {
        Ok(page) => conditional(&headers, format, page),
        Err(response) => response,
    }
}

impl App {
    async fn page(&self, wanted: Wanted) -> Result<Page, Response> {
        let mut lists = self.lists.lock().await;
        if let Some(page) = lists.get(&wanted, Instant::now()) {
            return Ok(page);
        }
        let views = self.sources.views.clone();
        let made = now();
        let rendering = tokio::task::spawn_blocking(move || {
            let body = wanted.render(&views, made);
            (wanted, body)
        });
        let (wanted, body) = rendering.await.map_err(|error| failure(&error))?;
        let body = body.map_err(|error| failure(&error))?;
        let page = Page {
            body: body.into(),
            made: made.into(),
        };
        lists.put(wanted, page.clone(), Instant::now());
        Ok(page)
    }
}

/// The page, or that what the client has is as good.
fn conditional(headers: &HeaderMap, format: Format, page: Page) -> Response {
    // Without an entity tag there is nothing that `If-None-Match` could compare with.
    let known = headers.get(header::IF_MODIFIED_SINCE);
    let known = known.and_then(|value| httpdate::parse_http_date(value.to_str().ok()?).ok());
    let made = httpdate::HttpDate::from(page.made);
    let kind = match format {
        Format::Text => TEXT,
        Format::Json => JSON,
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
        set(&mut response, name, &value);
    }
    response
}

pub(crate) fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Body::from(body.into()));
    *response.status_mut() = status;
    set(&mut response, header::CONTENT_TYPE, kind);
    // Everybody may read everything here, so pages of other origins may, too.
    set(&mut response, header::ACCESS_CONTROL_ALLOW_ORIGIN, "*");
    response
}

fn set(response: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = value.parse() {
        response.headers_mut().insert(name, value);
    }
}

fn failure(error: &(dyn std::error::Error + 'static)) -> Response {
    tracing::error!(error, "cannot make a page");
    answer(
        StatusCode::INTERNAL_SERVER_ERROR,
        TEXT,
        "the page could not be made; see the log",
    )
}
