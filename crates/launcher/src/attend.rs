//! What a driver does besides launches and deletions, for as long as its provider runs.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::context::Context;
use crate::launch;
use crate::provider::Provider;

/// After something that did not work.
const PAUSE: Duration = Duration::from_secs(1);

/// Works until `ended`, or until there is nothing of the kind.
pub(crate) async fn run(ctx: Context, provider: Arc<Provider>, ended: CancellationToken) {
    let work = async {
        loop {
            match provider.driver.attend(ctx.clock.now()).await {
                Ok(Some(wait)) => launch::pause(&*provider.driver, wait, ctx.timing).await,
                Ok(None) => return,
                Err(error) => {
                    warn!(
                        provider = %provider.name,
                        error = &error as &dyn std::error::Error,
                        "a provider cannot be looked after; trying again"
                    );
                    sleep(PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = ended.cancelled() => {}
        () = ctx.stop.cancelled() => {}
    }
}
