//! Every path of the API, and what answers there.
//!
//! A handler and its description stand together, and are registered in one call; so the document that `openapi.json`
//! serves cannot speak of anything else.

pub(crate) mod builds;
pub(crate) mod components;
pub(crate) mod drains;
pub(crate) mod events;
pub(crate) mod images;
pub(crate) mod info;
pub(crate) mod leases;
pub(crate) mod new_request;
pub(crate) mod nodes;
pub(crate) mod providers;
pub(crate) mod requests;
pub(crate) mod scopes;

mod node_changes;
mod refusal;

use std::sync::Arc;

use axum::Router;
use axum::http::{Method, Uri};
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use bytes::Bytes;
use nodeyard_api::index::IndexPage;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::{self, Gate};
use crate::app::App;
use crate::openapi;
use crate::problem::Problem;

const PREFIX: &str = "/api/v1";
const DOCUMENT: &str = "/api/v1/openapi.json";

fn described() -> OpenApiRouter<App> {
    let paths = OpenApiRouter::new()
        .routes(routes!(info::show_info))
        .routes(routes!(
            requests::list_requests,
            new_request::create_request
        ))
        .routes(routes!(requests::show_request, requests::cancel_request))
        .routes(routes!(requests::explain_request))
        .routes(routes!(leases::list_leases))
        .routes(routes!(leases::show_lease, leases::end_lease))
        .routes(routes!(leases::renew_lease))
        .routes(routes!(leases::explain_lease))
        .routes(routes!(scopes::list_scopes, scopes::open_scope))
        .routes(routes!(scopes::show_scope, scopes::close_scope))
        .routes(routes!(scopes::renew_scope))
        .routes(routes!(scopes::show_inventory))
        .routes(routes!(nodes::list_nodes))
        .routes(routes!(nodes::show_node, node_changes::delete_node))
        .routes(routes!(node_changes::show_connection))
        .routes(routes!(node_changes::hold_node))
        .routes(routes!(node_changes::release_node))
        .routes(routes!(images::list_images))
        .routes(routes!(images::show_image))
        .routes(routes!(images::build_image))
        .routes(routes!(images::pause_image, images::unpause_image))
        .routes(routes!(builds::list_builds))
        .routes(routes!(builds::show_build, builds::delete_build))
        .routes(routes!(builds::list_uploads))
        .routes(routes!(builds::show_upload, builds::delete_upload))
        .routes(routes!(providers::list_providers))
        .routes(routes!(providers::show_provider))
        .routes(routes!(providers::list_pools))
        .routes(routes!(providers::list_labels))
        .routes(routes!(providers::show_label))
        .routes(routes!(components::list_components))
        .routes(routes!(drains::list_drains))
        .routes(routes!(
            drains::show_drain,
            drains::begin_drain,
            drains::end_drain
        ))
        .routes(routes!(
            drains::show_pool_drain,
            drains::begin_pool_drain,
            drains::end_pool_drain
        ))
        .routes(routes!(events::follow_events));
    OpenApiRouter::with_openapi(openapi::frame()).nest(PREFIX, paths)
}

/// The document that describes it all.
pub(crate) fn document() -> OpenApi {
    let (_, mut document) = described().split_for_parts();
    openapi::finish(&mut document);
    document
}

/// Returns links to the OpenAPI document and to every path that can be read without naming anything.
fn index(document: &OpenApi) -> IndexPage {
    let paths = document.paths.paths.iter();
    let readable = paths.filter(|(path, _)| !path.contains('{'));
    let readable = readable.filter_map(|(path, item)| {
        let summary = item.get.as_ref()?.summary.as_deref();
        Some((path.as_str(), summary.unwrap_or_default()))
    });
    let links = [(DOCUMENT, "The OpenAPI document")];
    IndexPage::new("Nodeyard API", links.into_iter().chain(readable))
}

pub(crate) fn router(app: App, gate: Arc<Gate>) -> Router {
    let (router, _) = described().split_for_parts();
    let document = document();
    let index = index(&document);
    let json = Bytes::from(document.to_json().unwrap_or_default());
    let serve = async move || {
        let kind = [(axum::http::header::CONTENT_TYPE, "application/json")];
        (kind, json)
    };
    router
        .route(DOCUMENT, get(serve))
        .route("/", get(async move || index.response()))
        .fallback(async |uri: Uri| {
            Problem::not_found(format!(
                "there is nothing at {}; {DOCUMENT} says what there is",
                uri.path()
            ))
        })
        .method_not_allowed_fallback(async |method: Method| {
            Problem::method_not_allowed(format!(
                "{method} cannot be done here; the header `allow` says what can"
            ))
        })
        .layer(from_fn_with_state(gate, access::check))
        .with_state(app)
}
