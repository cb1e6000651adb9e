//! `nodeyard up`: everything in one process, with one signal to stop it.
//!
//! The store, open to other processes of the same user, the configuration, read again whenever it changes, the
//! launcher with the HTTP API, and a builder where there is a place for images.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use nodeyard_config::{Handle, Reloader};
use nodeyard_http_api::LocalToken;
use nodeyard_store::Tree;
use nodeyard_store::socket::{self, StoreSocket};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::commands::builder::{self, Hands};
use crate::commands::launcher::{self, Pages, Served, Tools};
use crate::commands::signals;
use crate::context::{self, Context};
use crate::store_access::{self, Target};

/// How long a command may have the store's file before this gives up.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Directory of the embedded store, whatever the configuration says
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

pub(crate) async fn run(args: UpArgs, context: &Context) -> anyhow::Result<()> {
    let stop = signals::stop()?;
    let source = context.source();
    let loaded = source.as_ref().map(context::load).transpose()?;
    let target = match args.state_dir {
        Some(directory) => Target::Embedded(directory),
        None => Target::of(loaded.as_ref().map(|(config, _)| &**config))?,
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
        Target::Embedded(directory) => Box::pin(embedded(&directory, config, &stop)).await,
        Target::ZooKeeper(options) => {
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

/// The token of this host where nothing else of the store is on it. Without one, commands need one from the
/// configuration.
fn local_token(config: Option<&Handle>) -> Option<LocalToken> {
    let config = config.map(Handle::config);
    let token = store_access::state_dir(config.as_deref()).and_then(|directory| {
        std::fs::create_dir_all(&directory)?;
        Ok(LocalToken::ensure(&directory)?)
    });
    token
        .inspect_err(|error| warn!("no token for commands of this host: {error:#}"))
        .ok()
}

async fn embedded(
    directory: &Path,
    config: Option<Handle>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let engine = store_access::own(directory, PATIENCE).await?;
    let token = LocalToken::ensure(directory)?;
    let path = directory.join(socket::FILE_NAME);
    // Before anything works: a store that commands cannot reach is not ready.
    let socket = StoreSocket::bind(&path).await?;
    info!(socket = %path.display(), "store ready");
    let session = engine.session();
    let services = async {
        let result = Box::pin(services(Arc::clone(&session), config, Some(token), stop)).await;
        // Without them the store would be served in vain.
        stop.cancel();
        result
    };
    let serving = socket.serve(Arc::clone(&engine), stop.cancelled());
    let ((), result) = tokio::join!(serving, services);
    session.close().await;
    engine.close().await;
    result
}

/// Everything that works on the store, until `stop`. Without a configuration there is nothing to do.
async fn services(
    tree: Arc<dyn Tree>,
    config: Option<Handle>,
    local_token: Option<LocalToken>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    match config {
        Some(config) => {
            let tools = Tools::new(launcher::follow(config.clone()))?;
            let begun = CancellationToken::new();
            let building = build(&tree, &config, &tools, stop);
            let launching = async {
                let served = Served {
                    pages: Pages::Offered,
                    local_token,
                };
                let tools = tools.clone();
                let result = launcher::run(
                    Arc::clone(&tree),
                    config.clone(),
                    tools,
                    served,
                    begun,
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

/// A builder, where the configuration has a place for images.
async fn build(
    tree: &Arc<dyn Tree>,
    config: &Handle,
    tools: &Tools,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    if config.config().images_dir.is_none() {
        return Ok(());
    }
    let tree = Some(Arc::clone(tree));
    let drivers = Arc::clone(&tools.drivers);
    let begun = CancellationToken::new();
    let hands = Hands::default();
    builder::run(tree, config.clone(), drivers, hands, begun, stop.clone()).await
}
