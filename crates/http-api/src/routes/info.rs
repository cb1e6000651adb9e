//! What this is.

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::access::{Reader, Right};
use crate::answer::{Answer, Result};
use crate::app::App;

/// What answers here, and as whom it sees the caller.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Info {
    #[schema(examples("nodeyard"))]
    name: &'static str,
    /// Of the program.
    #[schema(examples("0.1.0"))]
    version: &'static str,
    /// Of the API.
    #[schema(examples("v1"))]
    api: &'static str,
    /// The launcher has looked at everything and works.
    ready: bool,
    caller: Whoami,
}

/// As whom the server sees the caller.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Whoami {
    /// The name of the token; null without one.
    token: Option<String>,
    /// What it allows.
    right: Right,
    /// The tenant it is confined to.
    tenant: Option<String>,
}

/// Show what answers here
#[utoipa::path(
    get, path = "/info", tag = "info",
    responses((status = 200, description = "What answers here.", body = Info)),
    security((), ("token" = ["read"])),
)]
pub(crate) async fn show_info(
    State(app): State<App>,
    Reader(caller): Reader,
) -> Result<Answer<Info>> {
    Ok(Answer::ok(Info {
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
