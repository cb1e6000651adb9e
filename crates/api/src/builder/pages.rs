//! The web pages of a builder: `/live`, `/ready` and `/metrics`.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::any;

use super::{BuilderPageSources, families};
use crate::index::IndexPage;
use crate::webapp::pages::{EXPOSITION, HEALTH, TEXT, alive, answer};

pub(crate) fn router(sources: BuilderPageSources) -> Router {
    let index = IndexPage::new("Nodeyard builder", HEALTH);
    Router::new()
        .route("/", any(async move || index.response()))
        .route("/live", any(async || alive()))
        .route("/ready", any(ready))
        .route("/metrics", any(metrics))
        .with_state(Arc::new(sources))
}

async fn ready(State(sources): State<Arc<BuilderPageSources>>) -> Response {
    let reason = match sources.worker.status() {
        None => "the worker has not started",
        Some(now) if now.connections == 0 => "the worker is connected to no job server",
        Some(_) => return alive(),
    };
    answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, reason)
}

async fn metrics(State(sources): State<Arc<BuilderPageSources>>) -> Response {
    let now = sources.worker.status().unwrap_or_default();
    let job_server = sources.job_server.as_ref().map(|server| server.status());
    let text = families::all(&sources.metrics.counters(), &now, job_server.as_ref());
    answer(StatusCode::OK, EXPOSITION, text)
}
