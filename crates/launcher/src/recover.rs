//! A pending request whose launcher is gone: its nodes are taken back, then it waits again.

use std::sync::Arc;

use nodeyard_model::{NodeId, RequestId};
use nodeyard_plan::protocol;
use nodeyard_store::registry::{Attempt, Patience};
use nodeyard_store::{OpOutcome, Result};
use tracing::{debug, info};

use crate::commit::{commit, set_node, set_request, unlock};
use crate::context::Context;
use crate::report::{Recovered, Report};

pub(crate) async fn run(ctx: Context, request: RequestId) {
    let outcome = tokio::select! {
        outcome = recover(&ctx, request) => outcome,
        () = ctx.stop.cancelled() => return,
    };
    let outcome = outcome.unwrap_or_else(|error| {
        debug!(%request, %error, "failed to recover abandoned request; retrying later");
        Recovered::Again
    });
    ctx.report(Report::Recovered { request, outcome });
}

async fn recover(ctx: &Context, id: RequestId) -> Result<Recovered> {
    let held = match ctx.registry.requests().lock(id, Patience::None).await? {
        Attempt::Held(held) => *held,
        Attempt::Busy => return Ok(Recovered::Again),
        Attempt::Gone => return Ok(Recovered::Done),
    };
    let Ok(waiting) = protocol::request::put_back(Some(&held.value), ctx.clock.now()) else {
        held.guard.release().await?;
        return Ok(Recovered::Done);
    };
    // Whoever had the lock wrote its last records before it lost it; they may not have come to us yet.
    ctx.nodes.synced().await?;
    let nodes = allocated_to(ctx, id);
    for node in &nodes {
        if !take_back(ctx, id, *node).await? {
            held.guard.release().await?;
            return Ok(Recovered::Again);
        }
    }
    // Whoever plans the request next should see the nodes that are free again.
    ctx.nodes.synced().await?;
    let ops = vec![
        set_request(id, &waiting, held.stat.version)?,
        unlock(&held.guard),
    ];
    let outcomes = commit(&held.guard, ops).await?;
    held.guard.forget();
    // In the view at once: as long as it looks pending, it looks left behind.
    match outcomes.as_deref() {
        Some([OpOutcome::Set(stat), ..]) => ctx.requests.wrote(id, Arc::new(waiting), *stat),
        _ => ctx.requests.synced().await?,
    }
    info!(request = %id, nodes = nodes.len(), "requeued request abandoned by its launcher");
    Ok(Recovered::Done)
}

fn allocated_to(ctx: &Context, request: RequestId) -> Vec<NodeId> {
    let mut nodes = Vec::new();
    ctx.nodes.for_each(|node| {
        if node.value.request() == Some(request) {
            nodes.push(node.id);
        }
    });
    nodes
}

/// False if somebody has the node's lock.
async fn take_back(ctx: &Context, request: RequestId, id: NodeId) -> Result<bool> {
    let held = match ctx.registry.nodes().lock(id, Patience::None).await? {
        Attempt::Held(held) => *held,
        Attempt::Busy => return Ok(false),
        Attempt::Gone => return Ok(true),
    };
    match protocol::node::reset(Some(&held.value), request, ctx.clock.now()) {
        Ok(reset) => {
            let ops = vec![
                set_node(id, &reset, held.stat.version)?,
                unlock(&held.guard),
            ];
            commit(&held.guard, ops).await?;
            held.guard.forget();
        }
        Err(_) => held.guard.release().await?,
    }
    Ok(true)
}
