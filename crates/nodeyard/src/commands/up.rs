//! `nodeyard up`: everything in one process, with one signal to stop it.
//!
//! What there is so far: the store, open to other processes of the same user, and the configuration, read
//! again whenever it changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use nodeyard_config::Reloader;
use nodeyard_store::zookeeper::ZooKeeper;
use nodeyard_store::{Tree as _, socket};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

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
    let stop = stop_on_signals()?;
    let source = context.source();
    let loaded = source.as_ref().map(context::load).transpose()?;
    let target = match args.state_dir {
        Some(directory) => Target::Embedded(directory),
        None => Target::of(loaded.as_ref().map(|(config, _)| &**config))?,
    };
    let reloading = match (source, loaded) {
        (Some(source), Some((config, stamp))) => {
            info!(file = %source.main.display(), "configuration in force");
            let (reloader, _) = Reloader::new(source, config, stamp);
            Some(tokio::spawn(reloader.run()))
        }
        _ => {
            info!("no configuration file; using the defaults");
            None
        }
    };
    let result = match target {
        Target::Embedded(directory) => embedded(&directory, &stop).await,
        Target::ZooKeeper(options) => {
            let client = ZooKeeper::connect(options);
            stop.cancelled().await;
            client.close().await;
            Ok(())
        }
    };
    if let Some(task) = reloading {
        task.abort();
    }
    info!("stopped");
    result
}

async fn embedded(directory: &Path, stop: &CancellationToken) -> anyhow::Result<()> {
    let engine = store_access::own(directory, PATIENCE).await?;
    let path = directory.join(socket::FILE_NAME);
    info!(socket = %path.display(), "store ready");
    let result = socket::serve(Arc::clone(&engine), &path, stop.cancelled()).await;
    engine.close().await;
    Ok(result?)
}

/// The first SIGINT or SIGTERM stops in order, the second at once.
fn stop_on_signals() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let asked = stop.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if asked.is_cancelled() {
                std::process::exit(130);
            }
            info!("stopping; once more to stop at once");
            asked.cancel();
        }
    });
    Ok(stop)
}
