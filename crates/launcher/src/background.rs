//! Runs the background work of drivers, which belongs to no single node, while the provider runs.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::context::Context;
use crate::provider::Provider;

/// Before background work that failed is started again.
const PAUSE: Duration = Duration::from_secs(1);

/// Returns when the provider has `ended`, or at once if its driver has no background work.
pub(crate) async fn run(ctx: Context, provider: Arc<Provider>, ended: CancellationToken) {
    let work = async {
        let Some(machines) = provider.machines() else {
            return;
        };
        while let Err(error) = machines.run_background().await {
            warn!(
                provider = %provider.name,
                error = &error as &dyn std::error::Error,
                retry_in = ?PAUSE,
                "failed to run background work of driver; restarting"
            );
            sleep(PAUSE).await;
        }
    };
    tokio::select! {
        () = work => {}
        () = ended.cancelled() => {}
        () = ctx.stop.cancelled() => {}
    }
}
