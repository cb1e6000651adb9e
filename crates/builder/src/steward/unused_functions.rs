//! Removes the functions of deleted images from job servers.
//!
//! Job servers keep a function after its workers unregistered it, and each image has several functions. gearmand and Nodeyard's
//! server can drop functions; gear's server cannot.

use std::time::Duration;

use nodeyard_gearman::GearmanEndpoint;
use nodeyard_gearman::client::{AdminClient, AdminError};
use tokio::time::MissedTickBehavior;

use crate::jobs::Function;

/// The maximum number of functions dropped at once. gearmand takes up to 6 ms for each while it lists 100,000.
const BATCH: usize = 1000;

/// Periodically drops unused functions of a job server. Returns if the server does not support that.
pub(super) async fn drop_regularly(server: GearmanEndpoint, every: Duration, limit: Duration) {
    let mut interval = tokio::time::interval(every);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        match drop_unused(&server, limit).await {
            Ok(0) => {}
            Ok(dropped) => tracing::debug!(%server, dropped, "dropped unused functions"),
            Err(error @ (AdminError::NoResponse { .. } | AdminError::Refused { .. })) => {
                let error = &error as &dyn std::error::Error;
                tracing::info!(%server, error, "gearman server cannot drop functions; unused functions stay listed until it restarts");
                return;
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(%server, error, "failed to drop unused functions; retrying later");
            }
        }
    }
}

/// Returns how many functions were dropped.
async fn drop_unused(server: &GearmanEndpoint, limit: Duration) -> Result<usize, AdminError> {
    let mut client = AdminClient::connect(server, limit).await?;
    let unused = client.status().await?.into_iter().filter(|line| {
        line.total == 0
            && line.workers == 0
            && Function::parse(&line.function).is_some_and(|function| function.is_of_image())
    });
    let mut dropped = 0;
    for line in unused.take(BATCH) {
        if client.drop_function(&line.function).await? {
            dropped += 1;
        }
    }
    Ok(dropped)
}
