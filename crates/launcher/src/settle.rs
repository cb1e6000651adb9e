//! Settles a node that no launch or job owns any more: deletes it, or frees it for other requests.
//!
//! The decision is made on the record as read under the lock of the node. The record of a deleted node is removed
//! last, so that the deletion can be resumed after a crash at any point.

use std::sync::Arc;

use nodeyard_model::{Node, NodeId, NodeState, RequestId, layout};
use nodeyard_plan::protocol::{
    self,
    node::{Clean, ObservedState},
};
use nodeyard_store::ext::{self, persist_in_session};
use nodeyard_store::registry::{Attempt, Held, Patience};
use nodeyard_store::{Error, Op, Result, TreePath, Version};
use tracing::{debug, info, warn};

use crate::commit::{commit, set_node, unlock};
use crate::context::Context;
use crate::provider::Provider;
use crate::removal::delete_machine;
use crate::report::{Settled, TaskReport};

pub(crate) async fn run(ctx: Context, provider: Option<Arc<Provider>>, node: NodeId) {
    let work = async {
        let outcome = settle(&ctx, provider.as_deref(), node).await;
        let outcome = match outcome {
            Ok(Settled::Busy) => ctx.nodes.synced().await.map(|()| Settled::Busy),
            Err(error) if error.is_connection() => {
                debug!(%node, "lost connection to the store while settling node");
                let connected = ext::reconnected(&**ctx.registry.tree()).await;
                connected.map(|_| Settled::Busy)
            }
            outcome => outcome,
        };
        outcome.unwrap_or_else(|error| {
            if let Error::Malformed { path, .. } = &error {
                // The views have logged it already.
                debug!(%node, %path, "failed to settle node: malformed record");
            } else {
                let error = &error as &dyn std::error::Error;
                warn!(%node, error, "failed to settle node; retrying later");
            }
            Settled::Failed
        })
    };
    if let Some(outcome) = Box::pin(ctx.unless_stopped(work)).await {
        ctx.report(TaskReport::Settled { node, outcome });
    }
}

async fn settle(ctx: &Context, provider: Option<&Provider>, id: NodeId) -> Result<Settled> {
    let held = match ctx.registry.nodes().lock(id, Patience::None).await? {
        Attempt::Held(held) => *held,
        // It is tried again when it is seen to be unlocked.
        Attempt::Busy => return Ok(Settled::Busy),
        Attempt::Gone => {
            ctx.nodes.deleted(&id);
            return Ok(Settled::Done);
        }
    };
    let request_exists = match held.value.request() {
        Some(request) => ctx.registry.requests().get(request).await?.is_some(),
        None => false,
    };
    if held.value.state == NodeState::Ready && !request_exists {
        return free(id, held).await;
    }
    match protocol::node::clean(Some(&held.value), request_exists, ctx.clock.now()) {
        Clean::Leave => held.guard.release().await.map(|()| Settled::Done),
        Clean::RemoveRecord => remove_record(ctx, id, held).await,
        Clean::Delete(deleting) => match provider {
            Some(provider) => delete(ctx, provider, id, held, *deleting).await,
            None => held.guard.release().await.map(|()| Settled::Failed),
        },
    }
}

/// Unassigns a node that its request does not need any more, so that other requests can get it.
async fn free(id: NodeId, held: Held<Node>) -> Result<Settled> {
    let freed = held
        .value
        .allocated_to
        .clone()
        .and_then(|holder| protocol::node::free(Some(&held.value), holder).ok());
    if let Some(freed) = freed {
        let ops = vec![
            set_node(id, &freed, held.stat.version)?,
            unlock(&held.guard),
        ];
        commit(&held.guard, ops).await?;
        held.guard.forget();
        info!(node = %id, "unassigned node");
    } else {
        held.guard.release().await?;
    }
    Ok(Settled::Done)
}

async fn delete(
    ctx: &Context,
    provider: &Provider,
    id: NodeId,
    mut held: Held<Node>,
    deleting: Node,
) -> Result<Settled> {
    if let Some(machines) = provider.machines() {
        if held.value.state != NodeState::Deleting {
            held.value = deleting;
            let nodes = ctx.registry.nodes();
            let store = || nodes.store(&held.guard, id, &held.value);
            persist_in_session(&**held.guard.tree(), store).await?;
        }
        let removal = delete_machine(machines, id, &held.value, ctx.timing.delete_limit);
        let removed = tokio::select! {
            removed = removal => removed,
            () = held.guard.lost() => return Err(Error::SessionExpired),
        };
        if let Err(error) = removed {
            warn!(
                node = %id,
                provider = %provider.name,
                error = &error as &dyn std::error::Error,
                "failed to delete node; retrying later"
            );
            held.guard.release().await?;
            return Ok(Settled::Failed);
        }
    }
    let settled = remove_record(ctx, id, held).await?;
    info!(node = %id, provider = %provider.name, "deleted node");
    Ok(settled)
}

/// Removes the record and its lock atomically. If the lock has other contenders, `deleted` is written first for them
/// to read.
async fn remove_record(ctx: &Context, id: NodeId, held: Held<Node>) -> Result<Settled> {
    let delete = |path: String| -> Result<Op> {
        Ok(Op::Delete {
            path: TreePath::new(path)?,
            version: Version::Any,
        })
    };
    let ops = vec![
        unlock(&held.guard),
        delete(layout::node_lock(id))?,
        delete(layout::node(id))?,
    ];
    match commit(&held.guard, ops).await {
        Ok(_) => held.guard.forget(),
        Err(Error::Multi { .. }) => {
            let now = ctx.clock.now();
            ctx.registry.nodes().delete(id, held, now).await?;
        }
        Err(error) => return Err(error),
    }
    ctx.nodes.deleted(&id);
    Ok(Settled::Done)
}

/// Spawns [`retire`].
pub(crate) fn spawn_retire(ctx: &Context, id: NodeId, seen: ObservedState, why: String) {
    let work = retire(ctx.clone(), id, seen, why);
    ctx.spawn(id, work, TaskReport::NotEvicted(id));
}

/// Marks an idle or held node for deletion if it is still as it was seen: it takes room that a request needs, or is too
/// old. [`run`] does the rest.
pub(crate) async fn retire(ctx: Context, id: NodeId, seen: ObservedState, why: String) {
    let retired = async {
        let Some(held) = ctx.registry.nodes().lock(id, Patience::None).await?.held() else {
            return Ok(false);
        };
        let Ok(retired) = protocol::node::retire(Some(&held.value), seen, ctx.clock.now()) else {
            held.guard.release().await?;
            return Ok(false);
        };
        let ops = vec![
            set_node(id, &retired, held.stat.version)?,
            unlock(&held.guard),
        ];
        commit(&held.guard, ops).await?;
        held.guard.forget();
        Ok::<bool, Error>(true)
    };
    let Some(retired) = ctx.unless_stopped(retired).await else {
        return;
    };
    match retired {
        Ok(true) => info!(node = %id, reason = why, "marked node for deletion"),
        Ok(false) => ctx.report(TaskReport::NotEvicted(id)),
        Err(error) => {
            debug!(node = %id, %error, "failed to mark node for deletion");
            ctx.report(TaskReport::NotEvicted(id));
        }
    }
}

/// Ends a request of our own for ready nodes: unassigns its nodes, then deletes it. In this order a node is counted at
/// every moment, and no replacement is requested. Can be repeated after an interruption.
pub(crate) async fn collect(ctx: &Context, request: RequestId, nodes: &[NodeId]) -> Result<()> {
    for id in nodes.iter().copied() {
        let attempt = match ctx.registry.nodes().lock(id, Patience::None).await {
            // It counts for no request.
            Err(Error::Malformed { .. }) => continue,
            attempt => attempt?,
        };
        // The owner of the lock finds it without a request later.
        let Some(held) = attempt.held() else { continue };
        if held.value.request() == Some(request) {
            free(id, held).await?;
        } else {
            held.guard.release().await?;
        }
    }
    // The view must show the free nodes before it shows that the request is gone.
    ctx.nodes.synced().await?;
    ctx.registry.requests().delete(request).await?;
    ctx.requests.deleted(&request);
    Ok(())
}
