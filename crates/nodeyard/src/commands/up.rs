//! `nodeyard up`: runs everything in one process.
//!
//! It serves the store to other processes of the same user, reloads the configuration when it changes, and runs the
//! launcher with the HTTP API, and a builder if `images-dir` is set.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use nodeyard_config::{ConfigHandle, Reloader};
use nodeyard_http_api::LocalToken;
use nodeyard_store::Tree;
use nodeyard_store::socket::{self, StoreSocket};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::commands::builder::{self, WorkerCounts};
use crate::commands::launcher::{self, LauncherServices, LauncherTools, WebPages};
use crate::commands::signals;
use crate::context::{self, CommandContext};
use crate::store_access::{self, StoreTarget};

/// How long to wait for a command that has the store's file open.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Directory of the embedded store, whatever the configuration says
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

pub(crate) async fn run(args: UpArgs, context: &CommandContext) -> anyhow::Result<()> {
    let stop = signals::stop()?;
    let source = context.source();
    let loaded = source.as_ref().map(context::load).transpose()?;
    let target = match args.state_dir {
        Some(directory) => StoreTarget::Embedded(directory),
        None => StoreTarget::of(loaded.as_ref().map(|(config, _)| &**config))?,
    };
    let (reloading, config) = match (source, loaded) {
        (Some(source), Some((config, stamp))) => {
            let (reloader, handle) = Reloader::new(source, config, stamp);
            (Some(tokio::spawn(reloader.run())), Some(handle))
        }
        _ => {
            info!("no configuration file; using the defaults");
            (None, None)
        }
    };
    let result = match target {
        StoreTarget::Embedded(directory) => Box::pin(embedded(&directory, config, &stop)).await,
        StoreTarget::ZooKeeper(options) => {
            let client = store_access::connect(options.clone())?;
            let tree = Arc::clone(&client) as _;
            let following = config.clone().map(|config| {
                let client = Arc::clone(&client);
                tokio::spawn(store_access::follow_servers(client, options, config))
            });
            let token = local_token(config.as_ref());
            let result = Box::pin(services(tree, config, token, &stop)).await;
            if let Some(task) = following {
                task.abort();
            }
            client.close().await;
            result
        }
    };
    if let Some(task) = reloading {
        task.abort();
    }
    info!("stopped");
    result
}

/// Returns the local token if the store is not on this host. Without one, commands need a token from the configuration.
fn local_token(config: Option<&ConfigHandle>) -> Option<LocalToken> {
    let config = config.map(ConfigHandle::config);
    let token = store_access::state_dir(config.as_deref()).and_then(|directory| {
        std::fs::create_dir_all(&directory)?;
        Ok(LocalToken::ensure(&directory)?)
    });
    token
        .inspect_err(|error| warn!("failed to create the local API token: {error:#}"))
        .ok()
}

async fn embedded(
    directory: &Path,
    config: Option<ConfigHandle>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let engine = store_access::open_as_owner(directory, PATIENCE).await?;
    let token = LocalToken::ensure(directory)?;
    let path = directory.join(socket::FILE_NAME);
    // Before the services start, because the store is ready only when commands can reach it.
    let socket = StoreSocket::bind(&path).await?;
    info!(socket = %path.display(), "store ready");
    let session = engine.session();
    let services = async {
        let result = Box::pin(services(Arc::clone(&session), config, Some(token), stop)).await;
        // Stops serving the store.
        stop.cancel();
        result
    };
    let serving = socket.serve(Arc::clone(&engine), stop.cancelled());
    let ((), result) = tokio::join!(serving, services);
    session.close().await;
    engine.close().await;
    result
}

/// Runs the launcher and the builder on the store until `stop`. Without a configuration there is nothing to run.
async fn services(
    tree: Arc<dyn Tree>,
    config: Option<ConfigHandle>,
    local_token: Option<LocalToken>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    match config {
        Some(config) => {
            let tools = LauncherTools::new(launcher::follow(config.clone()))?;
            let started = CancellationToken::new();
            let building = build(&tree, &config, &tools, stop);
            let launching = async {
                let services = LauncherServices {
                    pages: WebPages::Optional,
                    local_token,
                };
                let tools = tools.clone();
                let result = launcher::run(
                    Arc::clone(&tree),
                    config.clone(),
                    tools,
                    services,
                    started,
                    stop.clone(),
                );
                let result = Box::pin(result).await;
                stop.cancel();
                result
            };
            let (built, launched) = tokio::join!(building, launching);
            built.and(launched)
        }
        None => {
            stop.cancelled().await;
            Ok(())
        }
    }
}

/// Runs a builder, if the configuration has an `images-dir`.
async fn build(
    tree: &Arc<dyn Tree>,
    config: &ConfigHandle,
    tools: &LauncherTools,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    if config.config().images_dir.is_none() {
        return Ok(());
    }
    let tree = Some(Arc::clone(tree));
    let drivers = tools.drivers.clone();
    let started = CancellationToken::new();
    let workers = WorkerCounts::default();
    builder::run(
        tree,
        config.clone(),
        drivers,
        workers,
        started,
        stop.clone(),
    )
    .await
}
