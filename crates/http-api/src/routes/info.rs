//! Information about the server.

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::access::{ReadAccess, Right};
use crate::app::ApiState;
use crate::response::{JsonResponse, Result};

/// Information about the server and the caller.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Info)]
pub(crate) struct ApiInfo {
    #[schema(examples("nodeyard"))]
    name: &'static str,
    /// The version of the program.
    #[schema(examples("0.1.0"))]
    version: &'static str,
    /// The version of the API.
    #[schema(examples("v1"))]
    api: &'static str,
    /// The launcher has completed its first pass.
    ready: bool,
    caller: Whoami,
}

/// The caller as the server has authenticated it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Whoami {
    /// The name of the token; null without a token.
    token: Option<String>,
    /// The right of the token.
    right: Right,
    /// The tenant that the token is confined to.
    tenant: Option<String>,
}

/// Show information about the server
#[utoipa::path(
    get, path = "/info", tag = "info",
    responses((status = 200, description = "The server.", body = ApiInfo)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_info(
    State(app): State<ApiState>,
    ReadAccess(caller): ReadAccess,
) -> Result<JsonResponse<ApiInfo>> {
    Ok(JsonResponse::ok(ApiInfo {
        name: "nodeyard",
        version: env!("CARGO_PKG_VERSION"),
        api: "v1",
        ready: *app.ready.borrow(),
        caller: Whoami {
            token: caller.name.as_deref().map(str::to_owned),
            right: caller.right(),
            tenant: caller.tenant().map(ToString::to_string),
        },
    }))
}
