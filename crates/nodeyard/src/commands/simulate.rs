//! `nodeyard simulate`: serves the simulated clouds of `driver: fake`, so that they outlive their users.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use nodeyard_config::Fake;
use nodeyard_driver_fake::{Simulate, URL_VARIABLE, World, serve};
use nodeyard_model::Clock;
use tokio::net::TcpListener;
use tracing::info;

use crate::commands::signals;
use crate::context::CommandContext;

#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// Address to listen on; port 0 selects a free port
    #[arg(long, default_value = "127.0.0.1:8774")]
    listen: SocketAddr,
}

/// Serves simulated clouds. Clouds without a provider in the configuration have default options.
pub(crate) async fn run(args: SimulateArgs, context: &CommandContext) -> anyhow::Result<()> {
    let stop = signals::stop()?;
    let mut clouds = HashMap::new();
    if let Some(config) = context.load()? {
        for provider in config.providers.values() {
            if let Some(section) = provider.driver.section::<Fake>() {
                let simulate = Simulate::of(&section.simulate);
                clouds.insert(provider.name().to_owned(), simulate);
            }
        }
    }
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("failed to listen on {}", args.listen))?;
    info!(
        "serving simulated clouds; use them with {URL_VARIABLE}=http://{}",
        listener.local_addr()?
    );
    let world = Arc::new(World::new(clouds, Clock::system()));
    Ok(serve(listener, world, stop.cancelled_owned()).await?)
}
