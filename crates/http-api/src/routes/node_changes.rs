//! Reaching, keeping and giving back single nodes.
//!
//! A node of a lease is changed by way of its lease, so that the lease knows. All others are changed as the command
//! line does it, which respects whoever has locked them.

use axum::extract::State;
use nodeyard_lease::{HoldOptions, LeaseId, LeasedNodeState, NodeConnection};
use nodeyard_model::{NodeId, NodeState, now};
use nodeyard_operations as operations;
use serde::Deserialize;
use utoipa::ToSchema;

use super::images::problem;
use super::leases::{self, ConnectionInfo, must_use};
use super::nodes::{Node, find};
use super::refusal::refused;
use crate::access::{Caller, Operator, Requestor, Right};
use crate::answer::{Answer, Result};
use crate::app::App;
use crate::extract::{Named, OptionalJson, check_plain};
use crate::problem::Problem;
use crate::schema;
use crate::whole::maybe_whole;

/// Show how to reach a node
///
/// For whoever has the node, by a lease of their own, and for operators.
#[utoipa::path(
    get, path = "/nodes/{id}/connection", tag = "nodes",
    params(("id" = schema::NodeId, Path, description = "Its id.")),
    responses((status = 200, description = "How to reach it.", body = ConnectionInfo)),
    security(("token" = ["request"])),
)]
pub(crate) async fn show_connection(
    State(app): State<App>,
    Requestor(caller): Requestor,
    Named(id): Named<String>,
) -> Result<Answer<ConnectionInfo>> {
    let node = find(&app, &caller, &id)?;
    match leased(&app, &caller, node.id) {
        Some((lease, _)) => {
            leases::own(&app, &caller, lease).await?;
        }
        None if caller.may(Right::Operate) => {}
        None => {
            return Err(Problem::forbidden(
                Right::Operate,
                format!("node {id} is under no lease of the token"),
            ));
        }
    }
    Ok(Answer::ok(NodeConnection::from_node(&node.value).into()))
}

/// The lease that has a node now, and how.
fn leased(app: &App, caller: &Caller, node: NodeId) -> Option<(LeaseId, LeasedNodeState)> {
    let id = app.leases.find_by_node(node)?;
    let status = app.leases.cached(id)?;
    let state = status.lease.node(node)?.state;
    let visible = caller.sees(status.lease.tenant.as_ref());
    let has = matches!(state, LeasedNodeState::Leased | LeasedNodeState::Held);
    (visible && has).then_some((id, state))
}

/// Why and for how long to hold a node.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(examples(json!({"comment": "the tests hang on it", "expiration": 86400})))]
pub(crate) struct NewHold {
    /// For whoever finds it.
    #[serde(default)]
    #[schema(value_type = Option<schema::LabelName>)]
    comment: Option<String>,
    /// Seconds; without end when absent, as far as `max-hold-age` allows.
    #[serde(default, deserialize_with = "maybe_whole")]
    #[schema(minimum = 1, maximum = 31_536_000)]
    expiration: Option<u32>,
}

const MOST_HOLD: u32 = 31_536_000;

impl NewHold {
    fn check(&self) -> Result<()> {
        if let Some(comment) = &self.comment {
            check_plain("/comment", comment)?;
        }
        if let Some(seconds) = self.expiration
            && !(1..=MOST_HOLD).contains(&seconds)
        {
            let text = format!("it must be from 1 to {MOST_HOLD}");
            return Err(Problem::invalid_body("/expiration", text));
        }
        Ok(())
    }
}

/// Hold a node
///
/// Keeps it for a person to look at. A node of a lease leaves the lease and outlives it.
#[utoipa::path(
    post, path = "/nodes/{id}/hold", tag = "nodes", request_body = Option<NewHold>,
    params(("id" = schema::NodeId, Path, description = "Its id.")),
    responses(
        (status = 200, description = "It is held.", body = Node),
        (status = 409, description = "Somebody else uses it or works on it.", body = Problem, content_type = "application/problem+json"),
    ),
    security(("token" = ["operate"])),
)]
pub(crate) async fn hold_node(
    State(app): State<App>,
    Operator(caller): Operator,
    Named(id): Named<String>,
    OptionalJson(body): OptionalJson<NewHold>,
) -> Result<Answer<Node>> {
    body.check()?;
    let node = find(&app, &caller, &id)?;
    match leased(&app, &caller, node.id) {
        Some((lease, _)) => {
            let hold = HoldOptions {
                comment: body.comment,
                expiration: body.expiration,
            };
            let lessee = caller.as_lessee();
            let held = app.leases.hold(&lessee, lease, node.id, hold).await;
            held.map_err(refused)?;
        }
        None => {
            let hold = operations::nodes::Hold {
                comment: body.comment,
                expiration: body.expiration.map(i64::from),
            };
            let held = operations::nodes::hold(&app.registry, node.id, hold, now());
            held.await.map_err(|error| problem("node", error))?;
        }
    }
    after(&app, &caller, &id).await
}

/// Give a node back
///
/// A node of a lease, by whoever has the lease, or one that is held, by an operator.
#[utoipa::path(
    post, path = "/nodes/{id}/release", tag = "nodes",
    params(("id" = schema::NodeId, Path, description = "Its id.")),
    responses(
        (status = 200, description = "It is given back, and will be deleted.", body = Node),
        (status = 409, description = "Nobody has it, or somebody else.", body = Problem, content_type = "application/problem+json"),
    ),
    security(("token" = ["request"])),
)]
pub(crate) async fn release_node(
    State(app): State<App>,
    Requestor(caller): Requestor,
    Named(id): Named<String>,
) -> Result<Answer<Node>> {
    let node = find(&app, &caller, &id)?;
    let before = Node::of_item(&node);
    let lessee = caller.as_lessee();
    match leased(&app, &caller, node.id) {
        Some((lease, state)) => {
            if let Some(status) = app.leases.cached(lease) {
                must_use(&caller, &status.lease)?;
            }
            let released = match state {
                LeasedNodeState::Held => app.leases.release_hold(&lessee, lease, node.id).await,
                _ => app.leases.release_node(&lessee, lease, node.id).await,
            };
            released.map_err(refused)?;
        }
        None if node.value.state == NodeState::Hold => {
            if !caller.may(Right::Operate) {
                let text = "the node is held by an operator; this needs the right \"operate\"";
                return Err(Problem::forbidden(Right::Operate, text));
            }
            let released = operations::nodes::delete(&app.registry, node.id, now());
            released.await.map_err(|error| problem("node", error))?;
        }
        None => {
            return Err(Problem::conflict(format!(
                "node {id} is {} and under no lease, so there is nothing to give back",
                node.value.state
            )));
        }
    }
    // It may be gone by now, which is as good.
    Ok(after(&app, &caller, &id)
        .await
        .unwrap_or(Answer::ok(before)))
}

/// Delete a node
///
/// Its launcher deletes it. A node of a lease is given back first.
#[utoipa::path(
    delete, path = "/nodes/{id}", tag = "nodes",
    params(("id" = schema::NodeId, Path, description = "Its id.")),
    responses(
        (status = 202, description = "It will be deleted.", body = super::images::Accepted),
        (status = 409, description = "Somebody else uses it or works on it.", body = Problem, content_type = "application/problem+json"),
    ),
    security(("token" = ["operate"])),
)]
pub(crate) async fn delete_node(
    State(app): State<App>,
    Operator(caller): Operator,
    Named(id): Named<String>,
) -> Result<Answer<super::images::Accepted>> {
    let node = find(&app, &caller, &id)?;
    match leased(&app, &caller, node.id) {
        Some((lease, LeasedNodeState::Leased)) => {
            let lessee = caller.as_lessee();
            let released = app.leases.release_node(&lessee, lease, node.id).await;
            released.map_err(refused)?;
        }
        _ => {
            let deleted = operations::nodes::delete(&app.registry, node.id, now());
            deleted.await.map_err(|error| problem("node", error))?;
        }
    }
    Ok(super::images::Accepted::answer(format!(
        "the launcher of node {id} will delete it"
    )))
}

/// The node, with the change that was just made.
async fn after(app: &App, caller: &Caller, id: &str) -> Result<Answer<Node>> {
    app.views.nodes.synced().await?;
    let node = find(app, caller, id)?;
    Ok(Answer::ok(Node::of_item(&node)))
}
