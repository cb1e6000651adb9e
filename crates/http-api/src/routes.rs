//! The routes of the API.
//!
//! Each handler is registered together with its OpenAPI description, so the served `openapi.json` always describes the
//! actual routes.

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

mod lease_errors;
mod node_changes;

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

use crate::access::{self, Authenticator};
use crate::app::ApiState;
use crate::openapi;
use crate::problem::ApiProblem;

const PREFIX: &str = "/api/v1";
const DOCUMENT: &str = "/api/v1/openapi.json";

fn routes_with_descriptions() -> OpenApiRouter<ApiState> {
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
    OpenApiRouter::with_openapi(openapi::base_document()).nest(PREFIX, paths)
}

/// Returns the OpenAPI document.
fn document() -> OpenApi {
    let (_, mut document) = routes_with_descriptions().split_for_parts();
    openapi::add_responses(&mut document);
    document
}

/// Returns an index page with links to the OpenAPI document and to every path without parameters.
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

pub(crate) fn router(app: ApiState, authenticator: Arc<Authenticator>) -> Router {
    let (router, _) = routes_with_descriptions().split_for_parts();
    let document = document();
    let index = index(&document);
    let json = Bytes::from(document.to_json().unwrap_or_default());
    let serve = async move || {
        let content_type = [(axum::http::header::CONTENT_TYPE, "application/json")];
        (content_type, json)
    };
    router
        .route(DOCUMENT, get(serve))
        .route("/", get(async move || index.response()))
        .fallback(async |uri: Uri| {
            ApiProblem::not_found(format!(
                "no such path {}; {DOCUMENT} lists all paths",
                uri.path()
            ))
        })
        .method_not_allowed_fallback(async |method: Method| {
            ApiProblem::method_not_allowed(format!(
                "method {method} is not allowed here; the header `allow` lists the allowed ones"
            ))
        })
        .layer(from_fn_with_state(authenticator, access::authenticate))
        .with_state(app)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_document_matches_the_golden_file() {
        let path = nodeyard_testbeds::checkout().join("docs/openapi.json");
        let document = super::document().to_pretty_json().unwrap() + "\n";
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &document).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(
            document, golden,
            "docs/openapi.json is out of date; `make generate` rewrites it"
        );
    }
}
