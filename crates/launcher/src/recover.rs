//! Recovers a pending request whose launcher died: resets its nodes, then requeues it.
//!
//! The lock of the request shows whether its launcher is alive, so recovery waits until the lock is released. It ends
//! early when the request is seen not to be pending any more.

use std::sync::Arc;

use nodeyard_model::{NodeId, RequestId, RequestState};
use nodeyard_plan::protocol;
use nodeyard_store::lock::Lock;
use nodeyard_store::registry::{Attempt, Patience};
use nodeyard_store::{Error, OpOutcome, Result, ext};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use crate::commit::{commit, set_node, set_request, unlock};
use crate::context::Context;
use crate::report::{Recovered, TaskReport};

/// The result of one attempt.
enum RecoveryStep {
    Done,
    /// Another contender holds this lock.
    Blocked(Lock),
}

/// Works until the request is recovered, or `cancelled`.
pub(crate) async fn run(ctx: Context, request: RequestId, cancelled: CancellationToken) {
    let recovered = tokio::select! {
        recovered = recover(&ctx, request) => recovered,
        () = cancelled.cancelled() => return,
        () = ctx.stop.cancelled() => return,
    };
    let outcome = match recovered {
        Ok(()) => Recovered::Done,
        Err(error) => {
            debug!(%request, %error, "failed to recover abandoned request; retrying later");
            Recovered::Again
        }
    };
    ctx.report(TaskReport::Recovered { request, outcome });
}

async fn recover(ctx: &Context, id: RequestId) -> Result<()> {
    let tree = &**ctx.registry.tree();
    while let RecoveryStep::Blocked(lock) = ext::persist(tree, || attempt(ctx, id)).await? {
        debug!(request = %id, lock = %lock.dir(), "waiting for lock to recover request");
        ext::persist(tree, || lock.released()).await?;
        if !ext::persist(tree, || is_pending(ctx, id)).await? {
            break;
        }
    }
    Ok(())
}

/// Returns whether the request is still pending. The previous lock holder may have finished it.
async fn is_pending(ctx: &Context, id: RequestId) -> Result<bool> {
    match ctx.registry.requests().get(id).await? {
        Some(stored) if stored.value.state == RequestState::Pending => return Ok(true),
        Some(stored) => ctx.requests.wrote(id, Arc::new(stored.value), stored.stat),
        None => ctx.requests.deleted(&id),
    }
    Ok(false)
}

async fn attempt(ctx: &Context, id: RequestId) -> Result<RecoveryStep> {
    let requests = ctx.registry.requests();
    let held = match requests.lock(id, Patience::None).await? {
        Attempt::Held(held) => *held,
        Attempt::Busy => return Ok(RecoveryStep::Blocked(requests.lock_of(id)?)),
        Attempt::Gone => return Ok(RecoveryStep::Done),
    };
    let Ok(waiting) = protocol::request::requeue(Some(&held.value), ctx.clock.now()) else {
        held.guard.release().await?;
        return Ok(RecoveryStep::Done);
    };
    // The previous lock holder wrote its last records before it lost the lock; they may not be in the view yet.
    ctx.nodes.synced().await?;
    let nodes = allocated_to(ctx, id).await?;
    for node in &nodes {
        if !reset_node(ctx, id, *node).await? {
            held.guard.release().await?;
            return Ok(RecoveryStep::Blocked(ctx.registry.nodes().lock_of(*node)?));
        }
    }
    // The next launcher to plan the request should see the free nodes.
    ctx.nodes.synced().await?;
    let ops = vec![
        set_request(id, &waiting, held.stat.version)?,
        unlock(&held.guard),
    ];
    let outcomes = commit(&held.guard, ops).await?;
    held.guard.forget();
    info!(request = %id, nodes = nodes.len(), "requeued request abandoned by its launcher");
    // Update the view at once: as long as it looks pending, it looks abandoned.
    match outcomes.as_deref() {
        Some([OpOutcome::Set(stat), ..]) => ctx.requests.wrote(id, Arc::new(waiting), *stat),
        _ => ctx.requests.synced().await?,
    }
    Ok(RecoveryStep::Done)
}

/// Returns the nodes of a request from the index of the dispatcher, which processes all changes so far first.
async fn allocated_to(ctx: &Context, request: RequestId) -> Result<Vec<NodeId>> {
    let (answer, nodes) = oneshot::channel();
    ctx.report(TaskReport::NodesOf { request, answer });
    nodes.await.map_err(|_| Error::Closed)
}

/// Resets a node of the request. Returns false if its lock is held.
async fn reset_node(ctx: &Context, request: RequestId, id: NodeId) -> Result<bool> {
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
