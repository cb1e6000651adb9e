//! `nodeyard simulate`: the clouds of `driver: fake` as a server, so that they outlive whoever uses them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use nodeyard_config::Driver;
use nodeyard_driver_fake::{Simulate, URL_VARIABLE, World, serve};
use nodeyard_model::Clock;
use tokio::net::TcpListener;
use tracing::info;

use crate::commands::signals;
use crate::context::Context;

#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// Where to listen; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:8774")]
    listen: SocketAddr,
}

/// Clouds that the configuration does not name have the default options.
pub(crate) async fn run(args: SimulateArgs, context: &Context) -> anyhow::Result<()> {
    let stop = signals::stop()?;
    let mut clouds = HashMap::new();
    if let Some(config) = context.load()? {
        for provider in config.providers.values() {
            if let Driver::Fake(section) = &provider.driver {
                let simulate = Simulate::of(&section.simulate);
                clouds.insert(provider.name().to_owned(), simulate);
            }
        }
    }
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen on {}", args.listen))?;
    info!(
        "simulated clouds; use them with {URL_VARIABLE}=http://{}",
        listener.local_addr()?
    );
    let world = Arc::new(World::new(clouds, Clock::system()));
    Ok(serve(listener, world, stop.cancelled_owned()).await?)
}
