//! Connecting to, holding, releasing and deleting single nodes.
//!
//! A node of a lease is changed through the lease, so that the lease stays consistent. Other nodes are changed as by
//! the command line, which respects their locks.

use axum::extract::State;
use nodeyard_lease::{HoldOptions, LeaseId, LeasedNodeState, NodeConnection};
use nodeyard_model::{NodeId, NodeState, now};
use nodeyard_operations as operations;
use serde::Deserialize;
use utoipa::ToSchema;

use super::images::operation_problem;
use super::lease_errors::lease_problem;
use super::leases::{self, ConnectionInfo, must_use};
use super::nodes::{ApiNode, find};
use crate::access::{ApiCaller, OperateAccess, RequestAccess, Right};
use crate::app::ApiState;
use crate::extract::{OptionalJsonBody, PathParams, check_short_text};
use crate::integer::optional_integer;
use crate::problem::ApiProblem;
use crate::response::{JsonResponse, Result};
use crate::schema;

/// Show how to connect to a node
///
/// Needs a lease with the node, or the right `operate`.
#[utoipa::path(
    get, path = "/nodes/{id}/connection", tag = "nodes",
    params(("id" = schema::NodeIdSchema, Path, description = "Its id.")),
    responses((status = 200, description = "How to connect to it.", body = ConnectionInfo)),
    security(("token" = ["request"])),
)]
pub(crate) async fn show_connection(
    State(app): State<ApiState>,
    RequestAccess(caller): RequestAccess,
    PathParams(id): PathParams<String>,
) -> Result<JsonResponse<ConnectionInfo>> {
    let node = find(&app, &caller, &id)?;
    match leased(&app, &caller, node.id) {
        Some((lease, _)) => {
            leases::find_usable(&app, &caller, lease).await?;
        }
        None if caller.may(Right::Operate) => {}
        None => {
            return Err(ApiProblem::forbidden(
                Right::Operate,
                format!("node {id} belongs to no lease of the token"),
            ));
        }
    }
    Ok(JsonResponse::ok(
        NodeConnection::from_node(&node.value).into(),
    ))
}

/// Returns the lease that has the node now, and the node's state in it.
fn leased(app: &ApiState, caller: &ApiCaller, node: NodeId) -> Option<(LeaseId, LeasedNodeState)> {
    let id = app.leases.find_by_node(node)?;
    let status = app.leases.cached(id)?;
    let state = status.lease.node(node)?.state;
    let visible = caller.sees(status.lease.tenant.as_ref());
    let has = matches!(state, LeasedNodeState::Leased | LeasedNodeState::Held);
    (visible && has).then_some((id, state))
}

/// The comment and expiry of a hold.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"comment": "the tests hang on it", "expiration": 86400})))]
pub(crate) struct NewHold {
    /// Why the node is held.
    #[serde(default)]
    #[schema(value_type = Option<schema::LabelNameSchema>)]
    comment: Option<String>,
    /// In seconds; unlimited if absent, up to `max-hold-age`.
    #[serde(default, deserialize_with = "optional_integer")]
    #[schema(minimum = 1, maximum = 31_536_000)]
    expiration: Option<u32>,
}

const MAX_HOLD: u32 = 31_536_000;

impl NewHold {
    fn check(&self) -> Result<()> {
        if let Some(comment) = &self.comment {
            check_short_text("/comment", comment)?;
        }
        if let Some(seconds) = self.expiration
            && !(1..=MAX_HOLD).contains(&seconds)
        {
            let text = format!("it must be from 1 to {MAX_HOLD}");
            return Err(ApiProblem::invalid_body("/expiration", text));
        }
        Ok(())
    }
}

/// Hold a node
///
/// Keeps it for debugging. A node of a lease leaves the lease and outlives it.
#[utoipa::path(
    post, path = "/nodes/{id}/hold", tag = "nodes", request_body = Option<NewHold>,
    params(("id" = schema::NodeIdSchema, Path, description = "Its id.")),
    responses(
        (status = 200, description = "It is held.", body = ApiNode),
        (status = 409, description = "It is locked.", body = ApiProblem, content_type = "application/problem+json"),
    ),
    security(("token" = ["operate"])),
)]
pub(crate) async fn hold_node(
    State(app): State<ApiState>,
    OperateAccess(caller): OperateAccess,
    PathParams(id): PathParams<String>,
    OptionalJsonBody(body): OptionalJsonBody<NewHold>,
) -> Result<JsonResponse<ApiNode>> {
    body.check()?;
    let node = find(&app, &caller, &id)?;
    match leased(&app, &caller, node.id) {
        Some((lease, _)) => {
            let hold = HoldOptions {
                comment: body.comment,
                expiration: body.expiration,
            };
            let lease_caller = caller.to_lease_caller();
            let held = app.leases.hold(&lease_caller, lease, node.id, hold).await;
            held.map_err(lease_problem)?;
        }
        None => {
            let hold = operations::nodes::HoldOptions {
                comment: body.comment,
                expiration: body.expiration.map(i64::from),
            };
            let held = operations::nodes::hold(&app.registry, node.id, hold, now());
            held.await
                .map_err(|error| operation_problem("node", error))?;
        }
    }
    after(&app, &caller, &id).await
}

/// Release a node
///
/// A node of a lease, with a token that may use the lease; or a held node, with the right `operate`.
#[utoipa::path(
    post, path = "/nodes/{id}/release", tag = "nodes",
    params(("id" = schema::NodeIdSchema, Path, description = "Its id.")),
    responses(
        (status = 200, description = "It is released and will be deleted.", body = ApiNode),
        (status = 409, description = "It is not leased, or by somebody else.", body = ApiProblem, content_type = "application/problem+json"),
    ),
    security(("token" = ["request"])),
)]
pub(crate) async fn release_node(
    State(app): State<ApiState>,
    RequestAccess(caller): RequestAccess,
    PathParams(id): PathParams<String>,
) -> Result<JsonResponse<ApiNode>> {
    let node = find(&app, &caller, &id)?;
    let before = ApiNode::of_item(&node);
    let lease_caller = caller.to_lease_caller();
    match leased(&app, &caller, node.id) {
        Some((lease, state)) => {
            if let Some(status) = app.leases.cached(lease) {
                must_use(&caller, &status.lease)?;
            }
            let released = match state {
                LeasedNodeState::Held => {
                    app.leases.release_hold(&lease_caller, lease, node.id).await
                }
                _ => app.leases.release_node(&lease_caller, lease, node.id).await,
            };
            released.map_err(lease_problem)?;
        }
        None if node.value.state == NodeState::Hold => {
            if !caller.may(Right::Operate) {
                let text =
                    "the node is held by an operator; releasing it needs the right \"operate\"";
                return Err(ApiProblem::forbidden(Right::Operate, text));
            }
            let released = operations::nodes::delete(&app.registry, node.id, now());
            released
                .await
                .map_err(|error| operation_problem("node", error))?;
        }
        None => {
            return Err(ApiProblem::conflict(format!(
                "node {id} is {} and belongs to no lease, so it cannot be released",
                node.value.state
            )));
        }
    }
    // It may be deleted already, which is fine.
    Ok(after(&app, &caller, &id)
        .await
        .unwrap_or(JsonResponse::ok(before)))
}

/// Delete a node
///
/// Its launcher deletes it. A node of a lease is released first.
#[utoipa::path(
    delete, path = "/nodes/{id}", tag = "nodes",
    params(("id" = schema::NodeIdSchema, Path, description = "Its id.")),
    responses(
        (status = 202, description = "It will be deleted.", body = super::images::AcceptedResponse),
        (status = 409, description = "It is locked.", body = ApiProblem, content_type = "application/problem+json"),
    ),
    security(("token" = ["operate"])),
)]
pub(crate) async fn delete_node(
    State(app): State<ApiState>,
    OperateAccess(caller): OperateAccess,
    PathParams(id): PathParams<String>,
) -> Result<JsonResponse<super::images::AcceptedResponse>> {
    let node = find(&app, &caller, &id)?;
    match leased(&app, &caller, node.id) {
        Some((lease, LeasedNodeState::Leased)) => {
            let lease_caller = caller.to_lease_caller();
            let released = app.leases.release_node(&lease_caller, lease, node.id).await;
            released.map_err(lease_problem)?;
        }
        _ => {
            let deleted = operations::nodes::delete(&app.registry, node.id, now());
            deleted
                .await
                .map_err(|error| operation_problem("node", error))?;
        }
    }
    Ok(super::images::AcceptedResponse::response(format!(
        "the launcher of node {id} will delete it"
    )))
}

/// Returns the node with the change that was just made.
async fn after(app: &ApiState, caller: &ApiCaller, id: &str) -> Result<JsonResponse<ApiNode>> {
    app.views.nodes.synced().await?;
    let node = find(app, caller, id)?;
    Ok(JsonResponse::ok(ApiNode::of_item(&node)))
}
