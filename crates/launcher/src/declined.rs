//! Fails a waiting request that every registered pool has declined.
//!
//! A pool that declines a request fails it if it is the last one ([`protocol::request::decline`]). If the pools that
//! had not declined leave the registry afterwards, no further decline follows, so the request is failed here.

use std::sync::Arc;

use nodeyard_model::RequestId;
use nodeyard_plan::protocol;
use nodeyard_store::registry::{Attempt, Patience};
use nodeyard_store::{OpOutcome, Result};
use tracing::{debug, info};

use crate::commit::{commit, set_request, unlock};
use crate::context::Context;

pub(crate) async fn run(ctx: Context, request: RequestId) {
    let Some(result) = ctx.unless_stopped(fail(&ctx, request)).await else {
        return;
    };
    if let Err(error) = result {
        debug!(%request, %error, "failed to fail a declined request; retrying later");
    }
}

async fn fail(ctx: &Context, id: RequestId) -> Result<()> {
    let held = match ctx.registry.requests().lock(id, Patience::None).await? {
        Attempt::Held(held) => *held,
        Attempt::Busy | Attempt::Gone => return Ok(()),
    };
    ctx.pools.synced().await?;
    let registered = ctx.registered();
    let failed = protocol::request::fail(Some(&held.value), &registered, ctx.clock.now());
    let Ok(failed) = failed else {
        return held.guard.release().await;
    };
    let ops = vec![
        set_request(id, &failed, held.stat.version)?,
        unlock(&held.guard),
    ];
    let outcomes = commit(&held.guard, ops).await?;
    held.guard.forget();
    match outcomes.as_deref() {
        Some([OpOutcome::Set(stat), ..]) => ctx.requests.wrote(id, Arc::new(failed), *stat),
        _ => ctx.requests.synced().await?,
    }
    ctx.events.failed();
    info!(request = %id, "failed request that every registered pool has declined");
    Ok(())
}
