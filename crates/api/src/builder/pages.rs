//! The pages of a builder: whether it lives, whether it can be asked for something, and what it counts.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::any;

use super::{Sources, families};
use crate::index::IndexPage;
use crate::webapp::pages::{EXPOSITION, HEALTH, TEXT, alive, answer};

pub(crate) fn router(sources: Sources) -> Router {
    let index = IndexPage::new("Nodeyard builder", HEALTH);
    Router::new()
        .route("/", any(async move || index.response()))
        .route("/live", any(async || alive()))
        .route("/ready", any(ready))
        .route("/metrics", any(metrics))
        .with_state(Arc::new(sources))
}

async fn ready(State(sources): State<Arc<Sources>>) -> Response {
    let why_not = match sources.worker.look() {
        None => "the worker has not begun",
        Some(now) if now.connections == 0 => "the worker is connected to no job server",
        Some(_) => return alive(),
    };
    answer(StatusCode::SERVICE_UNAVAILABLE, TEXT, why_not)
}

async fn metrics(State(sources): State<Arc<Sources>>) -> Response {
    let now = sources.worker.look().unwrap_or_default();
    let job_server = sources.job_server.as_ref().map(|server| server.look());
    let text = families::all(&sources.metrics.recorded(), &now, job_server.as_ref());
    answer(StatusCode::OK, EXPOSITION, text)
}
