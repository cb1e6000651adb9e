//! `nodepool-launcher` and `nodepool-builder`: checks their requirements and runs them.
//!
//! A daemon refuses to start without the configuration keys that make it part of a fleet; `nodeyard up` runs without
//! one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use nodeyard_config::{Config, ConfigSource, ConfigStamp, Reloader};
use nodeyard_model::ErrorCode;
use nodeyard_store::Tree;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::background::{self, BackgroundProcess};
use crate::cli::DaemonFlags;
use crate::commands::builder::{self, WorkerCounts};
use crate::commands::launcher::{self, LauncherServices, LauncherTools, WebPages};
use crate::commands::signals;
use crate::context::{self, CommandContext};
use crate::error_codes::WithCode as _;
use crate::exit::CommandOutcome;
use crate::logging::{self, Destination};
use crate::program::{self, ProgramName};
use crate::store_access::{self, StoreTarget};

/// The service that a daemon runs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DaemonRole {
    Launch(WebPages),
    Build(WorkerCounts),
}

pub(crate) fn run(
    program: ProgramName,
    mut flags: DaemonFlags,
    role: DaemonRole,
) -> anyhow::Result<CommandOutcome> {
    if flags.version {
        return program::print_nodepool_version();
    }
    for path in flags.paths() {
        *path = absolute(path)?;
    }
    let foreground = flags.foreground || flags.debug;
    let pid_file = flags
        .pid_file
        .clone()
        .unwrap_or_else(|| Path::new("/var/run/nodepool").join(format!("{}.pid", name(program))));
    if !foreground && !background::is_child() {
        return background::launch(&pid_file);
    }
    let context = CommandContext::from(&flags);
    let source = context.required_source()?;
    let (config, stamp) = context::load(&source)?;
    check_requirements(program, &config).code(ErrorCode::NoFleet)?;
    let background = match foreground {
        true => None,
        false => Some(BackgroundProcess::enter(&pid_file)?),
    };
    let log = Path::new("/var/log/nodepool").join(format!("{}.log", name(program)));
    let destination = match &flags.log_config {
        Some(path) => Destination::Configured(path),
        None if foreground => Destination::Stdout,
        None => Destination::File(&log),
    };
    logging::start_daemon(logging::Level::daemons(context.verbose), destination)?;
    if flags.repl {
        warn!("--repl has no effect: there is no Python console");
    }
    crate::block_on(serve(source, config, stamp, role, background))?;
    Ok(CommandOutcome::Success)
}

/// Returns the name of a daemon's files; as in Nodepool, the launcher's are named `nodepool`.
fn name(program: ProgramName) -> &'static str {
    match program {
        ProgramName::NodepoolLauncher => "nodepool",
        other => other.name(),
    }
}

/// Makes a path absolute; `~` is the user's home.
fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    let home = std::env::home_dir();
    let path = match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
    };
    std::path::absolute(&path).with_context(|| format!("invalid path {}", path.display()))
}

async fn serve(
    source: ConfigSource,
    config: Arc<Config>,
    stamp: ConfigStamp,
    role: DaemonRole,
    background: Option<BackgroundProcess>,
) -> anyhow::Result<()> {
    let stop = signals::stop()?;
    let (client, options) = match StoreTarget::of(Some(&config))? {
        StoreTarget::ZooKeeper(options) => {
            (Some(store_access::connect(options.clone())?), Some(options))
        }
        StoreTarget::Embedded(_) => (None, None),
    };
    let tree = client.clone().map(|client| client as Arc<dyn Tree>);
    let (reloader, handle) = Reloader::new(source, config, stamp);
    let reloading = tokio::spawn(reloader.run());
    let following = client.clone().zip(options).map(|(client, options)| {
        let following = store_access::follow_servers(client, options, handle.clone());
        tokio::spawn(following)
    });
    let started = CancellationToken::new();
    let tools = LauncherTools::new(launcher::follow(handle.clone()))?;
    let working = async {
        match (role, tree) {
            (DaemonRole::Launch(pages), Some(tree)) => {
                let services = LauncherServices {
                    pages,
                    local_token: None,
                };
                let run = launcher::run(tree, handle, tools, services, started.clone(), stop);
                Box::pin(run).await
            }
            (DaemonRole::Launch(_), None) => bail!("the launcher needs `zookeeper-servers`"),
            (DaemonRole::Build(workers), tree) => {
                builder::run(tree, handle, tools.drivers, workers, started.clone(), stop).await
            }
        }
    };
    let announcing = async {
        match &background {
            Some(background) => {
                started.cancelled().await;
                background.ready()
            }
            None => Ok(()),
        }
    };
    let working = async {
        let result = working.await;
        // Lets the waiting command return in case of an error.
        started.cancel();
        result
    };
    let (result, announced) = tokio::join!(working, announcing);
    reloading.abort();
    if let Some(task) = following {
        task.abort();
    }
    if let Some(client) = client {
        client.close().await;
    }
    result.and(announced)
}

fn check_requirements(program: ProgramName, config: &Config) -> anyhow::Result<()> {
    let fleet = config.zookeeper.is_some();
    let worker = program == ProgramName::NodepoolBuilder && !config.gearman_servers.is_empty();
    let keys = match program {
        ProgramName::NodepoolBuilder => "`zookeeper-servers` nor `gearman-servers`",
        _ => "`zookeeper-servers`",
    };
    ensure!(
        fleet || worker,
        "the configuration has no {keys}, so {} cannot join a fleet; add the key, or run everything on this \
         machine with `nodeyard up`",
        program.name()
    );
    Ok(())
}
